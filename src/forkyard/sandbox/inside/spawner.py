"""The spawner: a small single-threaded process that forks sandboxes for one Forkyard process.

Forking from the user's large process would be slow and, with its threads, unsafe. The spawner lives in one user
namespace, entered once, in which it is root and outside of which it is nobody:

    range    started by root, or by a user with subordinate ids: 65536 users exist inside a sandbox
    single   started by a user without them: only root exists inside, and is that user outside

Requests come over one socket as JSON with the sandbox's own socket beside it; the answer carries a pidfd. When that
socket closes, the spawner ends. A sandbox watches a socket of its own: it ends with the owning process, not with the
spawner.

How it was configured comes over the socket and is in no argument or variable of any process. Where the root inside is
somebody outside, Python is executed anew from a mount that cannot be written: a sandbox can get hold of the program
its PID 1 runs (a script whose interpreter is /proc/self/exe will do), and its owner could change it.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from socket import SocketType
from typing import Any, NamedTuple

from . import BEGIN, PLACE, archives, errands, kernel, pid1, rootfs, starting, wire
from .kernel import close_all_but
from .rootfs import prepare

_NUMBERS = itertools.count()
_NAME = b"forkyard"
_AGAIN = BEGIN + "spawner.go_on(*map(int, sys.argv[1:2] + sys.argv[3:]))"


class First(NamedTuple):
    """What becomes of each fork: the first process of a sandbox."""

    serve: Callable[[SocketType], None]
    bounding: frozenset[int]  # the capabilities a program it executes can have at most
    anew: str | None = None  # the program that goes on in a Python nobody can write, if guests can get hold of it


PID1 = First(pid1.serve, rootfs.CAPABILITIES, _AGAIN)


def configuration(control_fd: int) -> dict[str, Any]:
    """What the owner says first, before anything else is said."""
    with socket.socket(fileno=os.dup(control_fd)) as control:
        config: dict[str, Any] = json.loads(control.recv(1 << 16))
    return config


def main(control_fd: int, config: dict[str, Any], first: First = PID1) -> None:
    """Enter the namespaces, and serve; `first` is what becomes of each fork."""
    control = socket.socket(fileno=control_fd)
    os.chdir(config["store"])
    _hurry()
    outside = os.getuid() != 0 or config["host_root"]
    try:
        shifted = _enter_namespaces(config)
        if outside and first.anew:
            _execute_read_only(first.anew, control_fd, shifted, config["host_root"])
    except OSError as err:
        control.send(json.dumps({"error": f"{err}", "errno": err.errno}).encode())
        return
    _serve(control, shifted, config["host_root"], first)


def _execute_read_only(code: str, control_fd: int, shifted_usr: bool, host_root: bool) -> None:
    """Execute Python again, from a mount that cannot be written; it continues in `go_on`."""
    program = os.path.realpath(sys.executable)
    kernel.mount(program, program, None, kernel.MS_BIND)
    kernel.make_read_only(program)
    arguments = [str(control_fd), PLACE, str(int(shifted_usr)), str(int(host_root))]
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, *arguments], {})


def go_on(control_fd: int, shifted_usr: int, host_root: int) -> None:
    """Serve, as what `main` has executed."""
    kernel.unmount(os.path.realpath(sys.executable))  # what runs keeps the mount; those of a sandbox are to be few
    _serve(socket.socket(fileno=control_fd), bool(shifted_usr), bool(host_root), PID1)


def _serve(control: socket.socket, shifted_usr: bool, host_root: bool, first: First) -> None:
    """Start the janitor, and fork sandboxes until the owner goes away."""
    kernel.rename_process(_NAME)
    janitor_pid, janitor = _start_janitor(control)
    os.chdir("disks")
    own = rootfs.prepare_once(host_root)
    _rehearse()
    kernel.drop_bounding_set(first.bounding)
    gc.disable()
    gc.freeze()
    starting.hear_all_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # sandboxes are reaped by the kernel and watched by pidfd
    _forget_terminal()
    control.send(json.dumps({"ready": True, "shifted_usr": shifted_usr}).encode())
    _answer(control, janitor, own, first.serve)
    os.close(janitor)
    with suppress(ChildProcessError):  # reaped by the kernel, as all children here are
        os.waitpid(janitor_pid, 0)
    os._exit(0)  # the owner waits: Python would first take down what goes with the process anyway


def _rehearse() -> None:
    """Have a PID 1 write, before there are forks, what each of them would write for itself: a fifth of its memory."""
    here = os.open(".", kernel.REAL_FOLDER)
    pid1.rehearse()
    os.mkdir(place := f"../trash/{os.urandom(8).hex()}")  # which the janitor empties
    archives.rehearse(place)
    os.fchdir(here)  # a command starts elsewhere
    os.close(here)


def _hurry() -> None:
    """Come before the work of the sandboxes, as root may: else forks and commands would queue behind it.

    Where the kernel groups processes by session, niceness counts within a session only, and the session has one of its
    own. A command starts a new session, so it gets none of this.
    """
    with suppress(PermissionError):
        os.nice(rootfs.HURRY)
    with suppress(OSError):
        _write("/proc/self/autogroup", str(rootfs.HURRY))


def _forget_terminal() -> None:
    """What the owner prints on is nothing that a sandbox may inherit, by whatever mistake."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nowhere, fd)
    os.close(nowhere)


