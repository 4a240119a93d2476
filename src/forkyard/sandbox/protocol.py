"""What a sandbox is: the protocol every provider keeps, and the values that cross it.

A provider makes sandboxes; a sandbox runs commands and moves files; everything else is a function over these
methods. A provider is checked by `forkyard check provider NAME` (the package `contract`), which states each promise.

Paths are POSIX paths inside the sandbox; a relative path is taken from the sandbox's working directory. Times are
seconds. Everything that comes out of a sandbox is hostile: bytes are bounded, links never lead to the host.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Literal, Protocol, Self, runtime_checkable

from forkyard.errors import ConfigError
from forkyard.sandbox.network.policy import NO_NETWORK, Network
from forkyard.sandbox.network.visits import Visit
from forkyard.values import MIB

OUTPUT_LIMIT = 1 * MIB
READ_LIMIT = 32 * MIB
ARCHIVE_LIMIT = 1024 * MIB


class Feature(StrEnum):
    """What a provider promises; a task that needs an undeclared one is refused before it starts."""

    ISOLATED = "isolated"  # the host's files and processes cannot be seen
    NO_NETWORK = "no_network"  # network "none" is enforced
    ALLOWLIST = "allowlist"  # network "allowlist" is enforced
    PUBLIC_NETWORK = "public_network"  # network "public" can be had
    LIVE_NETWORK = "live_network"  # the network can be changed while a sandbox runs
    LISTEN = "listen"  # a loopback port inside, served by the host process
    CONNECT = "connect"  # the host process can connect to a loopback port inside
    IMAGES = "images"  # sandboxes start from a named image
    FORK = "fork"  # a stopped sandbox can be forked
    FORK_RUNNING = "fork_running"  # and so can a running one, and a paused one
    PAUSE = "pause"  # every process can be brought to a halt, and go on
    CHANGES = "changes"  # what differs from the state a sandbox started from can be told, and that state be had
    USERS = "users"  # commands can run as any user of the image
    LIMIT_CPU = "limit_cpu"  # the processor time of a whole sandbox is bounded
    LIMIT_MEMORY = "limit_memory"  # the memory of a whole sandbox is bounded, and it has no swap
    LIMIT_PIDS = "limit_pids"  # the number of processes is bounded
    LIMIT_DISK = "limit_disk"  # what a sandbox writes to its disk is bounded
    LIMIT_FILES = "limit_files"  # each process is bounded in open files and in the size of a file


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one sandbox; None leaves the provider's default, which for all but `pids` may be none.

    Raises ConfigError for a number that is no bound. A provider refuses a bound it does not declare.
    """

    cpus: float | None = None  # processors' worth of time
    memory_mb: int | None = None  # of all processes together, without swap
    pids: int | None = None  # processes and threads at once
    disk_mb: int | None = None  # what it writes, beyond the image or template it started from
    open_files: int | None = None  # of each process
    file_mb: int | None = None  # size of each file

    def __post_init__(self) -> None:
        least = {"cpus": 0.01, "memory_mb": 1, "pids": 8, "disk_mb": 1, "open_files": 64, "file_mb": 1}
        given = {name: getattr(self, name) for name in least}
        problems = [
            f"limits.{name} = {value!r} must be a number of at least {least[name]}; None sets no bound of yours"
            for name, value in given.items()
            if value is not None and not _is_bound(value, least[name], name == "cpus")
        ]
        if problems:
            raise ConfigError(*problems)


