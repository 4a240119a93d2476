"""PID 1 of a container, or a process beside that of somebody else's (a service of a compose project)."""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import HERE

if TYPE_CHECKING:
    from forkyard.sandbox.inside import beside, kernel, oom, pid1, rootfs, routes, starting, wire
else:
    from inside import beside, kernel, oom, pid1, rootfs, routes, starting, wire

MEETING = f"{HERE}/run/agent"
_PUT_BY_DOCKER = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
_HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
_LARGEST = 1 << 20

__all__ = ["main", "routes"]  # the latter for who closes the ways out of a container


def main() -> None:
    """Call the host, and serve it until it goes away."""
    starting.hear_all_signals()
    os.umask(0o022)
    os.chdir("/")
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(MEETING)
    try:
        (Agent if os.getpid() == 1 else Companion)(sock).serve()
    except Exception as err:  # noqa: BLE001 - whatever it is, the host is told; it finds the socket closed after it
        with suppress(OSError):
            wire.send(sock, {"id": 0, "event": "failed", "fds": 0, "message": f"{type(err).__name__}: {err}"}, [])
    finally:
        os._exit(0)


class Agent(pid1.Pid1):
    """Speaks the protocol of PID 1 (see there); to boot is to close the walls of a container that Docker has built."""

    def serve(self) -> None:
        """As PID 1 elsewhere; when the host has gone, its disk is left as a stop leaves it."""
        super().serve()
        with suppress(ProcessLookupError):  # nothing but this process runs
            os.kill(-1, signal.SIGKILL)
        _keep()

    def _steer(self, message: dict[str, Any]) -> None:
        if message["op"] == "boot":
            self._boot(message)
            return
        super()._steer(message)
        if message["op"] == "halt":
            _keep()
        elif message["op"] == "go":
            _forget()

    def _boot(self, message: dict[str, Any]) -> None:
        _uncover(message["volumes"])
        for target, read_only in message["mounts"]:
            with suppress(PermissionError):  # where the machine forbids it, no new privileges and no devices must do
                kernel.confine(target, read_only)
        self._oom_score = oom.open_score() if message["full_memory"] else None
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), min(rootfs.OPEN_FILES, hard)))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        rootfs.set_limits(message["rlimits"])
        kernel.drop_bounding_set(rootfs.CAPABILITIES)
        rootfs.give_up_rights()


class Companion(beside.Beside):
    """The same beside a service: what Docker gave the container stays as it is, and so do the service's processes."""

    def _steer(self, message: dict[str, Any]) -> None:
        if message["op"] != "boot":
            super()._steer(message)
        else:
            kernel.set_dumpable(False)


def _uncover(volumes: list[str]) -> None:
    """Take away what is mounted over the container's disk and does not belong to it: forks have what is on the disk.

    What stays is Docker's /proc, /sys and /dev. Where the machine forbids it (AppArmor, SELinux) the mounts stay too.
    """
    for path in (*_PUT_BY_DOCKER, *volumes, f"{HERE}/run", HERE):
        with suppress(OSError):
            kernel.unmount(path)
    for path in _PUT_BY_DOCKER:
        with suppress(OSError):
            os.replace(f"{HERE}/{os.path.basename(path)}", path)
    _forget()
    with suppress(OSError):
        if os.stat("/etc/hosts", follow_symlinks=False).st_size == 0:  # made by Docker to mount its own there
            with open("/etc/hosts", "w") as file:
                file.write(_HOSTS)


def _keep() -> None:
    """Put aside, for a fork, the files that Docker hides beneath empty ones of its own in each container of an image.

    It makes room for what the next start mounts as well. Only what is halted, or about to end, sees it.
    """
    with suppress(OSError):
        if not stat.S_ISDIR(os.stat(HERE, follow_symlinks=False).st_mode):
            os.unlink(HERE)
    with suppress(OSError):
        os.mkdir(HERE, 0o700)
    for path in _PUT_BY_DOCKER:
        with suppress(OSError):
            _copy(path, f"{HERE}/{os.path.basename(path)}")


def _forget() -> None:
    for path in _PUT_BY_DOCKER:
        with suppress(OSError):
            os.unlink(f"{HERE}/{os.path.basename(path)}")
    with suppress(OSError):
        os.rmdir(HERE)


def _copy(path: str, target: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            return
        with suppress(FileNotFoundError):
            os.unlink(target)
        copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(copy, "wb") as kept:
            kept.write(file.read(_LARGEST))
            os.fchmod(copy, stat.S_IMODE(status.st_mode))
