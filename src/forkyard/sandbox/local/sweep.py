"""What is removed because nobody needs it any more."""

from __future__ import annotations

import time

from forkyard.sandbox.local.cgroups import remove_group
from forkyard.sandbox.local.yard import Yard


async def sweep(yard: Yard) -> list[str]:
    """Remove what dead owners left behind; one sentence for each thing removed."""
    store = yard.store
    done = []
    for box in store.abandoned():
        store.remove(box)
        done.append(f"{box.told}: its owner is gone")
    for engine in store.dead_engines():
        groups = [group for parent in yard.controllers.parents for group in parent.glob(f"{engine}-*")]
        removed = sorted({group.name for group in groups if remove_group(group)})
        done += [f"control group {name}" for name in removed]
        store.forget_engine(engine)
    done += [f"disk {disk}: nothing stands on it" for disk in store.orphan_disks()]
    (await yard.engine()).purge()
    return done


async def sweep_unused(yard: Yard, older_than: float) -> list[str]:
    """Remove stopped named sandboxes that nobody stopped or opened for so many seconds; one sentence for each."""
    unused = yard.store.remove_unused(time.time() - older_than)
    (await yard.engine()).purge()
    return [f"{box.told}: last used {_days(time.time() - box.used)} ago" for box in unused]


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days"
