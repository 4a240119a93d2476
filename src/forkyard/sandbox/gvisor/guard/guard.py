"""The guard of one sandbox: PID 1 of its namespaces, which has gVisor run what PID 1 would run itself.

Files and archives it moves as PID 1 does, on the disk as gVisor serves it, with that disk as its root meanwhile. Ports
it opens as PID 1 does: the guests' sockets are sockets of its network, which has a loopback and at first no more. When
it ends, by whatever, the kernel ends gVisor and every guest with it, and unmounts the disk.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import cell, runsc
from .lineage import Lineage

if TYPE_CHECKING:
    from forkyard.sandbox.inside import mounts, pid1, rootfs, spawner, starting, users
else:
    from inside import mounts, pid1, rootfs, spawner, starting, users

START_TIMEOUT = 60.0
_MESSAGE = 1 << 16
_ROUNDS = 100
_REFUSED = frozenset({"terminal", "apart"})
_PORTS = frozenset({"listen", "connect", "namespaces"})
_ALL_CAPABILITIES = frozenset(range(64))


def main(control_fd: int, config: dict[str, Any], program: str, ports: bool) -> None:
    """Be a spawner of guards that run the runsc at `program`; without `ports` guests have no network but their own."""
    # It keeps every capability: runsc builds walls of its own, within this user namespace.
    first = spawner.First(lambda sock: Guard(sock, program, ports).serve(), _ALL_CAPABILITIES)
    spawner.main(control_fd, config, first)


class Guard(pid1.Pid1):
    """Speaks the protocol of PID 1 (see there), but for terminals and what stands apart, which it refuses."""

    def __init__(self, sock: socket.SocketType, program: str, ports: bool) -> None:
        super().__init__(sock)
        self._program, self._ports = program, ports
        self._refused = _REFUSED if ports else _REFUSED | _PORTS
        self._poll = select.poll()
        self._lineage = Lineage()
        self._sink: socket.socket | None = None
        self._running: dict[int, int] = {}  # by the request of each command: the runsc that waits for its end
        self._doomed: list[Callable[[], set[int]]] = []  # the guests to be killed when what is halted goes on
        self._answered: set[int] = set()  # requests of commands that are among those
        self._rlimits: dict[str, int] = {}

    def serve(self) -> None:
        """Answer requests and reap children until the host, or gVisor, goes away."""
        self._poll.register(self._ends, select.POLLIN)
        self._poll.register(self._sock, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._ends:
                    self._reap()
                elif not (self._request() if fd == self._sock.fileno() else self._hear()):
                    return

    def _hear(self) -> bool:
        """Take in what gVisor tells of its processes; False when it has ended."""
        assert self._sink is not None
        while True:
            try:
                message = self._sink.recv(_MESSAGE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not message:
                return False
            self._lineage.hear(message)

    def _handle(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["op"] in self._refused:
            raise OSError(errno.EOPNOTSUPP, f"this sandbox in gVisor has no {message['op']!r}: use one of `local`")
        super()._handle(message, fds)

    def _work(self, message: dict[str, Any], fds: list[int]) -> int:
        with cell.inside():
            return super()._work(message, fds)

    def _open(self, message: dict[str, Any]) -> list[int]:
        if message["op"] in _PORTS:
            return super()._open(message)
        with cell.inside():
            return super()._open(message)

    def _steer(self, message: dict[str, Any]) -> None:
        if message["op"] == "boot":
            self._boot(message)
        elif message["op"] == "kill" and message["target"] in self._running:
            self._rid_of([message["target"]], lambda: self._tree(message["target"]))
        elif message["op"] == "clear":
            self._signal_workers(signal.SIGKILL)
            self._rid_of([*self._running], lambda: self._lineage.everyone.union(*map(self._tree, self._running)))
        elif message["op"] == "place":
            with cell.inside():
                super()._steer(message)
        elif message["op"] == "halt":
            self._halt()
        elif message["op"] == "quiet":
            self._check_none()
        else:
            super()._steer(message)

    def _boot(self, message: dict[str, Any]) -> None:
        rootfs.mount_disk(message)
        mounts.attach(self._mounts, rootfs.ROOT)
        cell.enter(self._program)
        self._rlimits = message["rlimits"]
        cell.write_bundle(message["hostname"], self._rlimits, self._ports)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server, cell.tmp_in_use():
            server.bind(cell.SINK)
            server.listen(1)
            arguments = ("--detach", f"--bundle={cell.BUNDLE}", runsc.SANDBOX)
            network = "--network=host" if self._ports else "--network=none"  # the "host" that it knows is this guard
            pid = runsc.start("run", *arguments, flags=[network, f"--pod-init-config={cell.TRACE}"])
            self._sink = _accepted(server, pid)
            runsc.finish(pid)
        assert self._sink is not None
        self._poll.register(self._sink, select.POLLIN)

    def _spawn(self, message: dict[str, Any], fds: list[int]) -> int:
        request, argv, env = message["id"], message["argv"], dict(message["env"])
        with cell.inside():
            account = users.find(message["user"]) if message["user"] else users.Account(0, 0, "/root", [])
            starting.enter(message["cwd"])
            starting.find(argv[0], env.get("PATH", os.defpath))
        env.setdefault("HOME", account.home)
        ids = (account.uid, account.gid, tuple(account.groups))
        try:
            pid = self._execute(request, cell.process(argv, env, message["cwd"], ids, self._rlimits), fds)
        except OSError:
            _remove_files(request)
            raise
        self._running[request] = pid
        return pid

    def _execute(self, request: int, process: dict[str, Any], fds: list[int]) -> int:
        described, log, number = _files(request)
        cell.write(described, process)
        arguments = (f"--process={described}", f"--internal-pid-file={number}", runsc.SANDBOX)
        return os.posix_spawn(
            runsc.PROGRAM,
            runsc.command("exec", *arguments, flags=[f"--debug-log={log}"]),
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate(fds)],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ),
        )

    def _ended(self, request: int, status: int) -> None:
        if self._running.pop(request, None) is None:
            super()._ended(request, status)
            return
        said = ""  # by a runsc that died before it had a log
        with suppress(OSError), open(_files(request)[1], errors="replace") as file:
            said = file.read()
        _remove_files(request)
        if request in self._answered:
            self._answered.discard(request)
            return
        try:
            self._reply(request, "exited", status=runsc.outcome(said))
        except OSError as err:
            self._reply(request, "failed", errno=err.errno, message=err.strerror, path=err.filename, what=None)
        except (RuntimeError, ValueError) as err:
            self._reply(request, "failed", errno=None, message=str(err), path=None, what=None)

    def _check_none(self) -> None:
        """Raise BlockingIOError when there is any guest but the first, or somebody at work for the host."""
        self._hear()
        if self._commands or self._lineage.everyone:
            raise BlockingIOError(errno.EAGAIN, "there are processes")

    def _halt(self) -> None:
        """Bring gVisor's kernel to a halt, which knows itself what guests had stopped before, and then the workers."""
        if self._stopped_before is None:
            for request in self._running:
                self._first(request)  # runsc starts nothing in what is halted
            runsc.finish(runsc.start("pause", runsc.SANDBOX))
            for pid in self._signal_workers(signal.SIGSTOP):
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            self._stopped_before = frozenset()

    def _let_go(self, stopped_before: frozenset[int]) -> None:
        try:
            runsc.finish(runsc.start("resume", runsc.SANDBOX))
        except OSError as err:
            raise SystemExit("gVisor does not go on, so the whole sandbox has to go") from err
        doomed, self._doomed = self._doomed, []
        if doomed:
            self._kill_guests(lambda: set().union(*(known() for known in doomed)))
        self._signal_workers(signal.SIGCONT)

    def _signal_workers(self, number: signal.Signals) -> list[int]:
        """Signal the children that pack or unpack an archive, all that run here but runsc; returns them."""
        workers = [pid for pid, request in self._commands.items() if request not in self._running]
        for pid in workers:
            os.kill(pid, number)
        return workers

    def _rid_of(self, requests: list[int], known: Callable[[], set[int]]) -> None:
        """Kill the guests that are `known`, those of `requests` among them.

        In what is halted nobody can be killed, nor see that it was not: it is done before anybody else goes on.
        """
        if self._stopped_before is None:
            self._kill_guests(known)
            return
        self._doomed.append(known)
        for request in requests:
            if request not in self._answered:
                self._answered.add(request)
                self._reply(request, "exited", status=-signal.SIGKILL)

    def _tree(self, request: int) -> set[int]:
        """The live guests of a command."""
        first = self._first(request) if request in self._running else None
        return set() if first is None else self._lineage.tree(first)

    def _first(self, request: int) -> int | None:
        """The number that a command's own process has inside, as runsc writes it down; None if there was never one."""
        end = time.monotonic() + START_TIMEOUT
        while time.monotonic() < end:
            over = os.waitid(os.P_PID, self._running[request], os.WEXITED | os.WNOHANG | os.WNOWAIT)
            with suppress(FileNotFoundError, ValueError), open(_files(request)[2]) as file:
                return int(file.read())
            if over:
                return None
            time.sleep(0.002)
        raise TimeoutError(errno.ETIMEDOUT, "gVisor does not start a command")

    def _kill_guests(self, known: Callable[[], set[int]]) -> None:
        """Kill all that are `known`; when it cannot be done nothing less than the sandbox goes."""
        try:
            self._stop_and_kill(known)
        except OSError as err:
            raise SystemExit(f"guests cannot be killed, so the whole sandbox has to go: {err}") from err

    def _stop_and_kill(self, known: Callable[[], set[int]]) -> None:
        stopped: set[int] = set()
        for _ in range(_ROUNDS):  # stop all of it first, so that nothing forks away meanwhile
            self._hear()
            found = known() - stopped
            if not found:
                break
            runsc.signal_each(found, "STOP")
            stopped |= found
        else:
            raise OSError(errno.EAGAIN, "they fork faster than they are stopped")
        if not self._lineage.whole:
            raise OSError(errno.EIO, "gVisor did not tell of every process")
        runsc.signal_each(stopped, "KILL")


def _files(request: int) -> tuple[str, str, str]:
    """Of one command: its description, runsc's log of it, and its number inside."""
    return f"/run/{request}.json", f"/run/{request}.log", f"/run/{request}.pid"


def _remove_files(request: int) -> None:
    for path in _files(request):
        with suppress(FileNotFoundError):
            os.unlink(path)


def _accepted(server: socket.socket, pid: int) -> socket.socket | None:
    """gVisor's line for news of its processes; None when runsc ended before it called."""
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(server, select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    try:
        ready = [fd for fd, _ in poll.poll(START_TIMEOUT * 1000)]
    finally:
        os.close(pidfd)
    if server.fileno() not in ready:
        if not ready:
            os.kill(pid, signal.SIGKILL)  # it does neither
        return None
    sink, _ = server.accept()
    sink.send(sink.recv(_MESSAGE))  # both say which version of the protocol they speak, and there is one
    return sink
