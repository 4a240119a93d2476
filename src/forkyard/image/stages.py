"""Which stages a build needs, what they start from, and what is known before the first of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from forkyard.errors import ConfigError
from forkyard.image.instructions import Arg, Copy, Dockerfile, Run, Stage
from forkyard.image.oci.documents import architecture
from forkyard.image.options import BuildOptions
from forkyard.image.problem import Problem
from forkyard.values import nearest, printable

SCRATCH = "scratch"
PROXIES = frozenset(
    spelled
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
    for spelled in (name, name.lower())
)


@dataclass(frozen=True, slots=True)
class Needed:
    """What a build comes down to: its stages in order, the target last; what each starts from; and images to be had.

    A base is the index of an earlier stage, or the name of an image; `images` says where each is named first.
    """

    arguments: Mapping[str, str]
    stages: tuple[Stage, ...]
    bases: Mapping[int, int | str]
    images: Mapping[str, str]


def needed(dockerfile: Dockerfile, options: BuildOptions) -> Needed:
    """What a build needs.

    Raises ConfigError for every ARG, FROM, `--from` and option that is not possible.
    """
    return _Finder(dockerfile, options).find()


def find_stage(dockerfile: Dockerfile, origin: str, before: int) -> Stage | None:
    """The stage that `--from=origin` of the stage `before` means; None when it is an image. Raises Problem."""
    found = next((stage for stage in dockerfile.stages if stage.source.alias.lower() == origin.lower()), None)
    if found is None and origin.isascii() and origin.isdigit():
        if int(origin[:9]) >= len(dockerfile.stages):
            raise Problem(f"there is no stage {origin[:9]}: the first is 0, the last {len(dockerfile.stages) - 1}")
        found = dockerfile.stages[int(origin)]
    if found is not None and found.index >= before:
        raise Problem(f"the stage {found.name} does not come before this one: move it up")
    return found


def this_platform() -> str:
    """The machine as Docker writes it."""
    return f"linux/{architecture()}"


def _platform_arguments(target: str) -> dict[str, str]:
    values: dict[str, str] = {"TARGETSTAGE": target or "default"}
    for side in ("TARGET", "BUILD"):
        system, machine = this_platform().split("/")
        values |= {f"{side}PLATFORM": this_platform(), f"{side}OS": system, f"{side}ARCH": machine}
        values |= {f"{side}VARIANT": ""}
    return values


class _Finder:
    """Goes from the target back to all it stands on."""

    def __init__(self, dockerfile: Dockerfile, options: BuildOptions) -> None:
        self.dockerfile = dockerfile
        self.options = options
        self.problems: list[str] = []
        self.bases: dict[int, int | str] = {}
        self.images: dict[str, str] = {}

    def find(self) -> Needed:
        target = self.target()
        self.check_arguments()
        arguments = self.arguments()
        if target is not None:
            self.visit(target, arguments)
        if self.problems:
            raise ConfigError(*(printable(problem) for problem in self.problems))
        stages = tuple(stage for stage in self.dockerfile.stages if stage.index in self.bases)
        return Needed(arguments, stages, self.bases, self.images)

    def target(self) -> Stage | None:
        wanted = self.options.target
        if not wanted:
            return self.dockerfile.stages[-1]
        try:
            found = find_stage(self.dockerfile, wanted, len(self.dockerfile.stages))
        except Problem:
            found = None
        if found is None:
            names = [stage.name for stage in self.dockerfile.stages]
            self.problems.append(f"{self.dockerfile.path}: there is no stage {wanted!r}: it has {', '.join(names)}")
        return found

    def check_arguments(self) -> None:
        declared = {name for arg in self.every_arg() for name, _ in arg.names}
        for name in self.options.arguments:
            if name not in declared and name not in PROXIES:
                near = nearest(name, declared)
                mend = f"did you mean {near}?" if near else f"declare it with ARG {name}, or do not give it"
                self.problems.append(f"{self.dockerfile.path}: no ARG takes the build argument {name}: {mend}")

    def every_arg(self) -> Iterator[Arg]:
        yield from self.dockerfile.arguments
        for stage in self.dockerfile.stages:
            yield from (step for step in stage.steps if isinstance(step, Arg))

    def arguments(self) -> dict[str, str]:
        """The values of the ARGs before FROM, over what is always known of the platform."""
        values = _platform_arguments(self.options.target)
        for instruction in self.dockerfile.arguments:
            for name, default in instruction.names:
                try:
                    if name in self.options.arguments:
                        values[name] = self.options.arguments[name]
                    elif default is not None:
                        values[name] = default.expand(values)
                except Problem as error:
                    self.problems.append(f"{self.dockerfile.at(instruction)}: {error}")
        return values

    def visit(self, target: Stage, arguments: Mapping[str, str]) -> None:
        waiting = [target]
        while waiting:
            stage = waiting.pop()
            if stage.index in self.bases:
                continue
            self.bases[stage.index] = ""
            try:
                self.bases[stage.index] = self.start_of(stage, arguments)
            except Problem as error:
                self.problems.append(f"{self.dockerfile.at(stage.source)}: {error}")
            origins = self.origins(stage)
            base = self.bases[stage.index]
            waiting += [*origins, *([self.dockerfile.stages[base]] if isinstance(base, int) else [])]

    def start_of(self, stage: Stage, arguments: Mapping[str, str]) -> int | str:
        wanted = stage.source.platform.expand(arguments)
        if wanted and wanted != this_platform() and not wanted.startswith(f"{this_platform()}/"):
            raise Problem(f"FROM --platform={wanted} is not supported: this machine builds {this_platform()}")
        name = stage.source.image.expand(arguments)
        if not name:
            raise Problem(f"{stage.source.text} names no image")
        for earlier in self.dockerfile.stages[: stage.index]:
            if earlier.source.alias.lower() == name.lower():
                return earlier.index
        if name != SCRATCH and self.options.base is not None:
            name = self.options.base
        self.images.setdefault(name, self.dockerfile.at(stage.source))
        return name

    def origins(self, stage: Stage) -> Iterator[Stage]:
        for step in stage.steps:
            names = [step.origin] if isinstance(step, Copy) else []
            names += [mount.origin for mount in step.mounts] if isinstance(step, Run) else []
            for name in filter(None, names):
                try:
                    found = find_stage(self.dockerfile, name, stage.index)
                except Problem as error:
                    self.problems.append(f"{self.dockerfile.at(step)}: {error}")
                    continue
                if found is None:
                    self.images.setdefault(name, self.dockerfile.at(step))
                else:
                    yield found
