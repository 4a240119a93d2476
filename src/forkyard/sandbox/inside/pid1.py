"""PID 1 of a sandbox: starts commands, reaps, kills, opens files. It ends when its socket to the host closes.

Requests (JSON objects with "op" and "id") and their answers (`wire.OPERATIONS` is what both ends go by):

    boot   {disk, stack, ...}                       done: a disk, and walls closed for good; the first but for these:
    mount  {target, source, read_only} + descriptor done: a directory of the host that the boot mounts (see `mounts`)
    run    {argv, env, cwd, user} + 3 descriptors   exited {status}, when it has ended; or failed. With `terminal` the
                                                    first is the terminal of its session
    pull   {path, exclude}        + 3 descriptors   like run, done by `archives.serve` in a child
    push   {path, layer}          + 3 descriptors   likewise
    kill   {target}                                 done, after the whole tree of that command is dead
    clear                                           done, after every process but this one was killed
    read   {path} / write {path, mode, new}         opened + 1 descriptor; or failed
    place  {path, new, keep}                        done: what `write` opened is at its path, or gone
    listen {port} / connect {port}                  opened + 1 descriptor; or failed
    terminal                                        opened + 2 descriptors: a new terminal's two ends
    namespaces                                      opened + 2 descriptors: of its users, of its network
    apart                                           opened + 6 descriptors: its namespaces, where nobody in them
                                                    reaches a process that comes in (see `apart`); or failed
    halt                                            done, when no process but this one runs
    go                                              done, when those that halted it go on
    quiet                                           done, when no process but this one is there; or failed
    ping                                            done, after what was asked before was begun

`failed` carries {errno, message, path, what}; `what` is "cwd" when a command's working directory cannot be entered.
Single-threaded: requests are small, commands run beside each other.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from contextlib import suppress
from typing import Any

from . import files, halt, kernel, marks, mounts, oom, rootfs, starting, users, wire
from .kernel import enter_domain

_REHEARSALS = 20
_REHEARSED: list[dict[str, Any]] = [
    {"op": "ping", "id": 1},
    {"op": "run", "id": 2, "argv": ["/dev/null/none"], "env": {}, "cwd": "/", "user": ""},
]


class Pid1:
    """The loop, and what it knows of the commands that run: pid to request id, and the mark of each."""

    def __init__(self, sock: socket.SocketType, confined: bool = False) -> None:
        self._sock = sock
        self._commands: dict[int, int] = {}
        self._stopped_before: frozenset[int] | None = None  # by somebody inside; None while nothing is halted
        self._waiting: list[tuple[dict[str, Any], list[int]]] = []
        self._mounts: list[mounts.Held] = []  # until the boot
        self._oom_score: int | None = None  # open where the sandbox's own memory can be full
        self._confined = confined  # nobody here can reach a process that comes from outside
        self._ends = kernel.ends_of_children()

    def serve(self) -> None:
        """Answer requests and reap children until the host goes away."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._ends, select.POLLIN)
        while True:
            ready = poll.poll(None if self._stopped_before is None else 1000 * halt.AGAIN)
            if not ready:
                halt.stop_again()
            for fd, _ in ready:
                if fd == self._ends:
                    self._reap()
                elif not self._request():
                    return

    def _reply(self, request: int, event: str, fds: list[int] | None = None, **fields: Any) -> None:
        message = {"id": request, "event": event, "fds": len(fds or []), **fields}
        wire.send(self._sock, message, fds or [])

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._ends, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            request = self._commands.pop(pid, None)
            if request is not None:
                marks.forget(request)
                self._ended(request, os.waitstatus_to_exitcode(status))

    def _ended(self, request: int, status: int) -> None:
        self._reply(request, "exited", status=status)

    def _request(self) -> bool:
        received = wire.receive(self._sock)
        if received is None:
            return False
        message, fds = received
        if self._stopped_before is not None and wire.OPERATIONS.get(message["op"], wire.UNKNOWN).waits:
            self._waiting.append((message, fds))
        else:
            self._answer(message, fds)
        return True

    def _answer(self, message: dict[str, Any], fds: list[int]) -> None:
        request = message["id"]
        try:
            self._handle(message, fds)
        except OSError as err:
            what = "cwd" if isinstance(err, starting.CwdError) else None
            text = err.strerror or str(err)
            self._reply(request, "failed", errno=err.errno, message=text, path=err.filename, what=what)
        except Exception as err:  # noqa: BLE001 - no request may end PID 1
            what = "user" if isinstance(err, users.UnknownUserError) else None
            self._reply(request, "failed", errno=None, message=f"{type(err).__name__}: {err}"[:4000], what=what)
        finally:
            for fd in fds:
                os.close(fd)

    def _handle(self, message: dict[str, Any], fds: list[int]) -> None:
        request, operation = message["id"], wire.OPERATIONS.get(message["op"], wire.UNKNOWN)
        if operation is wire.UNKNOWN:
            raise ValueError(f"there is no request {message['op']!r}")
        if len(fds) != operation.brings:
            raise ValueError(f"{len(fds)} descriptors where {message['op']!r} has {operation.brings}")
        match operation.event:
            case "exited":
                self._commands[self._start(message, fds)] = request
            case "opened":
                opened = self._open(message)
                fds += opened  # closed with what came
                self._reply(request, "opened", opened)
            case _:
                if message["op"] == "mount":
                    self._mounts.append(mounts.held(fds[0], message))
                else:
                    self._steer(message)
                self._reply(request, "done")

    def _start(self, message: dict[str, Any], fds: list[int]) -> int:
        """The process whose end is the answer; where memory can be full, it is to be killed before this one is."""
        start = self._spawn if message["op"] == "run" else self._work
        marks.put(message["id"])
        try:
            if self._oom_score is None:
                return start(message, fds)
            with oom.first_to_go(self._oom_score):
                return start(message, fds)
        except BaseException:
            marks.forget(message["id"])
            raise

    def _spawn(self, message: dict[str, Any], fds: list[int]) -> int:
        return starting.spawn(message, fds)

    def _work(self, message: dict[str, Any], fds: list[int]) -> int:
        return starting.work(message, fds)

    def _open(self, message: dict[str, Any]) -> list[int]:
        """The descriptors that are the answer."""
        match message["op"]:
            case "read":
                with files.root_at("/") as root:
                    return [files.open_for_read(root, message["path"])]
            case "write":
                with files.root_at("/") as root:
                    return [files.open_for_write(root, message["path"], message["mode"], message["new"])]
            case "terminal":
                return [*os.openpty()]
            case "apart":
                if not self._confined:
                    raise OSError(errno.EOPNOTSUPP, "its processes could reach any other")
                return [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kernel.NAMESPACES]
            case _:
                return _network(message)

    def _steer(self, message: dict[str, Any]) -> None:
        """What is answered with no more than "done"."""
        match message["op"]:
            case "boot":
                rootfs.build(message, self._mounts)
                self._oom_score = oom.open_score() if message["full_memory"] else None
                rootfs.close_walls(message)
            case "kill":
                self._kill(message["target"])
            case "clear":
                with suppress(ProcessLookupError):  # nothing but this process runs
                    os.kill(-1, signal.SIGKILL)
            case "place":
                with files.root_at("/") as root:
                    files.place(root, message["path"], message["new"], message["keep"])
            case "halt":
                if self._stopped_before is None:
                    self._stopped_before = halt.stop_all()
            case "go":
                self._go_on()
            case "quiet":
                halt.check_none()

    def _go_on(self) -> None:
        if self._stopped_before is not None:
            self._let_go(self._stopped_before)
            self._stopped_before = None
            waiting, self._waiting = self._waiting, []
            for message, fds in waiting:
                self._answer(message, fds)

    def _let_go(self, stopped_before: frozenset[int]) -> None:
        halt.go_on(stopped_before)

    def _kill(self, target: int) -> None:
        """Kill everything a command started, or take back that it is to be started."""
        for message, fds in [pair for pair in self._waiting if pair[0]["id"] == target]:  # it has not even begun
            self._waiting.remove((message, fds))
            for fd in fds:
                os.close(fd)
            self._reply(target, "exited", status=-signal.SIGKILL)
        marks.kill(target, [pid for pid, request in self._commands.items() if request == target])


