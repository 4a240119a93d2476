"""runsc's command line, as far as it is needed: its flags, and how it tells the end of a command.

Its exit code cannot say whether a command ended by a signal or by the code a shell gives for one, nor whether it
failed itself. Its log can: the last line of a command that ran is the status that wait(2) gave.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

PROGRAM = "/bin/runsc"  # in the cell
STATE = "/run/state"
SANDBOX = "sandbox"
# Whatever is written from outside is seen inside at once; the disk is the guard's overlay, so none of gVisor's own.
FLAGS = (
    f"--root={STATE}",
    "--ignore-cgroups",
    "--file-access=shared",
    "--overlay2=none",
)
_STATUS = re.compile(r"[A-Z]\d{4} [^\]]*\] Exiting with status: (\d+)")
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
