"""Running tests/test.sh in a sandbox that the agent has shaped, and reading what it left.

Nothing found inside is trusted: what was at /tests and /logs/verifier is replaced by the provider's own hand (see
`placing`), and what is read back are archives, bounded, whose members tell a file from a link.

Beside processes of the agent (mode `shared`) who writes rewards is no verifier: whoever touches one that lies there
before the script runs, or writes one again after it ended and all were deleted. Where the agent is another user than
the verifier, it cannot write there at all.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from forkyard.errors import EngineLost, SandboxError, SandboxLost
from forkyard.sandbox import OnOutput, ProgramResult, Sandbox
from forkyard.secrets import Secrets
from forkyard.task.directory.placing import LOGS, NOTHING, REWARDS, TESTS, empty_logs, forget_rewards, place_tests
from forkyard.task.directory.reward import SIZE_LIMIT, Refused, RewardFile, Verdict, judge_reward
from forkyard.trace import Status
from forkyard.values import printable, tail

OUTPUT = f"{LOGS}/test-stdout.txt"
TAIL = 4000  # characters of the script's output that are kept on record

ROOT = "0"  # by number: the agent may have removed /etc/passwd
SYSTEM_PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

_ARCHIVE_OVERHEAD = 64 << 10
_PULL_DEADLINE = 60.0  # for a file that grows while it is read
_OUTPUT = 64 << 10
_OUTPUT_FILE = 1 << 20
_NO_SECRETS = Secrets()

_BAIT = b"0\n"
_BAITED, _WATCHED, _LOOK = 0.2, 1.0, 0.02  # seconds, spent only where processes of the agent are alive

_ENDED = {
    "oom": "the sandbox's memory was full",
    "disk": "the sandbox's disk was full",
    "output": "the output of the sandbox's commands was used up",
}


@dataclass(frozen=True, slots=True)
class TestRun:
    """How the script is run.

    `beside` says that processes of the agent may be alive, `other_user` that they are of another user than the
    verifier and none of them root. `flaw` is what is wrong with the script's first line, `secrets` must not show on a
    record.
    """

    __test__ = False

    timeout: float | None
    env: Mapping[str, str]
    script: str = f"{TESTS}/test.sh"
    user: str | None = None
    workdir: str | None = None
    beside: bool = False
    other_user: bool = False
    flaw: str | None = None
    secrets: Secrets = _NO_SECRETS


async def stage(runtime: Sandbox, archives: Iterable[bytes]) -> Verdict | None:
    """Put the task's tests, and nothing else, at /tests; a verdict only when the sandbox prevents it.

    Each archive holds a directory called tests. Raises SandboxLost and EngineLost.
    """
    try:
        await place_tests(runtime, archives)
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
        beside = tests.beside and not await runtime.is_quiet()
        owner = await _owner(runtime, tests) if beside else None
        await empty_logs(runtime, owner)
        if beside and owner is None:
            if meddled := await _bait(runtime):
                return meddled, facts_of(meddled)
            await empty_logs(runtime)
        result = await _run(runtime, tests)
        verdict = await _judge(runtime, tests, result, beside)
    except (SandboxLost, EngineLost):
        raise
    except (SandboxError, FileNotFoundError, NotADirectoryError) as err:  # the agent may have removed the directory
        verdict = _undecided(str(err))
    except ValueError as err:  # the sandbox does not know the user any more, or never did
        why = f"{tests.script} was not run: {printable(str(err))}"
        verdict = Verdict(Status.INDETERMINATE, "verifier_not_run", why)
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


async def read_rewards(runtime: Sandbox) -> dict[str, RewardFile | None]:
    """The reward files as they lie in the sandbox, by name: the bytes of each, a refusal, or None."""
    there = {name: await _exists(runtime, f"{LOGS}/{name}") for name in REWARDS}
    if not any(there.values()):  # or links to nowhere, which only an archive tells
        there = dict.fromkeys(REWARDS, True)
    return {name: await _read_reward(runtime, name) if is_there else None for name, is_there in there.items()}


async def _read_reward(runtime: Sandbox, name: str) -> RewardFile | None:
    path = f"{LOGS}/{name}"
    try:
        with suppress(FileNotFoundError):
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


async def _owner(runtime: Sandbox, tests: TestRun) -> int | None:
    """Who alone may write rewards: the verifier's user, where it is another than the agent's, who is not root."""
    if not (tests.beside and tests.other_user):
        return None
    told = await runtime.run(["id", "-u"], SYSTEM_PATH, cwd="/", user=tests.user, timeout=tests.timeout)
    number = told.stdout.strip()
    return int(number) if told.ok and number.isascii() and number.isdigit() else None


async def _run(runtime: Sandbox, tests: TestRun) -> ProgramResult:
    heard = bytearray()

    def hear(stream: str, data: bytes) -> None:
        heard.extend(data)
        del heard[:-_OUTPUT_FILE]

    try:
        result = await _started(runtime, tests, hear)
    except (FileNotFoundError, NotADirectoryError):
        await runtime.push(NOTHING, tests.workdir or ".")  # the agent may have removed its own working directory
        result = await _started(runtime, tests, hear)
    if heard:
        with suppress(OSError, SandboxError):  # what lies there is not what is graded
            await runtime.write(OUTPUT, bytes(heard))
    return result


async def _started(runtime: Sandbox, tests: TestRun, hear: OnOutput) -> ProgramResult:
    return await runtime.run(
        [tests.script],
        tests.env,
        cwd=tests.workdir,
        user=tests.user,
        timeout=tests.timeout,
        output_limit=_OUTPUT,
        on_output=hear,
    )


async def _judge(runtime: Sandbox, tests: TestRun, result: ProgramResult, beside: bool) -> Verdict:
    if result.timed_out:  # what is there may be half written, or written by what made it hang
        reason = f"{tests.script} took longer than its {tests.timeout:g} s; nothing it wrote was read"
        return Verdict(Status.INDETERMINATE, "verifier_timeout", reason)
    files = await read_rewards(runtime)
    if beside and (again := await _written_again(runtime, files)):
        return _meddled(f"wrote {again} once more after {tests.script} had ended")
    verdict = judge_reward(files["reward.txt"], files["reward.json"])
    if verdict.status is not Status.INDETERMINATE:
        return verdict
    flaw = f"; {tests.flaw}" if tests.flaw else ""
    if result.exit_code in (126, 127):
        why = f"could not be run, or a command it needs is missing in the sandbox ({_ending(result)}){flaw}"
        return Verdict(Status.INDETERMINATE, "verifier_not_run", f"{tests.script} {why}")
    return Verdict(verdict.status, verdict.code, f"{verdict.reason} ({_ending(result)}){flaw}")


async def _bait(runtime: Sandbox) -> Verdict | None:
    """A verdict when somebody touches a reward that no verifier has written: it is there before the script is."""
    path, other = (f"{LOGS}/{name}" for name in REWARDS)
    await runtime.write(path, _BAIT)
    until = asyncio.get_running_loop().time() + _BAITED
    while asyncio.get_running_loop().time() < until:
        await asyncio.sleep(_LOOK)
        try:
            touched = await runtime.read(path, len(_BAIT)) != _BAIT or await _exists(runtime, other)
        except (SandboxLost, EngineLost):
            raise
        except (OSError, SandboxError):
            touched = True
        if touched:
            return _meddled("writes rewards itself")
    return None


async def _written_again(runtime: Sandbox, files: Mapping[str, RewardFile | None]) -> str:
    """The reward files that appear once more after they were deleted; if none does they are put back for the logs."""
    await forget_rewards(runtime)
    until = asyncio.get_running_loop().time() + _WATCHED
    while asyncio.get_running_loop().time() < until:
        if again := [name for name in REWARDS if await _exists(runtime, f"{LOGS}/{name}")]:
            return " and ".join(again)
        await asyncio.sleep(_LOOK)
    for name, file in files.items():
        if isinstance(file, bytes):
            await runtime.write(f"{LOGS}/{name}", file)
    return ""


def _meddled(how: str) -> Verdict:
    return Verdict(Status.SCORING_ERROR, "rewritten_reward", f"a process that the agent left running {how}")


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
