"""PID 1 of a sandbox: starts commands, reaps, kills, opens files. It ends when its socket to the host closes.

Requests (JSON objects with "op" and "id") and their answers (`wire.OPERATIONS` is what both ends go by):

    boot   {disk, stack, ...}                       done: a disk, and walls closed for good; the first but for pings
    run    {argv, env, cwd, user} + 3 descriptors   exited {status}, when it has ended; or failed
    pull   {path, exclude}        + 3 descriptors   like run, done by `archives.serve` in a child
    push   {path, layer}          + 3 descriptors   likewise
    kill   {target}                                 done, after the whole tree of that command is dead
    clear                                           done, after every process but this one was killed
    read   {path} / write {path, mode, new}         opened + 1 descriptor; or failed
    place  {path, new, keep}                        done: what `write` opened is at its path, or gone
    listen {port} / connect {port}                  opened + 1 descriptor; or failed
    namespaces                                      opened + 2 descriptors: of its users, of its network
    halt                                            done, when no process but this one runs
    go                                              done, when those that halted it go on
    quiet                                           done, when no process but this one is there; or failed
    ping                                            done

`failed` carries {errno, message, path, what}; `what` is "cwd" when a command's working directory cannot be entered.
Single-threaded: requests are small, commands run beside each other.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
from contextlib import suppress
from typing import Any

from . import archives, files, halt, kernel, oom, rootfs, users, wire

_TAGS = 100_000
_REHEARSALS = 20
_REHEARSED: list[dict[str, Any]] = [
    {"op": "ping", "id": 1},
    {"op": "run", "id": 2, "argv": ["/dev/null/none"], "env": {}, "cwd": "/", "user": ""},
]
_LIMITS_NAME = b"Max msgqueue size"
_MSGQUEUE = int(resource.RLIMIT_MSGQUEUE)
# All that can be set to their default: the C library then needs no call to ask for each.
_SIGNALS = tuple(sorted(int(number) for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))


class Pid1:
    """The loop and what it knows of running commands: pid to request id, and request id to tag."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._commands: dict[int, int] = {}
        self._tags: dict[int, int] = {}
        self._counter = 0
        self._stopped_before: frozenset[int] | None = None  # by somebody inside; None while nothing is halted
        self._waiting: list[tuple[dict[str, Any], list[int]]] = []
        self._oom_score: int | None = None  # open where the sandbox's own memory can be full
        _, self._highest_tag = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
        if self._highest_tag < 0 or self._highest_tag > 1 << 40:
            self._highest_tag = 1 << 40
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

    def rehearse(self, ours: socket.socket) -> None:
        """Answer what comes most often, from the other end `ours`, some times over, with no command that starts.

        Python writes into its code what it learns of it. Done before a fork, that is in pages which all forks share.
        """
        for _ in range(_REHEARSALS):
            for request in _REHEARSED:
                wire.send(ours, request, [0] * wire.OPERATIONS[request["op"]].brings)
                self._request()
                wire.receive(ours)
            self._reap()
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (self._highest_tag, self._highest_tag))  # no command's mark
        os.close(self._ends)

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
                self._tags.pop(request, None)
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
            what = "cwd" if isinstance(err, _CwdError) else None
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
                self._steer(message)
                self._reply(request, "done")

    def _start(self, message: dict[str, Any], fds: list[int]) -> int:
        """The process whose end is the answer; where memory can be full, it is to be killed before this one is."""
        start = self._spawn if message["op"] == "run" else self._work
        if self._oom_score is None:
            return start(message, fds)
        with oom.first_to_go(self._oom_score):
            return start(message, fds)

    def _open(self, message: dict[str, Any]) -> list[int]:
        """The descriptors that are the answer."""
        match message["op"]:
            case "read":
                with files.root_at("/") as root:
                    return [files.open_for_read(root, message["path"])]
            case "write":
                with files.root_at("/") as root:
                    return [files.open_for_write(root, message["path"], message["mode"], message["new"])]
            case _:
                return _network(message)

    def _steer(self, message: dict[str, Any]) -> None:
        """What is answered with no more than "done"."""
        match message["op"]:
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
            case "boot":
                rootfs.build(message)
                self._oom_score = oom.open_score() if message["full_memory"] else None
                rootfs.close_walls(message)

    def _go_on(self) -> None:
        if self._stopped_before is not None:
            halt.go_on(self._stopped_before)
            self._stopped_before = None
            waiting, self._waiting = self._waiting, []
            for message, fds in waiting:
                self._answer(message, fds)

    def _tag(self, request: int) -> None:
        """Mark what is started next: a soft limit nobody uses is inherited by the whole tree, detached or not."""
        self._counter = (self._counter + 1) % _TAGS
        value = self._highest_tag - 1 - self._counter
        resource.setrlimit(_MSGQUEUE, (value, self._highest_tag))
        self._tags[request] = value

    def _spawn(self, message: dict[str, Any], fds: list[int]) -> int:
        account = users.find(message["user"]) if message["user"] else None
        env = dict(message["env"])
        env.setdefault("HOME", account.home if account else "/root")
        argv = message["argv"]
        enter(message["cwd"])
        try:
            program = find(argv[0], env.get("PATH", os.defpath))
            self._tag(message["id"])
            if account and not account.is_root:
                return self._fork(fds, lambda: _become(account, program, argv, env))
            return os.posix_spawn(
                program,
                argv,
                env,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)],
                setsid=True,
                setsigmask=(),
                setsigdef=_SIGNALS,
            )
        finally:
            _leave(message["cwd"])

    def _work(self, message: dict[str, Any], fds: list[int]) -> int:
        enter(message["cwd"])
        try:
            self._tag(message["id"])
            return self._fork(fds, lambda: os._exit(archives.serve(message)))
        finally:
            _leave(message["cwd"])

    def _fork(self, fds: list[int], then: Any) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            for inherited in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(inherited, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.setsid()
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
            kernel.close_all_but()  # the socket to the host above all
            then()
        except OSError as err:
            os.write(2, f"forkyard: {err.filename or ''}: {err.strerror}\n".encode(errors="replace"))
            os._exit(127 if err.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG) else 126)
        except BaseException as err:  # noqa: BLE001 - a forked child must never return into the loop
            os.write(2, f"forkyard: {type(err).__name__}: {err}\n".encode(errors="replace"))
        os._exit(1)

    def _kill(self, target: int) -> None:
        """Kill everything a command started: stop all of it first, so that nothing forks away meanwhile."""
        for message, fds in [pair for pair in self._waiting if pair[0]["id"] == target]:  # it has not even begun
            self._waiting.remove((message, fds))
            for fd in fds:
                os.close(fd)
            self._reply(target, "exited", status=-signal.SIGKILL)
        tag = self._tags.get(target)
        roots = {pid for pid, request in self._commands.items() if request == target}
        stopped: set[int] = set()
        for _ in range(1000):
            found = (_with_tag(tag) | roots) - stopped
            if not found:
                break
            for pid in found:
                _signal(pid, signal.SIGSTOP)
            stopped |= found
        for pid in stopped:
            _signal(pid, signal.SIGKILL)


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


