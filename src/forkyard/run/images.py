"""The images of a run's tasks, each built once however many rollouts wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import ClassVar

from forkyard.errors import SandboxError
from forkyard.image import BuildOptions, build, ensure_image
from forkyard.sandbox import NO_NETWORK, PUBLIC, Feature, Provider, image_provider
from forkyard.task import Task

HOST = "host"
BUILD_SECONDS = 600.0  # for tasks that set no limit of their own


class ImageError(SandboxError):
    """The image of a task could not be made; trying again within the run would fail in the same way."""

    kind: ClassVar[str] = "image"
    lasting: ClassVar[bool] = True


class Images:
    """Keeps what was built, and what failed, for the length of a run. `base` stands in for what the tasks name."""

    def __init__(self, provider: Provider, base: str | None) -> None:
        self._provider = provider
        self._base = base
        self._made: dict[Path | str, asyncio.Task[str | Exception]] = {}

    async def image_for(self, task: Task) -> str:
        """The image a task's sandboxes start from. Raises ImageError, the same for every rollout of the task."""
        directory = task.build_context
        if directory is not None:
            image = await self._once(directory, lambda: self._build(directory, task.build_seconds or BUILD_SECONDS))
        else:
            name = self._base or task.data.image or HOST
            if name == HOST or Feature.IMAGES not in self._provider.features:
                return name
            image = await self._once(name, lambda: self._find(name))
        if isinstance(image, Exception):
            how = "built" if directory else "had"
            raise ImageError(f"the image of task {task.name} could not be {how}: {image}") from None
        return image

    async def _once(self, what: Path | str, make: Callable[[], Coroutine[None, None, str]]) -> str | Exception:
        if what not in self._made:
            self._made[what] = asyncio.create_task(_caught(make()))
        # Of the rollouts that wait, one that is cancelled takes the image from nobody.
        return await asyncio.shield(self._made[what])

    # Only tasks of providers that keep images come here: the check before the run sees to it.

    async def _find(self, name: str) -> str:
        """What the store calls an image that is named; pulled when it is not there."""
        return (await ensure_image(image_provider(self._provider), name)).name

    async def _build(self, directory: Path, timeout: float) -> str:
        store, features = image_provider(self._provider), self._provider.features
        network = PUBLIC if {Feature.PUBLIC_NETWORK, Feature.LIVE_NETWORK} <= features else NO_NETWORK
        options = BuildOptions(base=self._base, network=network, timeout=timeout)
        return (await build(store, directory, options)).name

    async def close(self) -> None:
        """End what is still being made."""
        for making in self._made.values():
            making.cancel()
        await asyncio.gather(*self._made.values(), return_exceptions=True)


async def _caught(making: Coroutine[None, None, str]) -> str | Exception:
    try:
        return await making
    except Exception as err:  # noqa: BLE001 - whatever it is, the rollouts that wait for it record it
        return err