def _answer(control: socket.socket, janitor: int, own: rootfs.Own, serve: Callable[[SocketType], None]) -> None:
    """Fork whenever it is asked for, in as few steps as can be.

    Each page written here after a fork is one of which that fork keeps the old copy for itself.
    """
    flags = kernel.NEWNS | kernel.NEWPID | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNET | kernel.NEWCGROUP
    while True:
        message, ancillary = wire.receive_some(control, 1 << 16)
        if not message:
            return
        fds = wire.received_fds(ancillary)
        if message != wire.SPAWN:
            _serve_otherwise(json.loads(message), fds, janitor)
            continue
        try:
            pid, pidfd = kernel.fork_into(flags)
        except OSError as err:
            control.send(json.dumps({"error": str(err)}).encode())
        else:
            if pid == 0:
                _become_sandbox(fds[0], fds[1:], own, serve)
            control.sendmsg([b'{"pid": %d}' % pid], wire.ancillary([pidfd]))
            os.close(pidfd)
        for fd in fds:
            os.close(fd)


def _serve_otherwise(request: dict[str, Any], fds: list[int], janitor: int) -> None:
    if request["op"] == "purge":
        with suppress(BrokenPipeError):  # without a janitor the trash waits for the next engine
            os.write(janitor, b"x")
    else:
        _send_out(request, fds[0])


def _send_out(request: dict[str, Any], fd: int) -> None:
    """Have a child do an errand; the owner hears of it on the socket `fd`, which is closed here."""
    with socket.socket(fileno=fd) as sock:
        try:
            if os.fork() == 0:
                errands.run(request, sock.detach())
        except OSError as err:
            sock.sendall(json.dumps({"error": str(err)}).encode())


def _become_sandbox(fd: int, groups: list[int], own: rootfs.Own, serve: Callable[[SocketType], None]) -> None:
    """Become a PID 1 that has everything but a disk, and serve: the disk comes with the request "boot"."""
    sock = SocketType(fileno=fd)
    try:
        for group in groups:  # moving oneself is the one way that waits for nobody
            os.write(group, b"0")
        close_all_but(fd)
        prepare(own)
        serve(sock)
    except Exception as err:  # noqa: BLE001 - whatever it is, the host is told; it finds the socket closed after it
        wire.send(sock, {"id": 0, "event": "failed", "fds": 0, "message": f"{type(err).__name__}: {err}"}, [])
    finally:
        os._exit(0)


def _enter_namespaces(config: dict[str, Any]) -> bool:
    """One user namespace for all sandboxes; as root also a view of /usr whose files belong to the inner root.

    Returns whether that view is there.
    """
    root = os.getuid() == 0
    if root:
        _own_mounts()
    namespace = _user_namespace(config)
    shifted = root and _bind_shifted_usr(namespace)
    if root and not shifted:
        _bind_plain_usr()
    kernel.enter_namespace(namespace, kernel.NEWUSER)
    os.close(namespace)
    os.setgroups([]) if config["mode"] == "range" else None
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    _own_mounts()  # again as root: mounts that the inner root may add to
    if not root:
        _bind_plain_usr()
    return shifted


def _own_mounts() -> None:
    """A mount namespace of our own, with as few mounts as the kernel lets go: copies of it get cheap."""
    kernel.unshare(kernel.NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)


def _user_namespace(config: dict[str, Any]) -> int:
    """A new user namespace, held by a short-lived child while its id maps are written from outside."""
    ready_read, ready_write = os.pipe()
    hold_read, hold_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hold_write)
            kernel.unshare(kernel.NEWUSER)
            os.write(ready_write, b"x")
            os.read(hold_read, 1)
        finally:
            os._exit(0)
    os.close(ready_write)
    os.close(hold_read)
    try:
        if not os.read(ready_read, 1):
            raise PermissionError(1, "user namespaces are not available to this user")
        _map_ids(pid, config)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    finally:
        os.close(hold_write)
        os.close(ready_read)
        os.waitpid(pid, 0)


def _map_ids(pid: int, config: dict[str, Any]) -> None:
    mapper = config.get("mapper")
    for kind in ("uid", "gid"):
        mapping = config[f"{kind}_map"]
        if mapper:  # newuidmap and newgidmap are the only way for an ordinary user to get more than one id
            program = mapper[kind]
            child = os.posix_spawn(program, [program, str(pid), *mapping.split()], {})
            if os.waitpid(child, 0)[1] != 0:
                raise PermissionError(1, f"{program} refused the mapping {mapping!r}")
            continue
        if kind == "gid" and os.getuid() != 0:
            _write(f"/proc/{pid}/setgroups", "deny")
        _write(f"/proc/{pid}/{kind}_map", mapping)


def _bind_shifted_usr(namespace: int) -> bool:
    """Show /usr as owned by the inner root; False where the file system or kernel cannot shift owners."""
    try:
        kernel.bind_idmapped("/usr", "usr", namespace)
    except OSError:
        return False
    return True


def _bind_plain_usr() -> None:
    kernel.mount("/usr", "usr", None, kernel.MS_BIND | kernel.MS_REC)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _start_janitor(control: socket.socket) -> tuple[int, int]:
    """A child that empties `trash/` whenever it is told to, and once more before it ends."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read)
        return pid, write
    os.close(write)
    control.close()
    os.setpriority(os.PRIO_PROCESS, 0, 5)
    while True:
        told = os.read(read, 4096)
        for name in os.listdir("trash"):
            _remove(f"trash/{name}")
        if not told:
            os._exit(0)


def _remove(path: str) -> None:
    """Delete a tree of any depth: each directory in it is first moved to the top of the trash."""
    queue = [path]
    while queue:
        directory = queue.pop()
        with suppress(OSError):  # another janitor was faster
            os.chmod(directory, 0o700)  # overlay's work directories, and whatever a guest made unreadable
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(_lifted(entry.path))
                    else:
                        os.unlink(entry.path)
            os.rmdir(directory)


def _lifted(path: str) -> str:
    target = f"trash/{os.getpid()}-{next(_NUMBERS)}"
    os.rename(path, target)
    return target
