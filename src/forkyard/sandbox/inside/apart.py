"""A process in a sandbox, and yet apart from those that run there: it starts commands they have no hold on.

    the same        processes, network, users, limits, and every file of the disk
    its own         its mounts, in which some directories are in memory, and empty at first

Whoever was there before is in a domain of Landlock, and this process is not: so it cannot send a signal to it or what
it starts, trace them, or enter their mounts, descriptors and memory by /proc. The other way round all of it goes.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from . import kernel, marks, rootfs, wire
from .beside import Beside

MOST = 1000  # entries of a directory that is shown one by one
_GROUPS = 8
_PLACE = "/proc"  # a mount that nobody can have moved; what it shows is taken along
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
    """Stand on a root of one's own that shows what the sandbox's shows, but for what is nobody else's.

    Whoever can write to the sandbox's root could rename what is in it. So each entry is mounted by itself, on names
    that are in memory.
    """
    kernel.unshare(kernel.NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    root = os.open("/", kernel.REAL_FOLDER)
    proc = kernel.clone_tree(root, "proc")
    kernel.mount("tmpfs", _PLACE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755")
    _show(root, _PLACE, own)
    os.mkdir(f"{_PLACE}/proc")
    kernel.attach(proc, f"{_PLACE}/proc")
    os.close(proc)
    os.close(root)
    kernel.pivot_into(_PLACE)


def _show(folder: int, target: str, own: Collection[list[str]]) -> None:
    """Have the directory `target` show the entries of another, but for `own`, which are made anew."""
    names = os.listdir(folder)
    if len(names) > MOST:
        raise OSError(errno.E2BIG, f"there are more than {MOST} entries in {target.removeprefix(_PLACE) or '/'}")
    for name in names:
        if [name] in own or (target == _PLACE and name == "proc"):
            continue
        beneath = [path[1:] for path in own if path[0] == name]
        with suppress(FileNotFoundError):  # removed meanwhile
            if beneath:
                _show_folder(folder, name, f"{target}/{name}", beneath)
            else:
                _show_one(folder, name, f"{target}/{name}")
    for path in own:
        os.makedirs("/".join([target, *path]), 0o755, exist_ok=True)


def _show_folder(folder: int, name: str, target: str, own: Collection[list[str]]) -> None:
    os.mkdir(target)
    try:
        below = os.open(name, kernel.REAL_FOLDER, dir_fd=folder)
    except OSError as err:
        if err.errno in (errno.ENOTDIR, errno.ELOOP):  # somebody put something else there: nothing of it is shown
            return
        raise
    try:
        _show(below, target, own)
    finally:
        os.close(below)


def _show_one(folder: int, name: str, target: str) -> None:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=folder), target)
        return
    tree = kernel.clone_tree(folder, name)
    try:
        if stat.S_ISDIR(os.fstat(tree).st_mode):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        kernel.attach(tree, target)
    finally:
        os.close(tree)
