"""Copies between any two disks."""

from __future__ import annotations

from forkyard.disk.protocol import Disk
from forkyard.disk.values import About, Condition, ObjectInfo


async def copy(
    source: Disk, key: str, target: Disk, to: str, *, when: Condition | None = None, about: About | None = None
) -> ObjectInfo:
    """Copy an object, within a disk or to another; `about` replaces what is said of it. Errors of `get` and `put`."""
    reading = await source.get(key)
    try:
        if about is None:
            info = reading.info
            about = About(info.content_type, info.metadata, info.mode, info.uid, info.gid)
        return await target.put(to, aiter(reading), when=when, about=about)
    finally:
        await reading.close()
