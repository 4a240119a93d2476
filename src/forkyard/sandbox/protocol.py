"""What a sandbox is: the protocol every provider keeps.

A provider makes sandboxes; a sandbox runs commands and moves files; everything else is a function over these
methods. A provider is checked by `forkyard check provider NAME` (the package `contract`), which states each promise.
The values that cross it are in `forkyard.sandbox.values`. What only some can do has protocols of its own: of sandboxes
in `abilities`, of providers in `composing`, `keeping` and `findings`.

Paths are POSIX paths inside the sandbox; a relative path is taken from the sandbox's working directory. Times are
seconds. Everything that comes out of a sandbox is hostile: bytes are bounded, links never lead to the host.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from forkyard.sandbox.network.policy import Network
from forkyard.sandbox.network.visits import Visit
from forkyard.sandbox.values import (
    ARCHIVE_LIMIT,
    OUTPUT_LIMIT,
    READ_LIMIT,
    Change,
    Feature,
    ImageConfig,
    ImageInfo,
    OnOutput,
    ProgramResult,
    SandboxInfo,
    SandboxSpec,
    Stream,
    Terminal,
)


class Process(Protocol):
    """A command that runs: it lives until it ends, is killed, or its sandbox ends, whoever looks on.

    Cancelling whoever waits for it, reads it or writes to it does nothing to it. Once its sandbox has ended, `wait`
    raises SandboxLost.
    """

    async def write(self, data: bytes) -> None:
        """Give it input, and wait while it does not take it.

        Raises BrokenPipeError when its end was told, when the command has ended, and, where that can be seen (in gVisor
        it cannot), when nobody in its tree has its input open any more.
        """
        ...

    async def close_stdin(self) -> None:
        """End its input; at a terminal the key for that is pressed (Ctrl-D). Twice is fine."""
        ...

    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Its output in pieces, as it comes; with a terminal all of it is "stdout".

        It is pulled: a command whose output nobody pulls comes to a halt in a write once the pipe is full. Every piece
        is given once, so a later call goes on where one before was left. Ends when the command has ended and what
        it wrote is given, or when nobody can write any more; what children that outlive it write is thrown away.
        """
        ...

    async def resize(self, cols: int, rows: int) -> None:
        """Give its terminal another size, of which it is told. ValueError for a size that is none, or no terminal."""
        ...

    async def kill(self) -> None:
        """Kill the whole tree it started, detached children too; it has ended when this returns.

        One that has ended is left alone, and so is what it left running.
        """
        ...

    async def wait(self) -> ProgramResult:
        """How it ended, once it has. No bytes of its output are in it, only their numbers."""
        ...


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

        Raises ValueError for an unknown `user`, an empty command, and strings no kernel takes (`ARGUMENT_LIMIT`);
        FileNotFoundError or NotADirectoryError for a `cwd` that is missing or no directory.
        """
        ...

    async def spawn(
        self,
        argv: Sequence[str] | str,
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | None = None,
        user: str | None = None,
        terminal: Terminal | None = None,
    ) -> Process:
        """Start a command, and return once it has started. Feature `processes`; with a terminal also `terminals`.

        All but input, output and deadline is as with `run`, errors too: one that does not exist is a process that has
        ended with 127, and said so on its standard error.
        """
        ...

    async def read(self, path: str, max_bytes: int = READ_LIMIT) -> bytes:
        """The content of a regular file.

        Raises FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, TooLarge when it is larger
        than `max_bytes` (size and limit named, without reading it), and NotAFile for whatever else is no file.
        """
        ...

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole file as root, creating its parent directories; an existing file is replaced at once.

        Nobody sees half of it, and a write that fails leaves what was there.
        Raises IsADirectoryError for the path of a directory, NotADirectoryError when a file is in the way.
        """
        ...

    async def pull(self, path: str, exclude: Sequence[str] = (), max_bytes: int = ARCHIVE_LIMIT) -> bytes:
        """A tar archive of the file or directory tree at `path`.

        Member names are relative to `path` (a single file is a member of its own name). Links are kept as links,
        modes as modes; a further name of a file in the archive is a hard link to the first. Extended attributes
        (`user.*`, capabilities and access lists, where the provider has them) are PAX records `SCHILY.xattr.NAME`.

        A member is left out, with all beneath it, when a pattern of `exclude` matches its whole name or the last part
        of it. Patterns are those of `fnmatch`: `*` and `?` match "/" as well, `[...]` and `[!...]` one character of a
        set, and case matters. Raises FileNotFoundError, NotADirectoryError, and TooLarge over `max_bytes`.
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
        had, SandboxError is raised and the sandbox reaches nothing. A network with a name server of its own has
        /etc/resolv.conf to itself: what was there is put back when the network goes or the sandbox stops, and whatever
        was written there meanwhile is lost; it is no change of the sandbox's.
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

    async def is_quiet(self) -> bool:
        """Whether no process runs in it but the provider's own, not even a halted one; False when it cannot be told.

        SandboxError when it is stopped.
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
