"""Building an image from a Dockerfile on forks: each step runs in a sandbox made from the step before it.

Every step is kept as the image `cache:<key>` and every stage as `build:<key>`; a key stands for everything the step
depends on, so whatever was built once, by this process or another, is found rather than built again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from weakref import WeakValueDictionary

from forkyard.errors import ConfigError, EngineLost, SandboxError, SandboxLost
from forkyard.image.context import Context
from forkyard.image.dockerfile import read_dockerfile
from forkyard.image.fetch import Downloads
from forkyard.image.gather import Gatherer
from forkyard.image.instructions import Dockerfile
from forkyard.image.mounting import Mounts, locked
from forkyard.image.oci.pull import ensure_image, find_image
from forkyard.image.options import BuildOptions
from forkyard.image.parsers import SCRIPT
from forkyard.image.place import copy_files, make_directory
from forkyard.image.plan import CopyFiles, NewDirectory, Plan, RunCommand, StagePlan, Step
from forkyard.image.planner import PlanInput, make_plan
from forkyard.image.stages import needed
from forkyard.sandbox import (
    NO_NETWORK,
    ImageConfig,
    ImageInfo,
    ImageProvider,
    ImageStore,
    Network,
    ProgramResult,
    Sandbox,
    SandboxSpec,
)
from forkyard.values import one_line, printable, tail

_PLAIN = BuildOptions()
_OUTPUT_SHOWN = 4000
_TEXT_SHOWN = 200


class BuildError(SandboxError):
    """A step of a build failed: `where` is file and line, `output` the end of what a RUN wrote."""

    def __init__(self, where: str, instruction: str, reason: str, output: str = "", step: str = "") -> None:
        shown = instruction if len(instruction) <= _TEXT_SHOWN else f"{instruction[:_TEXT_SHOWN]}..."
        message = f"{where}: {f'{step}: ' if step else ''}{shown}: {reason}"
        super().__init__(printable(f"{message}; the end of its output:\n{output}" if output else message))
        self.where = where
        self.instruction = instruction
        self.output = output


@dataclass(frozen=True, slots=True)
class BuiltImage(ImageInfo):
    """The result of a build; `ran` counts the steps that were not found from an earlier build."""

    ran: int


async def build(
    store: ImageProvider,
    directory: Path,
    *,
    base: str | None = None,
    timeout: float | None = None,
    network: Network = NO_NETWORK,
    options: BuildOptions = _PLAIN,
) -> BuiltImage:
    """The image of the Dockerfile in `directory`, which is also the build context.

    With `base` the image of that name stands in for those the FROMs name. Its RUNs have the `network`. Raises
    ConfigError, before anything runs, for whatever is wrong in the Dockerfile, its context or what was asked, and
    BuildError when a step fails or the whole takes longer than `timeout` seconds.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    async with Downloads() as downloads:
        given = await _input(store, directory, base, options)
        plan = await asyncio.to_thread(make_plan, given)
        if fetched := await _fetched(plan, downloads, deadline):
            plan = await asyncio.to_thread(make_plan, replace(given, fetched=fetched))
        building = _Building(store, plan, options, downloads, network, deadline)
        image = await building.stage(plan.target)
    return BuiltImage(image.name, image.config, image.created, building.ran)


async def check_build(store: ImageStore, directory: Path, *, base: str | None = None) -> str | None:
    """Plan a build and run nothing; the name of an image it needs and the store lacks, or None.

    Raises ConfigError for whatever is wrong in the Dockerfile or its context.
    """
    dockerfile = read_dockerfile(_PLAIN.dockerfile(directory))
    images: dict[str, ImageInfo] = {}
    for name in base_images(dockerfile, base):
        info = await find_image(store, name)
        if info is None:
            return name
        images[name] = info
    await asyncio.to_thread(lambda: make_plan(PlanInput(dockerfile, Context(directory), images, base=base)))
    return None


def base_images(dockerfile: Dockerfile, base: str | None = None) -> tuple[str, ...]:
    """The images a build of the last stage takes from the store. Raises ConfigError for what `needed` does."""
    return tuple(needed(dockerfile, _PLAIN, base).images)


