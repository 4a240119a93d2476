"""What clients send and get of commands and searches over disks; the names are the wire's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from forkyard.sandbox import ARGUMENT_LIMIT
from forkyard.server.disks.values import Relative, Request, Text, Wire, relative


def _command(text: str) -> str:
    size = len(text.encode(errors="surrogatepass"))
    if not text or "\0" in text or size >= ARGUMENT_LIMIT:
        raise ValueError(f"a command is a text of 1 to {ARGUMENT_LIMIT - 1} bytes without NUL; put more into a file")
    return text


Command = Annotated[str, AfterValidator(_command)]
Count = Annotated[int, Field(ge=0, le=1000)]
Patterns = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=1024)]], Field(max_length=100)]


class ExecDisk(Request):
    """The body of POST exec."""

    command: Command


class ExecMount(Request):
    """One disk of an exec over several."""

    disk: Text
    subdirectory: Relative | None = None
    read_only: bool = False
    conditional: bool = False
    queue_ms: int | None = Field(default=None, ge=0, le=300_000)
    checkout_paths: list[Relative] | None = Field(default=None, max_length=100)

    @model_validator(mode="after")
    def _one_way(self) -> ExecMount:
        if self.read_only and (self.queue_ms is not None or self.checkout_paths is not None):
            raise ValueError("queueMs and checkoutPaths are for writing: leave them out with readOnly")
        return self


class Exec(Request):
    """The body of POST /api/exec: disks by the path each has beneath /mnt/archil, and a command."""

    disks: dict[Relative, Text | ExecMount] = Field(min_length=1, max_length=64)
    command: Command


class Timing(Wire):
    """Milliseconds: in all, until the command could start, and of the command."""

    total_ms: int
    queue_ms: int
    execute_ms: int


class ExecResult(Wire):
    """How a command ended; of each stream the last 128 KiB are kept, and `truncated` tells that there was more."""

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool
    timing: Timing


class Grep(Request):
    """The body of POST grep; pattern, globs and types follow ripgrep's rules."""

    directory: Annotated[str, StringConstraints(max_length=1024)]
    pattern: Annotated[str, StringConstraints(max_length=16_384)]
    recursive: bool = False
    max_duration_seconds: int = Field(default=30, ge=1)
    concurrency: int = Field(default=50, ge=1)
    max_results: int = Field(default=1000, ge=1, le=100_000)
    ignore_case: bool = False
    multiline: bool = False
    globs: Patterns = []
    types: Patterns = []
    types_not: Patterns = []
    context_before: Count | None = None
    context_after: Count | None = None

    @model_validator(mode="after")
    def _within(self) -> Grep:
        if path := self.directory.strip("/"):
            relative(path)
        if "\0" in self.pattern or any("\0" in each for each in (*self.globs, *self.types, *self.types_not)):
            raise ValueError("no pattern, glob or type holds a NUL character")
        return self


class GrepMatch(Wire):
    """A matching line; `endLine` comes with `multiline` alone."""

    file: str
    line: int
    text: str
    end_line: int | None = None


class GrepLine(Wire):
    """A line of a group."""

    line: int
    text: str
    match: bool


class GrepGroup(Wire):
    """Lines of a file that follow each other, matches and their context."""

    file: str
    lines: list[GrepLine]


Reason = Literal["completed", "incomplete", "max_results", "deadline", "list_failed"]


class GrepResult(Wire):
    """What was found, and why no more; `groups` comes with context alone."""

    matches: list[GrepMatch]
    stopped_reason: Reason
    files_scanned: int
    containers_dispatched: int
    compute_seconds_used: float
    duration_ms: int
    listing_ms: int
    grep_ms: int
    groups: list[GrepGroup] | None = None
