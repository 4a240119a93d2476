"""What a harness needs in the image of its sandboxes, installed once for each image and never for a rollout."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from forkyard.errors import HarnessError
from forkyard.sandbox import Sandbox
from forkyard.values import printable, tail

PLACE = "/opt/forkyard"
_HOME = "/tmp/forkyard-check"
_SHOWN = 2000
_CHECK_SECONDS = 600.0
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,63}")


@dataclass(frozen=True, slots=True)
class Equipment:
    """What is installed for a harness: `what` names it with its version, `form` counts the ways it was put there.

    `install` works in a running sandbox of the image, as root and without a network; what it leaves on the disk is
    kept as another image. It raises HarnessError, or SandboxError, with the reason why it cannot.
    """

    what: str
    install: Callable[[Sandbox], Awaitable[None]]
    form: int = 1

    @property
    def key(self) -> str:
        """Stands for everything that `install` leaves."""
        return f"{self.what} #{self.form}"


def check_version(version: str) -> str:
    """The version, when it is one. Raises ValueError."""
    if not _VERSION.fullmatch(version):
        raise ValueError(f"version {version!r} is no version of a package, as 1.2.3")
    return version


def place_of(name: str) -> str:
    """Where in an image the program of that name is installed."""
    return f"{PLACE}/{name}"


def state_of(name: str) -> str:
    """Where in a sandbox the program of that name keeps its state, whichever user it runs as."""
    return f"{place_of(name)}/state"


async def make_state(sandbox: Sandbox, name: str) -> None:
    """Make the directory of `state_of`. Raises HarnessError for an image without a shell's tools."""
    state = state_of(name)
    await checked(sandbox, ["sh", "-c", f"mkdir -p {state} && chmod 1777 {state}"], f"{name} needs a shell")


async def check_starts(sandbox: Sandbox, argv: list[str], otherwise: str) -> None:
    """See that a program starts, with a home of its own that leaves nothing behind. Raises HarnessError if not."""
    script = f'mkdir -p {_HOME} && HOME={_HOME} "$@"; ended=$?; rm -rf {_HOME}; exit $ended'
    await checked(sandbox, ["sh", "-c", script, "sh", *argv], otherwise)


async def checked(sandbox: Sandbox, argv: list[str], otherwise: str) -> str:
    """What a command of an installation says. Raises HarnessError, beginning with `otherwise`, when it fails."""
    result = await sandbox.run(argv, cwd="/", timeout=_CHECK_SECONDS)
    if not result.ok:
        ended = "took too long" if result.timed_out else f"exit code {result.exit_code}"
        said = printable(tail(result.stderr or result.stdout, _SHOWN)).strip()
        raise HarnessError(f"{otherwise}: {argv[0]}: {ended}{f': {said}' if said else ''}")
    return result.stdout
