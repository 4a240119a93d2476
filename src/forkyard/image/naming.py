"""The names of images: which are free to choose, and a further one for an image."""

from __future__ import annotations

import re

from forkyard.errors import ConfigError
from forkyard.image.disks import opened
from forkyard.image.oci.install import LAYER_PREFIX
from forkyard.image.plan import BUILD_PREFIX, CACHE_PREFIX
from forkyard.sandbox import ImageInfo, ImageProvider

_OWN_NAMES = frozenset({"scratch", "host"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")


def check_name(name: str) -> None:
    """Raises ConfigError for a name that no image may be given."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be the name of an image: write it as a FROM would, for example debian:12")
    if name in _OWN_NAMES or name.startswith((BUILD_PREFIX, CACHE_PREFIX, LAYER_PREFIX)):
        raise ConfigError(f"{name!r} cannot be the name of an imported image: Forkyard makes images of that name")


async def tag(store: ImageProvider, image: ImageInfo, name: str) -> ImageInfo:
    """Make an image known by another name, too; an image of that name is replaced.

    Raises ConfigError for a name that is not free to choose.
    """
    check_name(name)
    async with opened(store, image.name) as sandbox:
        await sandbox.stop()
        return await store.commit(sandbox, name, image.config)
