"""What the host does for a mount: opens the source, and, as root, makes a mount of it whose owners are shifted."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox.inside import kernel
from forkyard.sandbox.values import Mount

_CURRENT = -100  # AT_FDCWD; sources are absolute


def check_sources(mounts: tuple[Mount, ...]) -> None:
    """Raise ConfigError unless every source is a directory told by its own path."""
    for mount in mounts:
        try:
            os.close(_opened(mount))
        except OSError as err:
            raise ConfigError(_cannot_be(mount, err)) from err


@contextmanager
def handed_over(mount: Mount, namespace: int | None) -> Iterator[int]:
    """The descriptor that PID 1 is to have (see `inside/mounts.py`); SandboxError when the source cannot be had.

    With a user namespace the host makes the mount; without, PID 1 can.
    """
    fds: list[int] = []
    try:
        fds.append(_opened(mount))
        if namespace is not None:
            fds.append(kernel.clone_mount(fds[0]))
            kernel.confine(fds[1], mount.read_only, namespace)
    except OSError as err:
        _close(fds)
        raise SandboxError(_cannot_be(mount, err)) from err
    try:
        yield fds[-1]
    finally:
        _close(fds)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _opened(mount: Mount) -> int:
    """The source, to which no link leads: whoever may write above it could have it lead elsewhere."""
    flags = os.O_PATH | os.O_DIRECTORY
    return kernel.open_beneath(_CURRENT, str(mount.source), flags, kernel.RESOLVE_NO_SYMLINKS)


def _cannot_be(mount: Mount, err: OSError) -> str:
    why = {
        errno.ELOOP: "its path leads over a link; give the path it has without (Path.resolve())",
        errno.EINVAL: "its file system cannot shift owners; keep it on ext4, xfs, btrfs, or (Linux 6.3) tmpfs",
    }.get(err.errno or 0, err.strerror)
    return f"the directory {mount.source} cannot be mounted on {mount.target}: {why}"
