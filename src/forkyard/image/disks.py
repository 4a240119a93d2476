"""Images as disks at work: opened for their files, and held while they are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from forkyard.sandbox import ImageProvider, Sandbox, SandboxSpec


@asynccontextmanager
async def opened(provider: ImageProvider, image: str) -> AsyncIterator[Sandbox]:
    """A sandbox of an image for the length of a block, to read its files or to make others of them.

    Where and as whom it works is said with each command: the image's own WORKDIR may not be made yet.
    """
    sandbox = await provider.create(SandboxSpec(image=image, workdir="/", user=""))
    try:
        yield sandbox
    finally:
        await sandbox.close()


# One lock for each name of one provider; it goes when nobody holds it.
_locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()


@asynccontextmanager
async def held(provider: ImageProvider, name: str) -> AsyncIterator[None]:
    """Hold a name, so that of those in this process who would make its image at the same time one does it."""
    lock = _locks.setdefault((id(provider), name), asyncio.Lock())
    async with lock:
        yield