def _is_bound(value: object, least: float, fractions: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float if fractions else int):
        return False
    return math.isfinite(value) and value >= least


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


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a command ended and what it wrote; of each stream at most the last `output_limit` bytes are kept."""

    exit_code: int  # as in `subprocess`: negative is the number of the signal that ended it
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    stdout_total: int = 0  # bytes written, kept or not
    stderr_total: int = 0
    timed_out: bool = False
    ended_by: Literal["oom", "disk"] | None = None
    """The limit it ran into, if it did not end well: while it ran, processes of the sandbox were killed for it."""

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
class Change:
    """One difference between a sandbox and the state it started from.

    `kind` is "added", "modified" (the content, the kind of file, its mode or its owner) or "deleted"; a deleted
    directory stands for all that was in it. The path is absolute; bytes that are no UTF-8 are surrogate escapes.
    """

    path: str
    kind: Literal["added", "modified", "deleted"]
    regular: bool = False  # it is a regular file now and was one before, as far as it existed


OnOutput = Callable[[str, bytes], None]
"""Called with "stdout" or "stderr" and each piece of output as it arrives."""


@runtime_checkable
class Sandbox(Protocol):
    """One isolated machine. Tasks, harnesses and graders know it as `runtime`.

    Every method raises `SandboxLost` when the sandbox has ended and `SandboxError` when the machine (not the
    command) fails. Whoever opened a sandbox closes it; passing one in means borrowing.
    """

    @property
    def id(self) -> str:
        """The provider's identifier of this sandbox."""
        ...

    @property
    def info(self) -> SandboxInfo:
        """What a listing would say of it."""
        ...

    async def run(
        self,
        argv: Sequence[str] | str,
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT,
        on_output: OnOutput | None = None,
    ) -> ProgramResult:
        """Run a command to its end: a list is never touched by a shell, a string is given to `sh -c`.

        `env` is added to the sandbox's environment. Returns when the command itself ends; children that keep its
        output open live on until the sandbox ends. At the deadline, or when the caller is cancelled, the whole
        tree the command started is killed, detached children too, and the result says `timed_out`. A command that
        does not exist exits 127, one that may not be executed 126. Output past `output_limit` drops the oldest
        bytes. `stdin` is followed by end of file. When `on_output` raises, the tree is killed and the error raised on.

        Raises ValueError for an unknown `user`, an empty command, and a string no kernel takes (`ARGUMENT_LIMIT`);
        FileNotFoundError or NotADirectoryError for a `cwd` that is missing or no directory.
        """
        ...

    async def read(self, path: str, max_bytes: int = READ_LIMIT) -> bytes:
        """The content of a regular file.

        Raises FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, and SandboxError when it is
        larger than `max_bytes` (size and limit named, without reading it) or not a regular file.
        """
        ...

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole file as root, creating its parent directories; an existing file is replaced.

        Raises IsADirectoryError for the path of a directory, NotADirectoryError when a file is in the way.
        """
        ...

    async def pull(self, path: str, exclude: Sequence[str] = (), max_bytes: int = ARCHIVE_LIMIT) -> bytes:
        """A tar archive of the file or directory tree at `path`.

        Member names are relative to `path` (a single file is a member of its own name). Links are kept as links,
        modes as modes; a further name of a file in the archive is a hard link to the first. Extended attributes
        (`user.*`, capabilities and access lists, where the provider has them) are PAX records `SCHILY.xattr.NAME`.
        `exclude` holds glob patterns on member names. Raises FileNotFoundError, NotADirectoryError, and SandboxError
        over `max_bytes`.
        """
        ...

    async def push(self, archive: bytes, path: str = "/", *, layer: bool = False) -> None:
        """Unpack a tar archive into the directory `path` (created if missing), as root.

        Hard links and extended attributes are as in `pull`; an attribute that the sandbox may not have is left out.

        With `layer` the archive is (a part of) a layer of an OCI image: a member `.wh.NAME` deletes NAME, a member
        `.wh..wh..opq` empties its directory, a member replaces what is of another kind, and devices are left out.

        Raises SandboxError, with nothing written outside `path`, when a member is absolute, climbs with `..`, or
        passes through a link that leaves it; devices are refused; and when a file is in the way of `path`.
        """
        ...

    async def listen(self, port: int) -> socket.socket:
        """A listening TCP socket on 127.0.0.1:`port` of the sandbox's own loopback, served by the host process."""
        ...

    async def connect(self, port: int) -> socket.socket:
        """A non-blocking TCP socket connected to 127.0.0.1:`port` of the sandbox's own loopback.

        Raises ConnectionError when nothing accepts there. `forkyard.sandbox.forwarded` serves such a port outside.
        """
        ...

    async def set_network(self, network: Network) -> None:
        """Reach another network from now on: connections it does not allow are cut before this returns.

        A stopped sandbox reaches it once it is started; a fork starts with the network of its source. When it cannot be
        had, SandboxError is raised and the sandbox reaches nothing.
        """
        ...

    @property
    def visits(self) -> tuple[Visit, ...]:
        """The hosts that were asked for and what became of it, as far as the provider sees and keeps it (bounded)."""
        ...

    async def fork(self, name: str | None = None) -> Sandbox:
        """A running copy of this sandbox: same files, own everything else. Of processes and memory nothing is copied.

        With the feature `fork_running` the source may run or be paused. Its processes are brought to a halt while
        its files are copied, so that the copy is one moment of its disk: as consistent as a disk after a power cut.
        Without the feature a source that is not stopped is a SandboxError.
        """
        ...

    async def pause(self) -> None:
        """Bring every process to a halt until `resume`; a paused sandbox stays as it is. Feature `pause`.

        Meanwhile it can be read, forked, stopped and closed; whatever would act in it is a SandboxError. Commands
        under way come to a halt as well, and their deadlines do not wait for them. SandboxError when it is stopped.
        """
        ...

    async def resume(self) -> None:
        """Let every process go on that `pause` brought to a halt; a running sandbox stays as it is."""
        ...

    async def changes(self) -> list[Change]:
        """What differs from the image or template this sandbox started from, by path. Feature `changes`.

        Works in every state; of a running one it is what was seen while looking. Times alone, extended attributes and
        what is beneath /dev, /proc and /sys are no changes. SandboxError when there are more than can be told.
        """
        ...

    async def pristine(self) -> Sandbox:
        """A new running sandbox in the state this one started from, for comparison. Feature `changes`."""
        ...

    async def stop(self) -> None:
        """End every process and seal the disk: the sandbox becomes a template that can be forked or started.

        A stopped sandbox stays as it is.
        """
        ...

    async def start(self) -> None:
        """Bring a stopped sandbox up again on its own disk; a running one stays as it is."""
        ...

    async def close(self) -> None:
        """End the sandbox and forget its disk (forks keep what they share). Closing twice is fine."""
        ...


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


