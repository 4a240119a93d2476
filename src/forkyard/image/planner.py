"""From a Dockerfile to a plan: variables expanded, sources read, what is not possible refused, all at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import assert_never

from forkyard.errors import ConfigError
from forkyard.image.context import Context
from forkyard.image.instructions import (
    Arg,
    Cmd,
    Command,
    Copy,
    Dockerfile,
    Entrypoint,
    Env,
    Expose,
    From,
    Instruction,
    Label,
    Maintainer,
    Onbuild,
    Run,
    Shell,
    Stage,
    StopSignal,
    User,
    Volume,
    Watch,
    Workdir,
    Written,
)
from forkyard.image.materials import Materials, absolute
from forkyard.image.options import BuildOptions
from forkyard.image.parsers import parse_trigger
from forkyard.image.plan import CopyFiles, NewDirectory, Plan, RunCommand, StagePlan, Step, hashed
from forkyard.image.problem import Problem
from forkyard.image.stages import PROXIES, Needed, needed
from forkyard.image.words import Word
from forkyard.sandbox import DEFAULT_PATH, ImageConfig, ImageInfo
from forkyard.values import printable

SHELL = ("/bin/sh", "-c")
_FORMAT = 3  # of the keys; raise it when the same Dockerfile comes to build something else


@dataclass(frozen=True, slots=True)
class PlanInput:
    """What a plan is made of: `images` by name, as `stages.needed` lists them; `fetched` the SHA-256 of each URL."""

    dockerfile: Dockerfile
    context: Context
    images: Mapping[str, ImageInfo]
    options: BuildOptions = BuildOptions()
    fetched: Mapping[str, str] = field(default_factory=dict)


def make_plan(given: PlanInput) -> Plan:
    """The stages of a build. Raises ConfigError with every instruction that cannot be carried out."""
    wanted = needed(given.dockerfile, given.options)
    problems: list[str] = []
    made: dict[int, StagePlan] = {}
    arguments: dict[int, dict[str, str]] = {}
    for stage in wanted.stages:
        planner = _StagePlanner(given, wanted, stage, made, arguments)
        made[stage.index] = planner.plan()
        arguments[stage.index] = planner.arguments
        problems += planner.problems
    if problems:
        raise ConfigError(*(printable(problem) for problem in problems))
    return Plan(tuple(made.values()))


class _StagePlanner:
    """Walks the instructions of one stage, keeping what they have set so far."""

    def __init__(
        self,
        given: PlanInput,
        wanted: Needed,
        stage: Stage,
        made: Mapping[int, StagePlan],
        arguments: Mapping[int, Mapping[str, str]],
    ) -> None:
        self.given = given
        self.stage = stage
        self.outside = wanted.arguments
        self.problems: list[str] = []
        base = wanted.bases[stage.index]
        self.arguments: dict[str, str] = {}
        if isinstance(base, int):
            self.base, self.config, self.key = made[base].name, made[base].config, hashed(_FORMAT, made[base].disk)
            self.arguments |= arguments[base]  # ARGs are handed on to stages, never to images
        else:
            info = given.images[base]
            self.base, self.config = info.name, info.config
            self.key = hashed(_FORMAT, info.name, info.created, asdict(info.config))
        self.materials = Materials(given.dockerfile, stage.index, given.context, given.images, made, given.fetched)
        self.config = replace(self.config, env={"PATH": DEFAULT_PATH, **self.config.env})
        self.cmd_is_ours = False
        self.directories: list[NewDirectory] = []
        self.steps: list[Step] = []

    def plan(self) -> StagePlan:
        """The stage, carried out on paper."""
        triggers, self.config = self.config.onbuild, replace(self.config, onbuild=())
        for text in triggers:
            source = self.stage.source
            try:
                self.take(replace(parse_trigger(text, source.line), text=f"ONBUILD {text}"))
            except Problem as error:
                self.problems.append(f"{self.given.dockerfile.at(source)}: ONBUILD {text} of {self.base}: {error}")
        for instruction in self.stage.steps:
            self.take(instruction)
        directories = tuple(self.directories)
        disk = hashed(self.key, "disk", [made.key for made in directories])
        return StagePlan(
            self.base, tuple(self.steps), directories, self.config, hashed(disk, asdict(self.config)), disk
        )

    def take(self, instruction: Instruction) -> None:
        """Carry one instruction out on paper; what is wrong with it joins the problems."""
        try:
            match instruction:
                case Arg():
                    self.arg(instruction)
                case Env() | Label():
                    self.set_pairs(instruction)
                case Workdir():
                    self.workdir(instruction)
                case Entrypoint() | Cmd():
                    self.entry(instruction)
                case Run():
                    self.run(instruction)
                case Copy():
                    self.copy(instruction)
                case From() | Maintainer():  # a FROM began the stage; a MAINTAINER has no effect
                    pass
                case _:
                    self.config = self.configured(instruction)
        except Problem as error:
            self.problems.append(f"{self.given.dockerfile.at(instruction)}: {error}")

    @property
    def values(self) -> dict[str, str]:
        """What a variable expands to here: an ENV hides an ARG of the same name, wherever either stands."""
        return {**self.arguments, **self.config.env}

    def configured(self, instruction: User | Shell | Watch | Onbuild | Volume | StopSignal | Expose) -> ImageConfig:
        """The configuration after an instruction that sets one thing of it."""
        config = self.config
        match instruction:
            case User():
                return replace(config, user=self.named(instruction.user, "USER"))
            case Shell():
                return replace(config, shell=instruction.words)
            case Watch():
                return replace(config, healthcheck=instruction.healthcheck)
            case Onbuild():
                return replace(config, onbuild=(*config.onbuild, instruction.trigger))
            case Volume():
                paths = [self.named(path, "VOLUME") for path in instruction.paths]
                return replace(config, volumes=tuple(sorted({*config.volumes, *paths})))
            case StopSignal():
                return replace(config, stop_signal=self.named(instruction.signal, "STOPSIGNAL"))
            case Expose():
                words = " ".join(port.expand(self.values) for port in instruction.ports).split()
                ports = [port for word in words for port in _ports(word)]
                return replace(config, ports=tuple(sorted({*config.ports, *ports})))
            case _:
                assert_never(instruction)

    def named(self, word: Word, what: str) -> str:
        value = word.expand(self.values)
        if not value:
            raise Problem(f"{what} is empty once its variables are expanded: set them, or write it out")
        return value

    def arg(self, instruction: Arg) -> None:
        values = self.values
        for name, default in instruction.names:
            if name in self.given.options.arguments:
                self.arguments[name] = self.given.options.arguments[name]
            elif default is not None:
                self.arguments[name] = default.expand(values)
            elif name in self.outside:
                self.arguments[name] = self.outside[name]

    def set_pairs(self, instruction: Env | Label) -> None:
        values = self.values
        new = {name.expand(values): value.expand(values) for name, value in instruction.pairs}
        if isinstance(instruction, Label):
            self.config = replace(self.config, labels={**self.config.labels, **new})
            return
        if any(not name or "=" in name for name in new):
            raise Problem("ENV sets a name that is empty or holds '=': write ENV name=value")
        self.config = replace(self.config, env={**self.config.env, **new})

    def workdir(self, instruction: Workdir) -> None:
        path = absolute(self.config.workdir, self.named(instruction.path, "WORKDIR"))
        self.config = replace(self.config, workdir=path)
        self.directories.append(NewDirectory(self.given.dockerfile.at(instruction), path, self.config.user))

    def entry(self, instruction: Entrypoint | Cmd) -> None:
        argv = self.argv(instruction.command)
        if isinstance(instruction, Cmd):
            self.config = replace(self.config, cmd=argv)
            self.cmd_is_ours = True
        else:
            cmd = self.config.cmd if self.cmd_is_ours else ()  # a base's CMD was meant for its own ENTRYPOINT
            self.config = replace(self.config, entrypoint=argv, cmd=cmd)

    def argv(self, command: Command) -> tuple[str, ...]:
        return (*(self.config.shell or SHELL), *command.words) if command.shell else command.words

    def run(self, instruction: Run) -> None:
        values = self.values
        proxies = {name: value for name, value in self.given.options.arguments.items() if name in PROXIES}
        action = RunCommand(
            self.argv(instruction.command),
            values,
            self.config.workdir,
            self.config.user,
            tuple(self.materials.mounted(mount, values, self.config.workdir) for mount in instruction.mounts),
            instruction.network == "none",
            instruction.script,
            {name: value for name, value in proxies.items() if name not in values},
        )
        for mounted in action.mounts:
            if mounted.mount.required and mounted.name not in self.given.options.secrets:
                raise Problem(
                    f"the secret {mounted.name} is required: give it with --secret id={mounted.name},src=FILE"
                )
        self.step(instruction, action)

    def copy(self, instruction: Copy) -> None:
        self.step(instruction, self.materials.copied(instruction, self.values, self.config.workdir))

    def step(self, written: Written, action: RunCommand | CopyFiles) -> None:
        directories = tuple(self.directories)
        self.key = hashed(self.key, type(action).__name__, [made.key for made in directories], action.key)
        where = self.given.dockerfile.at(written)
        self.steps.append(Step(self.key, where, written.text, directories, action, self.config))
        self.directories = []


def _ports(word: str) -> list[str]:
    """`80`, `80/udp` or `8000-8010` as single ports with their protocol."""
    numbers, _, protocol = word.partition("/")
    first, dash, last = numbers.partition("-")
    protocol = protocol.lower() or "tcp"
    last = last if dash else first
    if not all(one.isascii() and one.isdigit() and 0 < int(one[:6]) < 65536 for one in (first, last)):
        raise Problem(f"EXPOSE {word[:40]} is no port: write a number, for example 80 or 53/udp")
    if int(last) < int(first) or protocol not in ("tcp", "udp", "sctp"):
        raise Problem(f"EXPOSE {word[:40]} is no port: write a number, for example 80 or 53/udp")
    return [f"{number}/{protocol}" for number in range(int(first), int(last) + 1)]
