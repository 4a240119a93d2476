"""Running tests/test.sh in a sandbox that the agent has shaped, and reading what it left.

Nothing found inside is trusted: what was at /tests and /logs/verifier is removed and seen to be gone, commands come
from the system's own directories, sizes are asked before anything is read, and what is read back are archives, whose
members tell a file from a link.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from forkyard.errors import EngineLost, SandboxError, SandboxLost
from forkyard.sandbox import ProgramResult, Sandbox
from forkyard.secrets import Secrets
from forkyard.task.directory.reward import SIZE_LIMIT, Refused, RewardFile, Verdict, judge_reward
from forkyard.trace import Status
from forkyard.values import printable, tail

TESTS = "/tests"
LOGS = "/logs/verifier"
SCRIPT = f"{TESTS}/test.sh"
TAIL = 4000  # characters of the script's output that are kept on record

ROOT = "0"  # by number: the agent may have removed /etc/passwd
SYSTEM_PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

_ARCHIVE_OVERHEAD = 64 << 10
_PULL_DEADLINE = 60.0  # for a file that was small when asked and grows while it is read
_OUTPUT = 64 << 10
_NO_SECRETS = Secrets()

_EMPTY_LOGS = """
[ -L /logs ] || [ ! -d /logs ] && rm -rf /logs
rm -rf /logs/verifier
mkdir -p /logs/verifier && chmod 755 /logs && chmod 777 /logs/verifier
"""
_ENDED = {
    "oom": "the sandbox's memory was full",
    "disk": "the sandbox's disk was full",
    "output": "the output of the sandbox's commands was used up",
}
NOTHING = bytes(10240)
"""An archive without a member: pushing it makes a directory that is missing and changes none that is there."""


@dataclass(frozen=True, slots=True)
class TestRun:
    """How the script is run; `flaw` is what is wrong with its first line, `secrets` must not show on a record."""

    __test__ = False

    timeout: float | None
    env: Mapping[str, str]
    user: str | None = None
    workdir: str | None = None
    flaw: str | None = None
    secrets: Secrets = _NO_SECRETS


async def stage(runtime: Sandbox, archive: bytes, timeout: float | None) -> Verdict | None:
    """Put the task's tests, and nothing else, at /tests; a verdict only when the sandbox prevents it.

    `archive` holds a directory called tests. Raises SandboxLost and EngineLost.
    """
    try:
        await runtime.run(["rm", "-rf", TESTS], SYSTEM_PATH, cwd="/", user=ROOT, timeout=timeout)
        if await _exists(runtime, TESTS):
            return _undecided("what the agent left at /tests could not be removed")
        await runtime.push(archive, "/")
    except (SandboxLost, EngineLost):
        raise
    except SandboxError as err:
        return _undecided(f"the tests could not be placed: {err}")
    return None


async def verify(runtime: Sandbox, tests: TestRun) -> tuple[Verdict, dict[str, Any]]:
    """Run the staged script and judge what it left: the verdict, and the facts for the record.

    The exit code is recorded and decides nothing. Raises SandboxLost and EngineLost.
    """
    result: ProgramResult | None = None
    try:
        if trouble := await _prepare(runtime, tests):
            verdict = _undecided(trouble)
        else:
            result = await _run(runtime, tests)
            verdict = await _judge(runtime, tests, result)
    except (SandboxLost, EngineLost):
        raise
    except (SandboxError, FileNotFoundError, NotADirectoryError) as err:  # the agent may have removed the directory
        verdict = _undecided(str(err))
    except ValueError as err:  # the sandbox does not know the user any more, or never did
        verdict = Verdict(Status.INDETERMINATE, "verifier_not_run", f"{SCRIPT} was not run: {printable(str(err))}")
    verdict = replace(verdict, reason=verdict.reason and tests.secrets.hide(verdict.reason))
    return verdict, facts_of(verdict, result, tests.secrets)


def facts_of(verdict: Verdict, result: ProgramResult | None = None, secrets: Secrets = _NO_SECRETS) -> dict[str, Any]:
    """What goes on the record about grading."""
    return {
        "exit_code": result.exit_code if result else None,
        "timed_out": result.timed_out if result else False,
        "ended_by": result.ended_by if result else None,
        "code": verdict.code,
        "reason": verdict.reason,
        "output_tail": tail(printable(secrets.hide(result.stdout + result.stderr)), TAIL) if result else "",
    }


async def read_reward(runtime: Sandbox, name: str) -> RewardFile | None:
    """The reward file of that name as it lies in the sandbox: its bytes, a refusal, or None."""
    path = f"{LOGS}/{name}"
    try:
        with suppress(FileNotFoundError):  # or a link to nowhere, which the archive tells
            await runtime.read(path, SIZE_LIMIT)  # follows links, but refuses what is no file or too large
        async with asyncio.timeout(_PULL_DEADLINE):
            archive = await runtime.pull(path, max_bytes=SIZE_LIMIT + _ARCHIVE_OVERHEAD)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (SandboxLost, EngineLost):
        raise
    except IsADirectoryError:
        return Refused("is a directory")
    except (SandboxError, PermissionError, TimeoutError) as err:
        return Refused(f"cannot be read: {printable(str(err))}")
    return file_in(archive, name)


def file_in(archive: bytes, name: str) -> RewardFile:
    """The one regular file of an archive of a single path; anything else in it is refused."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            member = tar.next()
            if member is None or not member.isreg() or member.name.removeprefix("./") != name or tar.next():
                return Refused("is not a regular file")
            if member.size > SIZE_LIMIT:
                return Refused(f"is larger than {SIZE_LIMIT} bytes")
            content = tar.extractfile(member)
            return content.read(SIZE_LIMIT) if content else Refused("is not a regular file")
    except (tarfile.TarError, ValueError, OverflowError, OSError, EOFError, LookupError):
        return Refused("came out of the sandbox in a broken archive")


