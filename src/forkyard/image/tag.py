"""Giving an image that was built the name a FROM or a task calls it by."""

from __future__ import annotations

from forkyard.image.importer import check_name
from forkyard.sandbox import ImageInfo, ImageProvider, SandboxSpec


async def tag(store: ImageProvider, image: ImageInfo, name: str) -> ImageInfo:
    """Make an image known by another name, too; an image of that name is replaced.

    Raises ConfigError for a name that is not free to choose.
    """
    check_name(name)
    sandbox = await store.create(SandboxSpec(image=image.name, workdir="/", user=""))
    try:
        await sandbox.stop()
        return await store.commit(sandbox, name, image.config)
    finally:
        await sandbox.close()
