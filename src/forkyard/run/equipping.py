"""An image with what a harness needs in it: made once of the task's image, and found again by every later run."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from forkyard.errors import HarnessError
from forkyard.harness import Equipment
from forkyard.image import CACHE_PREFIX, ensure_image
from forkyard.image.disks import held, opened
from forkyard.image.plan import hashed
from forkyard.sandbox import ImageProvider

EQUIPPED_PREFIX = f"{CACHE_PREFIX}harness-"
_SECONDS = 1800.0


async def equipped(store: ImageProvider, image: str, equipment: Equipment) -> str:
    """The name of `image` with the equipment installed, made unless the store has it.

    Raises ConfigError for an image that is not there, and what `Equipment.install` raises.
    """
    base = await ensure_image(store, image)
    name = f"{EQUIPPED_PREFIX}{hashed(base.name, base.created, asdict(base.config), equipment.key)}"
    async with held(store, name):
        if await store.image(name) is None:
            try:
                async with asyncio.timeout(_SECONDS), opened(store, base.name) as sandbox:
                    await equipment.install(sandbox)
                    await sandbox.stop()
                    # Another process may have been as fast: what it made is the same, and may be in use.
                    if await store.image(name) is None:
                        await store.commit(sandbox, name, base.config)
            except TimeoutError:
                raise HarnessError(f"installing {equipment.what} took longer than {_SECONDS:g} s") from None
    return name


async def prune_equipped(store: ImageProvider) -> list[str]:
    """Remove the images that were made for harnesses and are not in use now; one sentence for each."""
    names = await store.prune_images(EQUIPPED_PREFIX)
    return [f"{name}: made for a harness, and made again when it is needed" for name in names]
