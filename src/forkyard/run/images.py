"""The images of a run's tasks, each built once however many rollouts wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from pathlib import Path
from typing import ClassVar

from forkyard.env.seat import ImageFor
from forkyard.errors import EngineLost, SandboxError
from forkyard.harness import Equipment, Harness
from forkyard.image import BuildOptions, build, ensure_image
from forkyard.run.equipping import equipped
from forkyard.sandbox import NO_NETWORK, PUBLIC, Feature, Provider, image_provider
from forkyard.task import Task

HOST = "host"
NAMELESS = "python:3.11-slim"
"""What tasks that name no image start from where there is no image host: the default of `verifiers.v1`."""
BUILD_SECONDS = 600.0  # for tasks that set no limit of their own


class ImageError(SandboxError):
    """The image of a task could not be made; trying again within the run would fail in the same way."""

    kind: ClassVar[str] = "image"
    lasting: ClassVar[bool] = True


async def nameless(provider: Provider) -> str:
    """The image of tasks that name none: the machine's own /usr, where a provider has that."""
    if Feature.IMAGES not in provider.features or await image_provider(provider).image(HOST) is not None:
        return HOST
    return NAMELESS


class Images:
    """Keeps what was built, and what failed, for the length of a run.

    `base` stands in for what the tasks name, `default` stands where they name nothing.
    """

    def __init__(self, provider: Provider, base: str | None, default: str | None = None) -> None:
        self._provider = provider
        self._base = base
        self._default = default
        self._nameless: str | None = None
        self._made: dict[Hashable, asyncio.Task[str | Exception]] = {}

    def for_harness(self, harness: Harness) -> ImageFor:
        """The images that sandboxes of a harness start from: the tasks' own, with what it needs installed."""
        equipment = harness.equipment()
        return self.image_for if equipment is None else partial(self._equipped_for, equipment)

    async def image_for(self, task: Task) -> str:
        """The image a task's sandboxes start from. Raises ImageError, the same for every rollout of the task."""
        directory, seconds = task.origin.build, task.origin.seconds or BUILD_SECONDS
        if directory is not None:
            image = await self._once(directory, lambda: self._build(directory, seconds))
        else:
            name = self._base or task.data.image or self._default or await self._of_nameless()
            if name == HOST or Feature.IMAGES not in self._provider.features:
                return name
            image = await self._once(name, lambda: self._find(name))
        if isinstance(image, Exception):
            how = "built" if directory else "had"
            raise ImageError(f"the image of task {task.name} could not be {how}: {image}") from None
        return image

    async def _of_nameless(self) -> str:
        if self._nameless is None:
            self._nameless = await nameless(self._provider)
        return self._nameless

    async def _equipped_for(self, equipment: Equipment, task: Task) -> str:
        plain = await self.image_for(task)
        store = image_provider(self._provider)
        image = await self._once((plain, equipment.key), lambda: equipped(store, plain, equipment))
        if isinstance(image, Exception):
            raise ImageError(
                f"{equipment.what} could not be installed into the image of task {task.name}: {image}"
            ) from None
        return image

    async def _once(self, what: Hashable, make: Callable[[], Coroutine[None, None, str]]) -> str | Exception:
        if what not in self._made:
            self._made[what] = asyncio.create_task(_caught(make()))
        # Of the rollouts that wait, one that is cancelled takes the image from nobody.
        made = await asyncio.shield(making := self._made[what])
        if isinstance(made, EngineLost):  # which says nothing of the image
            if self._made.get(what) is making:
                del self._made[what]
            raise made
        return made

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
