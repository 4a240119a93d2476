"""Sandboxes that outlive the process that runs them: known by a row, and stopped by whoever finds their owner dead."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace

from forkyard.errors import SandboxError
from forkyard.sandbox.local.box import Box
from forkyard.sandbox.local.cgroups import remove_group
from forkyard.sandbox.local.store import Store
from forkyard.sandbox.local.yard import Yard
from forkyard.sandbox.values import Limits


def let_survive(store: Store, box: Box, limits: Limits) -> Box:
    """Have a sandbox outlive its owner, to be started again under the same limits; no sweep removes it from now on."""
    with store.transaction():
        store.db.execute("INSERT OR REPLACE INTO survivors VALUES (?, ?)", (box.id, json.dumps(asdict(limits))))
    return replace(box, survivor=limits)


def as_found(store: Store, box: Box) -> Box:
    """A box as others see it: stopped, when it survives whoever ran it."""
    orphaned = box.state == "running" and box.survivor is not None and store.is_abandoned(box)
    return replace(box, state="stopped") if orphaned else box


async def taken_over(yard: Yard, box: Box) -> Box:
    """A stopped box, which nobody runs any more but whose row may still say so: its disk is sealed as it was left.

    Raises SandboxError while the processes of its dead owner have not ended.
    """
    if box.state == "stopped" or box.engine is None:
        return box
    groups = yard.controllers.groups_of(box.engine)
    gone = [await asyncio.to_thread(remove_group, group) for group in groups]  # a group goes when nobody is in it
    if not all(gone):
        raise SandboxError(f"{box.told} is still being ended, after the process that ran it: try again")
    last = "usrw" if box.host else "w"  # of the directories of a disk; before it is made, nothing runs on it
    if not (yard.store.home / "disks" / str(box.disk) / last).is_dir():
        return yard.store.never_ran(box)
    await asyncio.to_thread(yard.store.settle)
    return yard.store.set_stopped(box)