class ImageStore(Protocol):
    """A provider with the feature `images`: an image is a sealed disk with a name and a configuration.

    Two images need no download: "scratch", an empty root, and, where the provider has it, "host", the machine's
    own /usr.
    """

    async def images(self) -> list[ImageInfo]:
        """Every image of the store, by name."""
        ...

    async def image(self, name: str) -> ImageInfo | None:
        """One image, or None."""
        ...

    async def commit(self, sandbox: Sandbox, name: str, config: ImageConfig) -> ImageInfo:
        """Seal the disk of a stopped sandbox as an image; an image of that name is replaced."""
        ...

    async def remove_image(self, name: str) -> None:
        """Forget an image; sandboxes made from it keep what they share. ConfigError when there is none."""
        ...

    async def prune_images(self, prefix: str) -> list[str]:
        """Forget the images whose name begins with `prefix` and on which nothing else stands; their names."""
        ...


class Provider(Protocol):
    """Makes sandboxes. Leaving it as an async context manager closes it."""

    async def __aenter__(self) -> Self:
        """Nothing is started before it is needed."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None, /
    ) -> None:
        """As `close`."""
        ...

    @property
    def name(self) -> str:
        """The name used on the command line."""
        ...

    @property
    def features(self) -> frozenset[Feature]:
        """What is promised on this machine."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A running sandbox. Raises ConfigError for an unknown image or a name in use."""
        ...

    async def open(self, id_or_name: str) -> Sandbox:
        """A stopped sandbox kept earlier, by id or name. Raises ConfigError when there is none."""
        ...

    async def sandboxes(self) -> list[SandboxInfo]:
        """Every sandbox of this provider's store, those of other processes too."""
        ...

    async def sweep(self) -> list[str]:
        """Remove what dead owners left behind; returns one sentence for each thing removed."""
        ...

    async def close(self) -> None:
        """End every sandbox this process runs; stopped named sandboxes stay."""
        ...


class ImageProvider(Provider, ImageStore, Protocol):
    """A provider with the feature `images`."""
