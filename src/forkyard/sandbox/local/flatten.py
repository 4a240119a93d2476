"""Deep stacks are made shallow: each layer costs a little at every mount and every look-up, and few can be stacked."""

from __future__ import annotations

import asyncio

from forkyard.sandbox.local.box import Box
from forkyard.sandbox.local.engine import Engine
from forkyard.sandbox.local.store import Store

DEPTH = 32  # a sandbox stands on no more disks than this
KEPT = 16  # that many of the lowest stay as they are: most are of images, which are large and shared


async def flatten(store: Store, engine: Engine, box: Box) -> Box:
    """Put one disk in the place of many in the stack of a stopped box, or of one that is not yet running.

    What a sandbox wrote itself stays apart from what it started from, so that it can still be told. When somebody else
    changes the stack meanwhile, theirs holds.
    """
    inherited = len(box.stack) - KEPT - box.own
    for position, count in ((box.own, inherited), (0, box.own)):
        if count > 1:
            box = await _merge(store, engine, box, position, count)
    return box


async def _merge(store: Store, engine: Engine, box: Box, position: int, count: int) -> Box:
    draft = store.add_draft(box)
    try:
        if draft.stack == box.stack:
            stack, end = list(draft.stack), position + count
            await engine.errand("merge", disks=stack[position:end], base=stack[end:], host=box.host, to=draft.disk)
            if box.lasts:
                await asyncio.to_thread(store.settle)
            return store.put_in_place(box, draft, position, count)
    finally:
        store.remove(draft)
    return store.now(box)
