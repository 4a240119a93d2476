"""The instructions of a Dockerfile as frozen values; each knows the line it began on and how it was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forkyard.image.words import Word
from forkyard.sandbox import Healthcheck

MountKind = Literal["bind", "cache", "secret", "tmpfs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where an instruction stands: the number of its first line, and its text with continuations joined."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command line: `words` of the exec form, or the one text of the shell form, for the SHELL of its place."""

    words: tuple[str, ...]
    shell: bool


@dataclass(frozen=True, slots=True)
class Mount:
    """One `RUN --mount`. `source` is a path in `origin`, which is a stage or an image, or "" for the build context.

    `name` is the id of a cache or a secret, and empty for that of its target; `variable` is the environment variable
    a secret is given in, and then `target` may be None.
    """

    kind: MountKind
    target: Word | None
    origin: str = ""
    source: Word = Word(())
    name: Word = Word(())
    variable: str = ""
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    required: bool = False
    locked: bool = False

    @property
    def owner(self) -> tuple[int, int]:
        """The user and the group that what is mounted belongs to."""
        return self.uid, self.gid


@dataclass(frozen=True, slots=True)
class Inline:
    """A file whose content stands in the Dockerfile."""

    name: str
    content: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class From(Written):
    """`FROM image [AS alias]`."""

    image: Word
    alias: str = ""
    platform: Word = Word(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Arg(Written):
    """`ARG name[=default] ...`; a default of None is none."""

    names: tuple[tuple[str, Word | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Env(Written):
    """`ENV name=value ...` or `ENV name value`."""

    pairs: tuple[tuple[Word, Word], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label(Written):
    """`LABEL name=value ...`."""

    pairs: tuple[tuple[Word, Word], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Written):
    """`RUN [--mount=...] [--network=...] command`; `script` is a heredoc that names its own interpreter."""

    command: Command
    mounts: tuple[Mount, ...] = ()
    network: str = "default"
    script: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Written):
    """`COPY` or `ADD`: `origin` is a stage or an image, or "" for the build context.

    `unpack` says whether archives among the sources are unpacked.
    """

    name: str
    sources: tuple[Word, ...]
    files: tuple[Inline, ...]
    destination: Word
    chown: Word
    chmod: Word
    exclude: tuple[Word, ...] = ()
    origin: str = ""
    checksum: Word = Word(())
    unpack: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workdir(Written):
    """`WORKDIR path`."""

    path: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class User(Written):
    """`USER name[:group]`."""

    user: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrypoint(Written):
    """`ENTRYPOINT`: kept on record, never run."""

    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Cmd(Written):
    """`CMD`: kept on record, never run."""

    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell(Written):
    """`SHELL`: the words before a command in shell form."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch(Written):
    """`HEALTHCHECK`: kept on record, never run."""

    healthcheck: Healthcheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Onbuild(Written):
    """`ONBUILD instruction`: kept on record, and carried out where the image is built upon."""

    trigger: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume(Written):
    """`VOLUME`: kept on record; the directory is part of the disk like every other."""

    paths: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expose(Written):
    """`EXPOSE`: kept on record."""

    ports: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSignal(Written):
    """`STOPSIGNAL`: kept on record."""

    signal: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintainer(Written):
    """`MAINTAINER`: accepted, and of no effect; an image's label says the same today."""

    author: str


Instruction = (
    From
    | Arg
    | Env
    | Label
    | Run
    | Copy
    | Workdir
    | User
    | Entrypoint
    | Cmd
    | Shell
    | Watch
    | Onbuild
    | Volume
    | Expose
    | StopSignal
    | Maintainer
)


@dataclass(frozen=True, slots=True)
class Stage:
    """One FROM and what follows it, up to the next."""

    index: int
    source: From
    steps: tuple[Instruction, ...]

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return self.source.alias or str(self.index)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A whole file: `arguments` are the ARGs before the first FROM; there is at least one stage."""

    path: str
    arguments: tuple[Arg, ...]
    stages: tuple[Stage, ...]

    def at(self, written: Written) -> str:
        """Where an instruction stands, as it is named in messages."""
        return f"{self.path}:{written.line}"
