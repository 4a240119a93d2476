"""Putting files of the task where the agent may have been first, with no program of the sandbox's own disk.

Each is one push of a layer, which the provider unpacks: what is in the way is deleted, through no link, and directories
have the owner and mode that they are to have.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable

from forkyard.sandbox import Sandbox

TESTS = "/tests"
LOGS = "/logs/verifier"
REWARDS = ("reward.txt", "reward.json")

NOTHING = bytes(10240)
"""An archive without a member: pushing it makes a directory that is missing and changes none that is there."""

_WHITEOUT = ".wh."


async def place_tests(runtime: Sandbox, archives: Iterable[bytes]) -> None:
    """Put the members of some archives, and nothing else, at /tests; a later archive goes over an earlier one.

    Each holds a directory called tests. Raises SandboxError.
    """
    first, *rest = archives
    await runtime.push(_deleting("tests") + first, "/", layer=True)
    for archive in rest:
        await runtime.push(archive, "/", layer=True)


async def clear_tests(runtime: Sandbox) -> None:
    """Take away what verifiers left: /tests, and all that is in /logs/verifier and /logs/agent. Raises SandboxError."""
    emptied = b"".join(_deleting(f"logs/{name}") + _directory(f"logs/{name}", 0o777) for name in ("agent", "verifier"))
    await runtime.push(_deleting("tests") + _directory("logs", 0o755) + emptied + _END, "/", layer=True)


async def empty_logs(runtime: Sandbox, owner: int | None = None) -> None:
    """Make /logs/verifier a real, empty directory, of `owner` alone or for all to write to. Raises SandboxError."""
    fresh = _directory("logs/verifier", 0o777 if owner is None else 0o755, owner or 0)
    await runtime.push(_directory("logs", 0o755) + _deleting("logs/verifier") + fresh + _END, "/", layer=True)


async def forget_rewards(runtime: Sandbox) -> None:
    """Delete the reward files. Raises SandboxError."""
    await runtime.push(b"".join(_deleting(f"logs/verifier/{name}") for name in REWARDS) + _END, "/", layer=True)


async def make_directories(runtime: Sandbox, workdir: str) -> None:
    """Make the working directory and those the format has in /logs. Raises SandboxError."""
    await runtime.push(NOTHING, workdir)
    made = (_directory(f"logs/{name}", 0o777) for name in ("agent", "artifacts", "verifier"))
    await runtime.push(b"".join(made) + _END, "/", layer=True)


_END = bytes(1024)


def _deleting(path: str) -> bytes:
    folder, _, name = path.rpartition("/")
    return tarfile.TarInfo(f"{folder}/{_WHITEOUT}{name}".lstrip("/")).tobuf()


def _directory(path: str, mode: int, owner: int = 0) -> bytes:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode, entry.uid = tarfile.DIRTYPE, mode, owner
    return entry.tobuf()
