"""What providers have in common: what a command may be, how errors of paths are told, where things are kept."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from forkyard.errors import NotAFile, SandboxError
from forkyard.sandbox.values import ProgramResult

ARGUMENT_LIMIT = 131_071
"""Bytes Linux takes of one argument, or of one environment variable as NAME=value."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of a sandbox whose image says nothing of it."""

_NO_FILE = frozenset({errno.EINVAL, errno.ENXIO, errno.ENODEV})
"""Said of what is no file: by `open_for_read`, by a kernel of sockets and of devices without a driver."""


def check_command(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise ValueError for a command the kernel would not take: empty, a NUL byte, a string over `ARGUMENT_LIMIT`."""
    if not argv:
        raise ValueError("an empty command: give at least the program's name")
    named = [("an argument", word) for word in argv]
    named += [(f"the environment variable {name}", f"{name}={value}") for name, value in env.items()]
    for what, text in named:
        size = len(os.fsencode(text))
        if size > ARGUMENT_LIMIT:
            raise ValueError(f"{what} has {size} bytes, the limit is {ARGUMENT_LIMIT}; pass it in a file or on stdin")
        if "\0" in text:
            raise ValueError(f"{what} holds a NUL byte, which ends it for the kernel")


def path_error(err: OSError, path: str) -> Exception:
    """The error a caller is told of `path`: missing, (no) directory and permission by class, else a SandboxError."""
    if isinstance(err, FileNotFoundError | IsADirectoryError | NotADirectoryError | PermissionError):
        return type(err)(err.errno, err.strerror, path)
    if err.errno in _NO_FILE:
        return NotAFile(f"{path}: {err.strerror or err}")
    return SandboxError(f"{path}: {err.strerror or err}")


def not_started(program: str, err: OSError) -> ProgramResult:
    """A command that could not start, told as a shell tells it: 127 when there is no such file, else 126.

    Raises ValueError when its arguments and environment together are more than the kernel takes.
    """
    if err.errno == errno.E2BIG:
        raise ValueError(f"the arguments and the environment of {program} are together larger than the kernel takes")
    message = f"forkyard: {err.filename or program}: {err.strerror}\n".encode(errors="replace")
    missing = err.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
    return ProgramResult(127 if missing else 126, b"", message, 0, len(message))


def default_home() -> Path:
    """`FORKYARD_HOME`, or `forkyard` in the user's data directory."""
    if home := os.environ.get("FORKYARD_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "forkyard"
