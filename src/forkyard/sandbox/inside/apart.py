"""A process in a sandbox, and yet apart from those that run there: it starts commands they have no hold on.

    the same        processes, network, users, limits, and every file of the disk
    its own         some directories, which are in memory, and empty at first

Whoever was there before is in a domain of Landlock, and this process is not: so it cannot send a signal to it or what
it starts, trace them, or enter their mounts, descriptors and memory by /proc. The other way round all of it goes.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from . import kernel, marks, rootfs, wire
from .beside import Beside

_GROUPS = 8
_ROUNDS = 1000


def stand(fd: int) -> None:
    """Enter the namespaces that come as descriptors over `fd`, and serve from within; returns when that has ended."""
    sock = socket.socket(fileno=fd)
    try:
        _enter(sock)
        pid = os.fork()  # only a child is in another namespace of processes
    except OSError as err:
        _refuse(sock, err)
        return
    if pid == 0:
        _serve(sock)
    sock.close()
    with suppress(ChildProcessError):  # reaped by the kernel, as all of the spawner's descendants out here
        os.waitpid(pid, 0)


def _enter(sock: socket.socket) -> None:
    """Come under the limits and into the namespaces of a sandbox."""
    room = socket.CMSG_SPACE(4 * (len(kernel.NAMESPACES) + _GROUPS))
    _, control, _, _ = sock.recvmsg(1, room, wire._CLOEXEC)
    fds = wire.received_fds(control)
    namespaces, groups = fds[: len(kernel.NAMESPACES)], fds[len(kernel.NAMESPACES) :]
    if len(namespaces) < len(kernel.NAMESPACES):
        raise OSError(errno.EMFILE, "descriptors were lost")
    for group in groups:
        os.write(group, b"0")
    for namespace, kind in zip(namespaces, kernel.NAMESPACES.values(), strict=True):
        kernel.enter_namespace(namespace, kind)
    for fd in fds:
        os.close(fd)


def _serve(sock: socket.socket) -> None:
    apart = None
    try:
        apart = Apart(sock)
        apart.serve()
    except Exception as err:  # noqa: BLE001 - whatever it is, the host is told; it finds the socket closed after it
        _refuse(sock, err)
    finally:
        if apart is not None:
            apart.end_all()
        os._exit(0)


def _refuse(sock: socket.socket, err: Exception) -> None:
    with suppress(OSError):
        wire.send(sock, {"id": 0, "event": "failed", "fds": 0, "message": f"{type(err).__name__}: {err}"}, [])


class Apart(Beside):
    """Speaks the protocol of PID 1. "boot" {own, rlimits} makes the directories `own` its own; "clear" ends its own."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        marks.be_apart()

    def _steer(self, message: dict[str, Any]) -> None:
        if message["op"] == "boot":
            _build([path.strip("/").split("/") for path in message["own"]])
            rootfs.set_limits(message["rlimits"])
            rootfs.give_up_rights()
            os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), 0))
        elif message["op"] == "clear":
            self.end_all()
        else:
            super()._steer(message)

    def end_all(self) -> None:
        """Kill everything that was started here: whatever loses its parent becomes a child of this process."""
        for _ in range(_ROUNDS):
            self._reap()
            children = _children()
            if not children:
                return
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in children:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
            time.sleep(0.0005)
        raise TimeoutError("its processes do not end")


def _children() -> list[int]:
    """The children of this process that have not been reaped."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b") ")[2].split()[1]) == own:
                    found.append(int(name))
    return found


def _build(own: Collection[list[str]]) -> None:
    """Have mounts of one's own, those of the sandbox but for directories in memory that are nobody else's.

    Whoever can write to the sandbox's root could rename what is in it, and so what is mounted there. So each directory
    on the way is made a mount in the sandbox as well: what somebody has mounted, the kernel lets them not move.
    """
    root = os.open("/", kernel.REAL_FOLDER)
    for path in own:
        folder = root
        for name in path:
            below = _held(folder, name)
            if folder != root:
                os.close(folder)
            folder = below
        os.close(folder)
    os.close(root)
    kernel.unshare(kernel.NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    for path in own:
        kernel.mount("tmpfs", "/" + "/".join(path), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755")


def _held(folder: int, name: str) -> int:
    """The directory `name` of another, from now on a mount: nobody inside can rename, replace or remove it."""
    for _ in range(_ROUNDS):
        below = _opened(folder, name)
        if below is None:
            continue
        if _mount_of(below) != _mount_of(folder):
            return below
        tree = kernel.clone_tree(below, ".")
        try:
            kernel.attach(tree, below)  # wherever it is called by now: what has the name is looked at again
        finally:
            os.close(tree)
            os.close(below)
    raise OSError(errno.EBUSY, f"somebody keeps replacing {name!r}")


def _opened(folder: int, name: str) -> int | None:
    """A directory; None when one had to be made, in the place of whatever else was there."""
    try:
        return os.open(name, kernel.REAL_FOLDER, dir_fd=folder)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=folder)
    except OSError as err:
        if err.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        with suppress(FileNotFoundError, IsADirectoryError, PermissionError):  # it is something else again
            os.unlink(name, dir_fd=folder)
    return None


def _mount_of(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}") as file:
        return next(line for line in file if line.startswith("mnt_id:"))