async def _prepare(runtime: Sandbox, tests: TestRun) -> str | None:
    """Make /logs/verifier a real, empty, writable directory; a sentence when that cannot be had."""
    await runtime.push(NOTHING, tests.workdir or ".")  # the agent may have removed its own working directory
    result = await runtime.run(_EMPTY_LOGS, SYSTEM_PATH, cwd="/", user=ROOT, timeout=tests.timeout)
    if not result.ok:
        return f"{LOGS} could not be prepared ({_ending(result)}): {tail(result.stderr.strip(), 500)}"
    left = [name for name in ("reward.txt", "reward.json") if await _exists(runtime, f"{LOGS}/{name}")]
    return f"{', '.join(left)} of the agent could not be removed from {LOGS}" if left else None


async def _run(runtime: Sandbox, tests: TestRun) -> ProgramResult:
    return await runtime.run(
        [SCRIPT], tests.env, cwd=tests.workdir, user=tests.user, timeout=tests.timeout, output_limit=_OUTPUT
    )


async def _judge(runtime: Sandbox, tests: TestRun, result: ProgramResult) -> Verdict:
    if result.timed_out:  # what is there may be half written, or written by what made it hang
        reason = f"{SCRIPT} took longer than its {tests.timeout:g} s; nothing it wrote was read"
        return Verdict(Status.INDETERMINATE, "verifier_timeout", reason)
    verdict = judge_reward(await read_reward(runtime, "reward.txt"), await read_reward(runtime, "reward.json"))
    if verdict.status is not Status.INDETERMINATE:
        return verdict
    flaw = f"; {tests.flaw}" if tests.flaw else ""
    if result.exit_code in (126, 127):
        reason = f"{SCRIPT} could not be run, or a command it needs is missing in the sandbox ({_ending(result)}){flaw}"
        return Verdict(Status.INDETERMINATE, "verifier_not_run", reason)
    return Verdict(verdict.status, verdict.code, f"{verdict.reason} ({_ending(result)}){flaw}")


async def _exists(runtime: Sandbox, path: str) -> bool:
    try:
        await runtime.read(path, 1)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (SandboxLost, EngineLost):
        raise
    except (SandboxError, IsADirectoryError, PermissionError):
        return True
    return True


def _undecided(trouble: str) -> Verdict:
    reason = f"the sandbox cannot be graded as the agent left it: {printable(trouble)}"
    return Verdict(Status.INDETERMINATE, "unusable_sandbox", reason)


def _ending(result: ProgramResult) -> str:
    if result.timed_out:
        return "timed out"
    if result.ended_by:
        return _ENDED[result.ended_by]
    return f"ended by signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
