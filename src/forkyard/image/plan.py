"""What a build comes down to on paper: stages and their steps, each with a key. Nothing is run here.

A step is what changes the disk: one RUN, COPY or ADD, with the WORKDIRs before it. Its key is a chain of hashes over
everything its result depends on, so that a step done once is never done again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forkyard.image.chmod import Chmod
from forkyard.image.context import Source, digest
from forkyard.image.instructions import Mount
from forkyard.sandbox import ImageConfig

BUILD_PREFIX = "build:"
CACHE_PREFIX = "cache:"


@dataclass(frozen=True, slots=True)
class NewDirectory:
    """A WORKDIR to be made, with its missing parents, for the USER of its place in the file."""

    where: str
    path: str
    owner: str

    @property
    def key(self) -> list[str]:
        """What it changes on the disk."""
        return [self.path, self.owner]


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive of the context that an ADD unpacks; `content` is the SHA-256 of its bytes."""

    path: Path
    content: str


@dataclass(frozen=True, slots=True)
class Download:
    """A file that an ADD fetches: `content` is the SHA-256 its bytes must have, or "" until it is known."""

    url: str
    name: str
    content: str
    unpack: bool


@dataclass(frozen=True, slots=True)
class Text:
    """A file whose content stands in the Dockerfile."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """What `pattern` matches in an image; `key` stands for the image's disk."""

    image: str
    key: str
    pattern: str


Material = Source | Archive | Download | Text | Taken


def material_key(material: Material) -> object:
    """What of a material decides the result of its copy."""
    match material:
        case Source():
            return digest([material])
        case Archive():
            return ["archive", material.content]
        case Download():
            return ["download", material.name, material.content, material.unpack]
        case Text():
            return ["text", material.name, hashlib.sha256(material.data).hexdigest()]
        case Taken():
            return ["taken", material.key, material.pattern]


@dataclass(frozen=True, slots=True)
class Mounted:
    """What a RUN sees at `target` while it runs, and never leaves there; "" is no place, for a secret in a variable.

    `materials` are what is in it at first, `name` is that of a cache or a secret.
    """

    mount: Mount
    target: str
    materials: tuple[Source | Taken, ...]
    name: str

    @property
    def key(self) -> object:
        """What of it decides the result of the RUN: never what a cache or a secret holds."""
        mount = self.mount
        return [mount.kind, self.target, self.name, mount.variable, [material_key(one) for one in self.materials]]


@dataclass(frozen=True, slots=True)
class RunCommand:
    """What a RUN does: `env` holds the ENVs and, beneath them, the ARGs; `outside` what is not of the result's key.

    `script` is a program to be put at `parsers.SCRIPT` first; `offline` takes away the network the build has.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    user: str
    mounts: tuple[Mounted, ...] = ()
    offline: bool = False
    script: str = ""
    outside: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> object:
        """What it depends on, beside the disk."""
        mounts = [mount.key for mount in self.mounts]
        return [self.argv, dict(self.env), self.workdir, self.user, mounts, self.offline, self.script]


@dataclass(frozen=True, slots=True)
class CopyFiles:
    """What a COPY or ADD does: `destination` is absolute, and ends in a slash where it must be a directory.

    `owner` is "" where the materials' own stays.
    """

    materials: tuple[Material, ...]
    destination: str
    owner: str
    chmod: Chmod | None
    exclude: tuple[str, ...] = ()

    @property
    def key(self) -> object:
        """What it depends on, beside the disk."""
        chmod = None if self.chmod is None else [self.chmod.octal, self.chmod.clauses]
        return [[material_key(one) for one in self.materials], self.destination, self.owner, chmod, self.exclude]

    @property
    def taken(self) -> tuple[Taken, ...]:
        """What comes out of other images."""
        return tuple(material for material in self.materials if isinstance(material, Taken))


@dataclass(frozen=True, slots=True)
class Step:
    """One change of the disk, made on the result of the step before it."""

    key: str
    where: str
    text: str
    directories: tuple[NewDirectory, ...]
    action: RunCommand | CopyFiles
    config: ImageConfig

    @property
    def name(self) -> str:
        """The image that keeps its result."""
        return f"{CACHE_PREFIX}{self.key}"

    @property
    def images(self) -> tuple[str, ...]:
        """The other images it takes files from."""
        if isinstance(self.action, CopyFiles):
            return tuple(one.image for one in self.action.taken)
        materials = [one for mount in self.action.mounts for one in mount.materials]
        return tuple(one.image for one in materials if isinstance(one, Taken))


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage: `key` names its result, `disk` stands for its files alone.

    `directories` are those still to be made after the last step.
    """

    base: str
    steps: tuple[Step, ...]
    directories: tuple[NewDirectory, ...]
    config: ImageConfig
    key: str
    disk: str

    @property
    def name(self) -> str:
        """The image it becomes."""
        return f"{BUILD_PREFIX}{self.key}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole build: its stages in order, the target last."""

    stages: tuple[StagePlan, ...]

    @property
    def target(self) -> StagePlan:
        """The stage whose image is the result."""
        return self.stages[-1]

    @property
    def unknown(self) -> Iterator[tuple[Step, str]]:
        """The URLs whose content has to be known before the keys mean anything, each with its step."""
        for step in (step for stage in self.stages for step in stage.steps):
            if isinstance(step.action, CopyFiles):
                for material in step.action.materials:
                    if isinstance(material, Download) and not material.content:
                        yield step, material.url

    def stage(self, image: str) -> StagePlan | None:
        """The stage that makes an image, if one does."""
        return next((stage for stage in self.stages if stage.name == image), None)


def hashed(*parts: object) -> str:
    """One hexadecimal number for values that JSON can write."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
