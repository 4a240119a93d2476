"""What is removed because nobody needs it any more."""

from __future__ import annotations

import time

from forkyard.sandbox.local.box import Box
from forkyard.sandbox.local.cgroups import remove_group
from forkyard.sandbox.local.store import Store
from forkyard.sandbox.local.yard import Yard


async def sweep(yard: Yard) -> list[str]:
    """Remove what dead owners left behind; one sentence for each thing removed."""
    store = yard.store
    done = []
    for box in store.abandoned():
        store.remove(box)
        done.append(f"{box.told}: its owner is gone")
    for engine in store.dead_engines():
        groups = yard.controllers.groups_of(engine)
        removed = [group for group in groups if remove_group(group)]
        done += [f"control group {name}" for name in sorted({group.name for group in removed})]
        if removed == groups:  # otherwise the kernel is still ending its processes, and the next sweep goes on
            store.forget_engine(engine)
    done += [f"disk {disk}: nothing stands on it" for disk in store.orphan_disks()]
    (await yard.engine()).purge()
    return done


async def sweep_unused(yard: Yard, older_than: float) -> list[str]:
    """Remove stopped named sandboxes that nobody stopped or opened for so many seconds; one sentence for each."""
    unused = _removed_unused(yard.store, time.time() - older_than)
    (await yard.engine()).purge()
    return [f"{box.told}: last used {_days(time.time() - box.used)} ago" for box in unused]


def _removed_unused(store: Store, since: float) -> list[Box]:
    """Forget the stopped sandboxes with a name that were last used before `since` and have no running fork.

    One that outlives its owner is some server's, which knows whether it is used.
    """
    with store.transaction() as doomed:
        boxes = store.all("sandbox")
        parents = {box.parent for box in boxes if box.state == "running"}
        stopped = [box for box in boxes if box.state == "stopped" and box.name and box.survivor is None]
        found = [box for box in stopped if box.used < since and box.id not in parents]
        for box in found:
            store.delete(box, doomed)
    return found


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days"
