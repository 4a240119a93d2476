"""Starting the processes of a sandbox: in which directory, as whom, on which streams."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

from . import archives, kernel, users

# All that can be set to their default: the C library then needs no call to ask for each.
_SIGNALS = tuple(sorted(int(number) for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))

_PYTHONS_OWN = frozenset({signal.SIGPIPE, signal.SIGXFSZ})  # ignored by it, so that they come as errors


def hear_all_signals() -> None:
    """Leave every signal at its default that the owner, started in the background perhaps, may ignore.

    A PID 1 is sent none of them from inside.
    """
    for number in _SIGNALS:
        if number not in _PYTHONS_OWN:
            signal.signal(number, signal.SIG_DFL)


def spawn(message: dict[str, Any], fds: list[int]) -> int:
    """Start a command, as a request "run" describes it, on its three streams."""
    account = users.find(message["user"]) if message["user"] else None
    env = dict(message["env"])
    env.setdefault("HOME", account.home if account else "/root")
    argv = message["argv"]
    enter(message["cwd"])
    try:
        program = find(argv[0], env.get("PATH", os.defpath))
        terminal = bool(message.get("terminal"))
        if account and not account.is_root:
            return _fork(fds, lambda: _become(account, program, argv, env, terminal))
        actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]]
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]
        if terminal:  # the first a leader of a session opens is its terminal
            actions[0] = (os.POSIX_SPAWN_OPEN, 0, f"/proc/self/fd/{fds[0]}", os.O_RDWR, 0)
        return os.posix_spawn(
            program,
            argv,
            env,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_SIGNALS,
        )
    finally:
        _leave(message["cwd"])


def work(message: dict[str, Any], fds: list[int]) -> int:
    """Start what packs or unpacks an archive, as a request "pull" or "push" describes it, on its three streams.

    A process costs more than all that is asked of it for a path that is not there: OSError before one is started.
    """
    if message["op"] == "pull":
        archives.check_is_there(message["path"])
    enter(message["cwd"])
    try:
        return _fork(fds, lambda: os._exit(archives.serve(message)))
    finally:
        _leave(message["cwd"])


def _fork(fds: list[int], then: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        for inherited in _PYTHONS_OWN:
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


class CwdError(OSError):
    """The working directory of a command cannot be entered."""


def enter(cwd: str) -> None:
    """Go to the working directory of a command; an error there is told apart from one of the command itself."""
    if cwd == "/":  # where PID 1 always is
        return
    try:
        os.chdir(cwd)
    except OSError as err:
        raise CwdError(err.errno, err.strerror, cwd) from None


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


def _become(account: users.Account, program: str, argv: list[str], env: dict[str, str], terminal: bool) -> None:
    if terminal:
        os.fchown(0, account.uid, -1)
        os.close(os.open("/proc/self/fd/0", os.O_RDWR))  # see `spawn`
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    os.execve(program, argv, env)