def serve(sock: socket.SocketType) -> None:
    """Be the PID 1 that speaks over `sock`."""
    Pid1(sock, enter_domain()).serve()


def rehearse() -> None:
    """Answer what comes most often, some times over, with no command that starts.

    Python writes into its code what it learns of it. Done before a fork, that is in pages which all forks share.
    """
    for _ in range(_REHEARSALS):
        ours, theirs = socket.socketpair()
        for request in _REHEARSED:
            wire.send(ours, request, [0] * wire.OPERATIONS[request["op"]].brings)
        ours.shutdown(socket.SHUT_WR)
        first = Pid1(socket.SocketType(fileno=theirs.detach()))
        first.serve()
        first._reap()
        os.close(first._ends)
        ours.close()
        marks.take_off()


def _network(message: dict[str, Any]) -> list[int]:
    """A listening or a connecting socket on the loopback, or the namespaces that hold it."""
    if message["op"] == "namespaces":
        return [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("user", "net")]
    if message["op"] == "listen":
        return [socket.create_server(("127.0.0.1", message["port"]), backlog=128).detach()]
    with socket.socket() as client:
        client.setblocking(False)  # a server inside that accepts nothing must not hold up PID 1
        code = client.connect_ex(("127.0.0.1", message["port"]))
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        return [client.detach()]