async def _input(store: ImageProvider, directory: Path, base: str | None, options: BuildOptions) -> PlanInput:
    """What the plan is made of. Raises ConfigError for an image that is not there and cannot be pulled."""
    path = options.dockerfile(directory)
    dockerfile = read_dockerfile(path)
    images: dict[str, ImageInfo] = {}
    for name, where in needed(dockerfile, options, base).images.items():
        try:
            images[name] = await ensure_image(store, name)
        except ConfigError as error:
            place = "" if name == base else f"{where}: "
            raise ConfigError(*(f"{place}{problem}" for problem in error.problems)) from error
    context = await asyncio.to_thread(Context, directory, path)
    return PlanInput(dockerfile, context, images, options, base)


async def _fetched(plan: Plan, downloads: Downloads, deadline: float | None) -> dict[str, str]:
    """The SHA-256 of every file an ADD takes from the network without saying it."""
    found: dict[str, str] = {}
    for step, url in plan.unknown:
        try:
            async with asyncio.timeout(_left(deadline)):
                found[url] = (await downloads.fetch(url))[1]
        except TimeoutError:
            raise BuildError(step.where, step.text, _TOO_LONG) from None
        except SandboxError as error:
            raise BuildError(step.where, step.text, str(error)) from error
    return found


@dataclass(slots=True)
class _Building:
    """One build at work. `ran` counts the steps that were run, `done` names the images made by this build."""

    store: ImageProvider
    plan: Plan
    options: BuildOptions
    downloads: Downloads
    network: Network
    deadline: float | None
    ran: int = 0
    done: set[str] = field(default_factory=set)

    async def stage(self, stage: StagePlan) -> ImageInfo:
        """The image of a stage, found or made."""
        async with _once(self.store, stage.name):
            image = await self._found(stage.name)
            if image is None:
                image = await self._finish(stage, await self._ensure_steps(stage))
        return image

    async def _found(self, name: str) -> ImageInfo | None:
        """The image of that name, unless it is an old one and a fresh one is wanted."""
        return await self.store.image(name) if not self.options.fresh or name in self.done else None

    async def _ensure_image(self, name: str) -> None:
        """Make the stage that an image is the result of, if it is one of this build."""
        stage = self.plan.stage(name)
        if stage is not None:
            await self.stage(stage)

    async def _ensure_steps(self, stage: StagePlan) -> str:
        """Run the steps whose results are not there yet; the image with the last one's."""
        first = len(stage.steps)
        while first > 0 and await self._found(stage.steps[first - 1].name) is None:
            first -= 1
        if first == 0:
            await self._ensure_image(stage.base)
        source = stage.steps[first - 1].name if first else stage.base
        for number, step in enumerate(stage.steps[first:], first + 1):
            async with _once(self.store, step.name):
                if await self._found(step.name) is None:
                    await self._run_step(source, step, f"step {number} of {len(stage.steps)}")
            source = step.name
        return source

    async def _run_step(self, source: str, step: Step, place: str) -> None:
        """Make the image of one step from that of the step before."""
        for image in step.images:
            await self._ensure_image(image)
        if self.options.on_step is not None:
            self.options.on_step(one_line(f"{place}: {step.text}"))
        action = step.action
        try:
            async with Gatherer(self.store, self.downloads) as gatherer, self._sandbox(source) as sandbox:
                await _make_directories(sandbox, step.directories)
                if isinstance(action, RunCommand):
                    await self._run(sandbox, gatherer, step, action, place)
                else:
                    await self._copy(sandbox, gatherer, action)
                await self._commit(sandbox, step.name, step.config)
        except (BuildError, SandboxLost, EngineLost):
            raise
        except TimeoutError:
            raise BuildError(step.where, step.text, _TOO_LONG, step=place) from None
        except (SandboxError, OSError, ValueError) as error:
            raise BuildError(step.where, step.text, str(error), step=place) from error
        self.ran += 1

    async def _copy(self, sandbox: Sandbox, gatherer: Gatherer, action: CopyFiles) -> None:
        async with asyncio.timeout(_left(self.deadline)):
            await copy_files(sandbox, action, await gatherer.trees(action.materials, action.exclude))

    async def _run(self, sandbox: Sandbox, gatherer: Gatherer, step: Step, action: RunCommand, place: str) -> None:
        await make_directory(sandbox, action.workdir, "")  # a base's own WORKDIR need not exist
        mounts = Mounts(self.store, sandbox, gatherer, self.options.secrets)
        async with locked(self.store, action.mounts):
            async with asyncio.timeout(_left(self.deadline)):
                secrets = await mounts.place(action.mounts)
            if action.script:
                await sandbox.write(SCRIPT, action.script.encode(), 0o755)
            env = {**action.outside, **action.env, **secrets}
            limit, reason = self._limit()
            online = self.network != NO_NETWORK and not action.offline
            if online:
                await mounts.spare(_NAME_SERVERS)
                await sandbox.set_network(self.network)
            result = await sandbox.run(action.argv, env, cwd=action.workdir, user=action.user, timeout=limit)
            if reason := reason if result.timed_out else _failure(result):
                raise BuildError(step.where, step.text, reason, _shown(result), place)
            if online:
                await sandbox.set_network(NO_NETWORK)
            if online or action.mounts:
                await sandbox.stop()  # a process the command left running would go on writing
                await sandbox.start()
                await mounts.take_away()

    def _limit(self) -> tuple[float | None, str]:
        """How long a RUN may take, and what is said of one that took longer."""
        left, own = _left(self.deadline), self.options.run_seconds
        if own is not None and (left is None or own < left):
            return own, f"it took longer than the {own:g} seconds a RUN may take"
        return left, _TOO_LONG

    async def _finish(self, stage: StagePlan, source: str) -> ImageInfo:
        """Name the last step's disk, with the directories still to be made and the whole configuration."""
        async with self._sandbox(source) as sandbox:
            await _make_directories(sandbox, stage.directories)
            return await self._commit(sandbox, stage.name, stage.config)

    async def _commit(self, sandbox: Sandbox, name: str, config: ImageConfig) -> ImageInfo:
        await sandbox.stop()
        # Another process may have been as fast: what it made is the same, and others may be starting from it already.
        image = await self._found(name) or await self.store.commit(sandbox, name, config)
        self.done.add(name)
        return image

    @asynccontextmanager
    async def _sandbox(self, image: str) -> AsyncIterator[Sandbox]:
        # Where and as whom a step works is said with each command: the image's own WORKDIR may not be made yet.
        sandbox = await self.store.create(SandboxSpec(image=image, workdir="/", user=""))
        try:
            yield sandbox
        finally:
            await sandbox.close()


