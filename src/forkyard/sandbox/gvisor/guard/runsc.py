"""runsc's command line, as far as it is needed: its flags, calling it, and how it tells the end of a command.

Its exit code cannot say whether a command ended by a signal or by the code a shell gives for one, nor whether it
failed itself. Its log can: the last line of a command that ran is the status that wait(2) gave.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterable, Sequence

PROGRAM = "/bin/runsc"  # in the cell
STATE = "/run/state"
SANDBOX = "sandbox"
_SAID = "/run/said"
_AT_ONCE = 8  # calls
# Whatever is written from outside is seen inside at once; the disk is the guard's overlay, so none of gVisor's own.
FLAGS = (
    f"--root={STATE}",
    "--ignore-cgroups",
    "--file-access=shared",
    "--overlay2=none",
)
_GONE = "no such process"  # what it says of one to be signalled
_STATUS = re.compile(r"[A-Z]\d{4} [^\]]*\] Exiting with status: (\d{1,5})")
_FATAL = re.compile(r"FATAL ERROR: (.*)", re.DOTALL)
_ERRORS = (
    ("no such file or directory", errno.ENOENT),
    ("not a directory", errno.ENOTDIR),
    ("file name too long", errno.ENAMETOOLONG),
    ("permission denied", errno.EACCES),
    ("exec format error", errno.ENOEXEC),
    ("argument list too long", errno.E2BIG),
    ("too many levels of symbolic links", errno.ELOOP),
)


def command(name: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
    """The arguments of one call of runsc."""
    return [PROGRAM, *FLAGS, *flags, name, *arguments]


def start(name: str, *arguments: str, flags: Sequence[str] = (), said: str = _SAID) -> int:
    """Start a call that writes what goes wrong to the file `said`."""
    argv, write = command(name, *arguments, flags=flags), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, said, write, 0o600),
    ]
    return os.posix_spawn(argv[0], argv, {}, file_actions=actions, setsigmask=(), setsigdef=(signal.SIGCHLD,))


def finish(pid: int, said: str = _SAID) -> None:
    """Wait for a call; OSError with what it said when it failed."""
    if os.waitpid(pid, 0)[1] != 0:
        with open(said, errors="replace") as file:
            raise OSError(errno.EIO, f"runsc failed: {file.read(2000).strip()}")


def signal_each(processes: Iterable[int], name: str) -> None:
    """Signal guests, by their numbers inside, but for those that have ended; OSError when one may not have got it."""
    waiting = sorted(processes)
    while waiting:
        now, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        calls = [(f"--pid={number}", f"{_SAID}-{at}") for at, number in enumerate(now)]
        for pid, said in [(start("kill", number, SANDBOX, name, said=said), said) for number, said in calls]:
            try:
                finish(pid, said)
            except OSError as err:
                if _GONE not in str(err):
                    raise


def outcome(log: str) -> int:
    """The exit code in the log of `runsc exec`, a signal's number negative; OSError when no command was started."""
    lines = log.rstrip("\n").split("\n")
    if ended := _STATUS.fullmatch(lines[-1]):  # a name chosen by a guest never comes last
        return os.waitstatus_to_exitcode(int(ended[1]))
    failed = _FATAL.search(log)
    said = failed[1].split("\n")[0][-1000:] if failed else "runsc ended without a word"
    number = next((number for text, number in _ERRORS if said.endswith(text)), None)
    if number is None:
        raise RuntimeError(f"gVisor did not run a command: {said}")
    raise OSError(number, os.strerror(number))
