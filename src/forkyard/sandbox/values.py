"""The values that cross the sandbox protocol: what a provider promises, how a sandbox starts, how a command ended."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from forkyard.errors import ConfigError
from forkyard.sandbox.network.policy import NO_NETWORK, Network
from forkyard.values import MIB

OUTPUT_LIMIT = 1 * MIB
READ_LIMIT = 32 * MIB
ARCHIVE_LIMIT = 1024 * MIB
TERMINAL_LIMIT = 65_535  # columns or rows: the kernel counts them in 16 bits


class Feature(StrEnum):
    """What a provider promises; a task that needs an undeclared one is refused before it starts."""

    ISOLATED = "isolated"  # the host's files and processes cannot be seen
    NO_NETWORK = "no_network"  # network "none" is enforced
    ALLOWLIST = "allowlist"  # network "allowlist" is enforced
    PUBLIC_NETWORK = "public_network"  # network "public" can be had
    LIVE_NETWORK = "live_network"  # the network can be changed while a sandbox runs
    NETWORK_RULES = "network_rules"  # requests to hosts with a rule are changed on their way out
    LISTEN = "listen"  # a loopback port inside, served by the host process
    CONNECT = "connect"  # the host process can connect to a loopback port inside
    IMAGES = "images"  # sandboxes start from a named image
    FORK = "fork"  # a stopped sandbox can be forked
    FORK_RUNNING = "fork_running"  # and so can a running one, and a paused one
    PAUSE = "pause"  # every process can be brought to a halt, and go on
    SURVIVES = "survives"  # a sandbox can outlive the process that runs it, as a stopped one
    CHANGES = "changes"  # what differs from the state a sandbox started from can be told, and that state be had
    MOUNTS = "mounts"  # directories of the host can be mounted into a sandbox
    USERS = "users"  # commands can run as any user of the image
    PROCESSES = "processes"  # commands can be spawned: fed, read and killed while they run
    TERMINALS = "terminals"  # and have a terminal
    LIMIT_CPU = "limit_cpu"  # the processor time of a whole sandbox is bounded
    LIMIT_MEMORY = "limit_memory"  # the memory of a whole sandbox is bounded, and it has no swap
    LIMIT_PIDS = "limit_pids"  # the number of processes is bounded
    LIMIT_DISK = "limit_disk"  # what a sandbox writes to its disk is bounded
    LIMIT_FILES = "limit_files"  # each process is bounded in open files and in the size of a file
    LIMIT_OUTPUT = "limit_output"  # what all commands of a sandbox write to their streams is bounded
    COMPOSE = "compose"  # projects of several containers can be brought up, one of which is the sandbox
    GPUS = "gpus"  # graphics processors
    TPU = "tpu"  # tensor processors
    WINDOWS = "windows"  # sandboxes with Windows in them


def _bound(least: float, feature: Feature, words: str) -> Any:
    """A field of `Limits`: its smallest number (a float where fractions are fine), who keeps it, what it bounds."""
    return field(default=None, metadata={"least": least, "feature": feature, "words": words})


NETWORKED = frozenset(
    {
        Feature.ALLOWLIST,
        Feature.PUBLIC_NETWORK,
        Feature.LIVE_NETWORK,
        Feature.NETWORK_RULES,
        Feature.LISTEN,
        Feature.CONNECT,
    }
)
"""What a provider promises whose sandboxes have ports, and the door as their way out."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one sandbox; None leaves the provider's default, which for all but `pids` may be none.

    Raises ConfigError for a number that is no bound. A provider refuses a bound it does not declare.
    """

    cpus: float | None = _bound(0.01, Feature.LIMIT_CPU, "processor time")  # in processors' worth
    memory_mb: int | None = _bound(1, Feature.LIMIT_MEMORY, "memory")  # of all processes together, without swap
    pids: int | None = _bound(8, Feature.LIMIT_PIDS, "number of processes")  # and of threads, at once
    disk_mb: int | None = _bound(1, Feature.LIMIT_DISK, "disk space")  # written beyond what it started from
    open_files: int | None = _bound(64, Feature.LIMIT_FILES, "open files")  # of each process
    file_mb: int | None = _bound(1, Feature.LIMIT_FILES, "file size")  # of each file
    output_mb: int | None = _bound(1, Feature.LIMIT_OUTPUT, "output")  # of all its commands together, kept or not

    def __post_init__(self) -> None:
        problems = [
            f"limits.{name} = {value!r} must be a number of at least {bound.least}; None sets no bound of yours"
            for name, bound in BOUNDS.items()
            if (value := getattr(self, name)) is not None and not bound.takes(value)
        ]
        if problems:
            raise ConfigError(*problems)


@dataclass(frozen=True, slots=True)
class Bound:
    """What is known of one field of `Limits`."""

    least: float
    feature: Feature  # declared by those who keep it
    words: str  # what it bounds of a sandbox

    def takes(self, value: object) -> bool:
        """Whether a value is a bound of this kind."""
        if isinstance(value, bool) or not isinstance(value, int | float if isinstance(self.least, float) else int):
            return False
        return math.isfinite(value) and value >= self.least


BOUNDS: Mapping[str, Bound] = {bound.name: Bound(**bound.metadata) for bound in fields(Limits)}
"""The bounds of a sandbox, by the names of their fields in `Limits`."""


SYSTEM_DIRECTORIES = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr"}
)
"""Directories of "/" on which, and beneath which, nothing can be mounted."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the host that a sandbox sees at `target`, which is made when it is missing.

    What root makes inside belongs to the user who runs the provider (in Docker to the machine's root). A program with
    the set-user-id bit gains nothing inside, but would outside, so no other user of the host should get into `source`.
    `source` is told by its own path, without links. Raises ConfigError.
    """

    source: Path
    target: str
    read_only: bool = False

    def __post_init__(self) -> None:
        problems = []
        if not self.source.is_absolute() or ".." in self.source.parts or "\0" in str(self.source):
            problems.append(f"the source of a mount, {self.source}, must be the absolute path of a directory")
        normal = posixpath.normpath(self.target) if self.target.isprintable() else ""
        if not self.target.startswith("/") or self.target != normal or self.target.startswith("//"):
            problems.append(f"the target of a mount, {self.target!r}, must be an absolute path without '.' and '..'")
        elif (first := self.target.split("/")[1]) in SYSTEM_DIRECTORIES or not first:
            problems.append(f"nothing can be mounted on {self.target!r}, a system directory; take one as '/mnt/data'")
        if problems:
            raise ConfigError(*problems)


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """How a sandbox starts. `env`, `workdir` and `user` override what the image says."""

    image: str = "host"
    name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    network: Network = NO_NETWORK
    limits: Limits = Limits()
    mounts: tuple[Mount, ...] = ()
    survives: bool = False
    """Whether it outlives the process that runs it: when that dies, it is a stopped sandbox with its disk as it was at
    that moment, which no sweep removes. So are its forks; whoever asks for this closes them. Feature `survives`."""


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """One line of a provider's listing. `created` is epoch seconds.

    `state` is "running" or "stopped"; whoever runs a sandbox also knows it as "paused".
    """

    id: str
    name: str | None
    state: str
    image: str
    parent: str | None
    created: float


EndedBy = Literal["oom", "disk", "output"]
"""A limit that processes are killed for: of memory, of the disk, of the output of all commands."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a command ended and what it wrote; of each stream at most the last `output_limit` bytes are kept."""

    exit_code: int  # as in `subprocess`: negative is the number of the signal that ended it
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    stdout_total: int = 0  # bytes written, kept or not
    stderr_total: int = 0
    timed_out: bool = False
    ended_by: EndedBy | None = None
    """The limit it ran into, if it did not end well: while it ran, processes of the sandbox were killed for it, or
    it was not started since the output of its sandbox is used up."""

    @property
    def stdout(self) -> str:
        """Standard output as text, undecodable bytes replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text, undecodable bytes replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def truncated(self) -> bool:
        """Whether bytes of either stream were dropped."""
        return self.stdout_total > len(self.stdout_bytes) or self.stderr_total > len(self.stderr_bytes)

    @property
    def signal(self) -> int | None:
        """The signal that ended the command, if one did."""
        return -self.exit_code if self.exit_code < 0 else None

    @property
    def ok(self) -> bool:
        """Exit code 0 within the time limit."""
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True)
class Terminal:
    """The size of a terminal, in characters. Raises ValueError for what is none."""

    cols: int = 80
    rows: int = 24

    def __post_init__(self) -> None:
        for name, value in (("cols", self.cols), ("rows", self.rows)):
            if not isinstance(value, int) or not 1 <= value <= TERMINAL_LIMIT:
                raise ValueError(f"a terminal's {name} must be from 1 to {TERMINAL_LIMIT}, not {value!r}")


Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between a sandbox and the state it started from.

    `kind` is "added", "modified" (the content, the kind of file, its mode or its owner) or "deleted"; a deleted
    directory stands for all that was in it. The path is absolute; bytes that are no UTF-8 are surrogate escapes.
    """

    path: str
    kind: Literal["added", "modified", "deleted"]
    regular: bool = False  # it is a regular file now and was one before, as far as it existed


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """How an image says that its service is to be watched; 0 and 0.0 leave Docker's default.

    `test` is ("NONE",), ("CMD", program, ...) or ("CMD-SHELL", command). Times are seconds.
    """

    test: tuple[str, ...]
    interval: float = 0.0
    timeout: float = 0.0
    start_period: float = 0.0
    start_interval: float = 0.0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image says of the processes started in it, as in an OCI image's configuration.

    `user` is "name", "uid", "name:group" or "" (root). What follows it is kept for the record and for images made from
    this one: a sandbox starts with its own PID 1 and runs none of it. `ports` are written as "80/tcp".
    """

    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    stop_signal: str = ""
    shell: tuple[str, ...] = ()
    healthcheck: Healthcheck | None = None
    onbuild: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """One image of a provider's store. `created` is epoch seconds."""

    name: str
    config: ImageConfig
    created: float


OnOutput = Callable[[str, bytes], None]
"""Called with "stdout" or "stderr" and each piece of output as it arrives."""