async def _make_directories(sandbox: Sandbox, directories: tuple[NewDirectory, ...]) -> None:
    for new in directories:
        try:
            await make_directory(sandbox, new.path, new.owner)
        except (SandboxLost, EngineLost):
            raise
        except SandboxError as error:
            raise BuildError(new.where, f"WORKDIR {new.path}", str(error)) from error


_NAME_SERVERS = "/etc/resolv.conf"  # written for the network a sandbox gets
_TOO_LONG = "the build took longer than its time limit allows"


def _failure(result: ProgramResult) -> str:
    """How a command failed; empty when it did not."""
    if result.ok:
        return ""
    return f"ended by signal {result.signal}" if result.signal else f"exit code {result.exit_code}"


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def _shown(result: ProgramResult) -> str:
    """The end of both streams; which line came first across them is not known."""
    streams = (tail(result.stdout, _OUTPUT_SHOWN).strip(), tail(result.stderr, _OUTPUT_SHOWN).strip())
    return "\n".join(text for text in streams if text)


# One lock for each image being made, of this process and of one store; it goes when nobody holds it.
_locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()


@asynccontextmanager
async def _once(store: ImageProvider, name: str) -> AsyncIterator[None]:
    """Hold the making of one image, so that builds that run at the same time do it once."""
    lock = _locks.setdefault((id(store), name), asyncio.Lock())
    async with lock:
        yield
