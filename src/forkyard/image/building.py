"""Building an image from a Dockerfile on forks: each step runs in a sandbox made from the step before it.

Every step is kept as the image `cache:<key>` and every stage as `build:<key>`; a key stands for everything the step
depends on, so whatever was built once, by this process or another, is found rather than built again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from forkyard.errors import ConfigError, SandboxError, SandboxLost
from forkyard.image.context import Context
from forkyard.image.disks import held, opened
from forkyard.image.dockerfile import read_dockerfile
from forkyard.image.fetch import Downloads
from forkyard.image.gather import Gatherer
from forkyard.image.instructions import Dockerfile
from forkyard.image.mounting import Mounts, locked
from forkyard.image.oci.pulling import ensure_image, find_image
from forkyard.image.options import BuildOptions
from forkyard.image.packed import UNREADABLE
from forkyard.image.parsers import SCRIPT
from forkyard.image.place import copy_files, make_directory
from forkyard.image.plan import NewDirectory, Plan, RunCommand, StagePlan, Step
from forkyard.image.planner import PlanInput, make_plan
from forkyard.image.stages import needed
from forkyard.sandbox import (
    NO_NETWORK,
    ImageConfig,
    ImageInfo,
    ImageProvider,
    ImageStore,
    ProgramResult,
    Sandbox,
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


@dataclass(slots=True)
class _Doing:
    """What a build is at, to be named when its time is up."""

    where: str
    text: str
    step: str = ""


async def build(store: ImageProvider, directory: Path, options: BuildOptions = _PLAIN) -> BuiltImage:
    """The image of the Dockerfile in `directory`, which is also the build context.

    Raises ConfigError, before anything runs, for whatever is wrong in the Dockerfile, its context or what was asked,
    and BuildError when a step fails or the whole takes longer than it may.
    """
    doing = _Doing(str(options.dockerfile(directory)), "the plan of the build")
    bound = asyncio.timeout(options.timeout)
    try:
        async with Downloads() as downloads, bound:
            given = await _input(store, directory, options, doing)
            plan = await asyncio.to_thread(make_plan, given)
            if fetched := await _fetched(plan, downloads, doing):
                plan = await asyncio.to_thread(make_plan, replace(given, fetched=fetched))
            building = _Building(store, plan, options, downloads, doing, bound)
            image = await building.stage(plan.target)
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise BuildError(doing.where, doing.text, _TOO_LONG, step=doing.step) from error
    return BuiltImage(image.name, image.config, image.created, building.ran)


async def check_build(store: ImageStore, directory: Path, options: BuildOptions = _PLAIN) -> str | None:
    """Plan a build and run nothing; the name of an image it needs and the store lacks, or None.

    Raises ConfigError for whatever is wrong in the Dockerfile or its context.
    """
    path = options.dockerfile(directory)
    dockerfile = read_dockerfile(path)
    images: dict[str, ImageInfo] = {}
    for name in base_images(dockerfile, options):
        info = await find_image(store, name)
        if info is None:
            return name
        images[name] = info
    await asyncio.to_thread(lambda: make_plan(PlanInput(dockerfile, Context(directory, path), images, options)))
    return None


def base_images(dockerfile: Dockerfile, options: BuildOptions = _PLAIN) -> tuple[str, ...]:
    """The images a build takes from the store. Raises ConfigError for what `needed` does."""
    return tuple(needed(dockerfile, options).images)


async def _input(store: ImageProvider, directory: Path, options: BuildOptions, doing: _Doing) -> PlanInput:
    """What the plan is made of. Raises ConfigError for an image that is not there and cannot be pulled."""
    path = options.dockerfile(directory)
    dockerfile = read_dockerfile(path)
    images: dict[str, ImageInfo] = {}
    for name, where in needed(dockerfile, options).images.items():
        doing.where, doing.text = where, f"the pull of {name}"
        try:
            images[name] = await ensure_image(store, name)
        except ConfigError as error:
            place = "" if name == options.base else f"{where}: "
            raise ConfigError(*(f"{place}{problem}" for problem in error.problems)) from error
    context = await asyncio.to_thread(Context, directory, path)
    return PlanInput(dockerfile, context, images, options)


async def _fetched(plan: Plan, downloads: Downloads, doing: _Doing) -> dict[str, str]:
    """The SHA-256 of every file an ADD takes from the network without saying it."""
    found: dict[str, str] = {}
    for step, url in plan.unknown:
        doing.where, doing.text = step.where, step.text
        try:
            found[url] = (await downloads.fetch(url))[1]
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
    doing: _Doing
    bound: asyncio.Timeout
    ran: int = 0
    done: set[str] = field(default_factory=set)

    async def stage(self, stage: StagePlan) -> ImageInfo:
        """The image of a stage, found or made."""
        async with held(self.store, stage.name):
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
            async with held(self.store, step.name):
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
        self.doing.where, self.doing.text, self.doing.step = step.where, step.text, place
        action = step.action
        try:
            async with Gatherer(self.store, self.downloads) as gatherer, opened(self.store, source) as sandbox:
                await _make_directories(sandbox, step.directories)
                if isinstance(action, RunCommand):
                    await self._run(sandbox, gatherer, step, action, place)
                else:
                    await copy_files(sandbox, action, await gatherer.trees(action.materials, action.exclude))
                await self._commit(sandbox, step.name, step.config)
        except (BuildError, SandboxLost):
            raise
        except (SandboxError, *UNREADABLE) as error:
            raise BuildError(step.where, step.text, str(error), step=place) from error
        self.ran += 1

    async def _run(self, sandbox: Sandbox, gatherer: Gatherer, step: Step, action: RunCommand, place: str) -> None:
        await make_directory(sandbox, action.workdir, "")  # a base's own WORKDIR need not exist
        mounts = Mounts(self.store, sandbox, gatherer, self.options.secrets)
        async with locked(self.store, action.mounts):
            secrets = await mounts.place(action.mounts)
            if action.script:
                await sandbox.write(SCRIPT, action.script.encode(), 0o755)
            env = {**action.outside, **action.env, **secrets}
            online = self.options.network != NO_NETWORK and not action.offline
            if online:
                await sandbox.set_network(self.options.network)
            result = await self._command(sandbox, action, env)
            if reason := _failure(result):
                raise BuildError(step.where, step.text, reason, _shown(result), place)
            if online:
                await sandbox.set_network(NO_NETWORK)
            if action.mounts:
                await sandbox.stop()  # a process the command left running would go on writing
                await sandbox.start()
                await mounts.take_away()

    async def _command(self, sandbox: Sandbox, action: RunCommand, env: Mapping[str, str]) -> ProgramResult:
        """Run the command of a RUN. What is left of the build's time is its own limit, so that it ends with its output.

        The limit of the whole comes back after a command that kept it.
        """
        end = self.bound.when()
        left = None if end is None else max(end - asyncio.get_running_loop().time(), 0.0)
        self.bound.reschedule(None)
        result = await sandbox.run(action.argv, env, cwd=action.workdir, user=action.user, timeout=left)
        if not result.timed_out:
            self.bound.reschedule(end)
        return result

    async def _finish(self, stage: StagePlan, source: str) -> ImageInfo:
        """Name the last step's disk, with the directories still to be made and the whole configuration."""
        async with opened(self.store, source) as sandbox:
            await _make_directories(sandbox, stage.directories)
            return await self._commit(sandbox, stage.name, stage.config)

    async def _commit(self, sandbox: Sandbox, name: str, config: ImageConfig) -> ImageInfo:
        await sandbox.stop()
        # Another process may have been as fast: what it made is the same, and others may be starting from it already.
        image = await self._found(name) or await self.store.commit(sandbox, name, config)
        self.done.add(name)
        return image


async def _make_directories(sandbox: Sandbox, directories: tuple[NewDirectory, ...]) -> None:
    for new in directories:
        try:
            await make_directory(sandbox, new.path, new.owner)
        except SandboxLost:
            raise
        except SandboxError as error:
            raise BuildError(new.where, f"WORKDIR {new.path}", str(error)) from error


_TOO_LONG = "the build took longer than its time limit allows"


def _failure(result: ProgramResult) -> str:
    """How a command failed; empty when it did not."""
    if result.timed_out:
        return _TOO_LONG
    if result.ok:
        return ""
    return f"ended by signal {result.signal}" if result.signal else f"exit code {result.exit_code}"


def _shown(result: ProgramResult) -> str:
    """The end of both streams; which line came first across them is not known."""
    streams = (tail(result.stdout, _OUTPUT_SHOWN).strip(), tail(result.stderr, _OUTPUT_SHOWN).strip())
    return "\n".join(text for text in streams if text)
