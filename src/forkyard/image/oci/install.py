"""From layers to an image of the store: each layer is applied in a sandbox made from the layer below it.

It is applied while it arrives, and the sandbox becomes an image when all digests turned out right. What could not be
applied so is looked through as a whole first, when it is there, and applied in another sandbox, or refused.

What the layers up to one come to is kept as the image `layer:<digest of the chain>`, so that images share what they
have in common, on the disk too. Such an image is forgotten once no other image and no sandbox stands on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from forkyard.errors import SandboxError, SandboxLost
from forkyard.image.disks import opened
from forkyard.image.oci.ahead import Ahead
from forkyard.image.oci.blob import Blob
from forkyard.image.oci.documents import Config, digest_of
from forkyard.image.oci.errors import ImageSourceError
from forkyard.image.oci.layer import Layer
from forkyard.sandbox import ImageConfig, ImageInfo, ImageProvider, Sandbox
from forkyard.values import counted

LAYER_PREFIX = "layer:"
AT_ONCE = 4
_SCRATCH = "scratch"
_NOTHING = bytes(1024)  # an archive without members

Fetch = Callable[[int], AbstractAsyncContextManager[Blob]]
"""The n-th layer's bytes, for the length of a block."""


@dataclass(frozen=True, slots=True)
class InstalledImage(ImageInfo):
    """An image from elsewhere; `notes` says what of it was left out, `applied` how many layers were new.

    `digest` is of its manifest, where a registry was asked for it.
    """

    notes: tuple[str, ...] = ()
    applied: int = 0
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is to be installed: from where, under which name, which layers."""

    name: str
    what: str
    config: Config
    fetch: Fetch
    digest: str | None = None


async def install(store: ImageProvider, recipe: Recipe) -> InstalledImage:
    """Make an image of its layers; those the store has already are not fetched.

    Raises ImageSourceError when a layer cannot be had, is not what its digest says, or cannot be applied.
    """
    names = [f"{LAYER_PREFIX}{digest}" for digest in _chain(recipe.config.diff_ids)]
    first = len(names)
    while first > 0 and await store.image(names[first - 1]) is None:
        first -= 1
    limit = asyncio.Semaphore(AT_ONCE)
    coming = [_Delivery(recipe, number, limit) for number in range(first, len(names))]
    try:
        image = await _build_up(store, recipe, names, coming)
    finally:
        await asyncio.gather(*(delivery.close() for delivery in coming))
    await store.prune_images(LAYER_PREFIX)  # those of an image that had this name before
    devices = sum(delivery.devices for delivery in coming)
    notes = (f"{counted(devices, 'device node')} of {recipe.what} left out: a sandbox has its own /dev",)
    return InstalledImage(image.name, image.config, image.created, notes if devices else (), len(coming), recipe.digest)


class _Delivery:
    """One layer on its way: fetched in the background, held until it is applied or refused."""

    def __init__(self, recipe: Recipe, number: int, limit: asyncio.Semaphore) -> None:
        self.devices = 0
        self.what = f"layer {number + 1} of {recipe.what}"
        self.diff_id = recipe.config.diff_ids[number]
        loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[Blob] = loop.create_future()
        self._fate: asyncio.Future[None] = loop.create_future()
        self._task = asyncio.create_task(self._run(recipe, number, limit))

    async def blob(self) -> Blob:
        """The layer's bytes, which may still arrive."""
        return await self._begun

    def applied(self) -> None:
        """It is not needed any more."""
        self._fate.set_result(None)

    def refused(self, error: ImageSourceError) -> None:
        """It is of no use to anybody."""
        self._fate.set_exception(error)
        self._fate.exception()  # seen: whoever pulls is told

    async def close(self) -> None:
        """Let go of it, whatever became of it."""
        if not self._fate.done():
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self, recipe: Recipe, number: int, limit: asyncio.Semaphore) -> None:
        try:
            async with AsyncExitStack() as held:
                async with limit:
                    blob = await held.enter_async_context(recipe.fetch(number))
                    self._begun.set_result(blob)
                    await blob.whole()
                await self._fate
        except Exception as error:  # noqa: BLE001 - whoever waits for the layer gets it
            if not self._begun.done():
                self._begun.set_exception(error)
                self._begun.exception()  # seen, also when an earlier layer failed and nobody asks for this one


async def _build_up(
    store: ImageProvider, recipe: Recipe, names: Sequence[str], coming: Sequence[_Delivery]
) -> ImageInfo:
    """Apply the layers that are missing, and name the whole.

    A sandbox is closed only after the next one is there: something has to stand on each new image, or another
    process may take it for one that nobody needs.
    """
    first = len(names) - len(coming)
    below = names[first - 1] if first else _SCRATCH
    async with AsyncExitStack() as stack:
        standing = await stack.enter_async_context(opened(store, below))
        for name, delivery in zip(names[first:], coming, strict=True):
            if not await _applied(standing, delivery):
                async with stack.pop_all():
                    standing = await stack.enter_async_context(opened(store, below))
                await _applied_carefully(standing, delivery)
            await standing.stop()
            await store.commit(standing, name, ImageConfig())
            delivery.applied()
            below = name
            async with stack.pop_all():
                standing = await stack.enter_async_context(opened(store, below))
        if recipe.config.image.workdir != "/":
            await _told(recipe.what, standing.push(_NOTHING, recipe.config.image.workdir))  # made when it is missing
        await standing.stop()
        return await store.commit(standing, recipe.name, recipe.config.image)


async def _applied(sandbox: Sandbox, delivery: _Delivery) -> bool:
    """Apply a layer while it arrives. Once this is True all of it is verified; otherwise the sandbox is of no use."""
    blob = await delivery.blob()
    layer = Layer(blob, delivery.diff_id, delivery.what)
    try:
        await _push(sandbox, layer, layer.archives())
        done = True
    except ImageSourceError:
        done = False
    await blob.whole()
    delivery.devices = layer.devices
    return done


async def _applied_carefully(sandbox: Sandbox, delivery: _Delivery) -> None:
    """Apply a layer that is there as a whole, after it was looked through as a whole."""
    layer = Layer(await delivery.blob(), delivery.diff_id, delivery.what)
    try:
        await _push(sandbox, layer, layer.archives_carefully())
    except ImageSourceError as error:
        delivery.refused(error)
        raise
    delivery.devices = layer.devices


async def _push(sandbox: Sandbox, layer: Layer, archives: Generator[bytes, None, None]) -> None:
    """Unpack the archives of a layer, one while the next is made."""
    async with Ahead(archives, layer.blob.leave) as ahead:
        async for archive in ahead:
            await _told(layer.what, sandbox.push(archive, "/", layer=True))


async def _told(what: str, doing: Awaitable[None]) -> None:
    """Errors of one push say whose it was."""
    try:
        await doing
    except SandboxLost:
        raise
    except SandboxError as error:
        raise ImageSourceError(f"{what} cannot be applied: {error}") from error


def _chain(diff_ids: Sequence[str]) -> list[str]:
    """What the layers up to each one are called together (the image specification's chain ids)."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(digest_of(f"{chain[-1]} {diff_id}".encode()) if chain else diff_id)
    return chain