def _with_tag(tag: int | None) -> set[int]:
    """The live processes whose soft limit carries `tag`."""
    found = set()
    wanted = str(tag).encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        try:
            with open(f"/proc/{name}/limits", "rb") as file:
                line = next((line for line in file if line.startswith(_LIMITS_NAME)), b"")
        except OSError:  # it ended meanwhile
            continue
        if line[len(_LIMITS_NAME) :].split()[:1] == [wanted]:
            found.add(int(name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


class _CwdError(OSError):
    """The working directory of a command cannot be entered."""


def enter(cwd: str) -> None:
    """Go to the working directory of a command; an error there is told apart from one of the command itself."""
    if cwd == "/":  # where PID 1 always is
        return
    try:
        os.chdir(cwd)
    except OSError as err:
        raise _CwdError(err.errno, err.strerror, cwd) from None


def _leave(cwd: str) -> None:
    if cwd != "/":
        os.chdir("/")


def find(program: str, path: str) -> str:
    """The file a command name stands for, as a shell would look it up."""
    if "/" in program:
        return program
    candidates = [f"{directory or '.'}/{program}" for directory in path.split(":")]
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    for candidate in candidates:
        if os.path.exists(candidate):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), candidate)
    raise FileNotFoundError(errno.ENOENT, "command not found", program)


def _become(account: users.Account, program: str, argv: list[str], env: dict[str, str]) -> None:
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    os.execve(program, argv, env)
