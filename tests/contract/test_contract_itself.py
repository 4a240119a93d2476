"""The contract finds bugs: each class below plants one, and the check named for it says broken."""

import asyncio
import io
import os
import shlex
import subprocess
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import SandboxError
from forkyard.sandbox import Feature, ProgramResult, Provider, SandboxSpec
from forkyard.sandbox.contract import Check, Outcome, checks, expect, needs, run_check, run_contract
from forkyard.sandbox.contract.promise import expect_raises, needs_of
from forkyard.sandbox.contract.runner import PREFIX
from forkyard.sandbox.subprocess import SubprocessProvider, SubprocessSandbox
from forkyard.sandbox.subprocess.command import Child, Command
from forkyard.sandbox.subprocess.processes import kill_tree
from forkyard.sandbox.subprocess.sandbox import sandbox_marker
from forkyard.sandbox.subprocess.store import Record

CHECKS = {check.name: check for check in checks()}
A_MOMENT = 2.0  # seconds to wait for what will not come
Argv = Sequence[str] | str
Env = Mapping[str, str] | None


def _words(argv: Argv) -> list[str]:
    return ["sh", "-c", argv] if isinstance(argv, str) else list(argv)


class Planted(SubprocessSandbox):
    """A sandbox with a bug; `caught_by` names the checks that have to find it."""

    caught_by: tuple[str, ...] = ()
    waits = False  # whether its checks find it by waiting

    def at(self, path: str) -> Path:
        """The host's path, found as carelessly as possible."""
        return self._disk / path.lstrip("/")


class KeepsTheHeadOfOutput(Planted):
    caught_by = ("output_is_capped_at_the_tail", "each_stream_has_its_own_limit")

    async def run(self, argv: Argv, env: Env = None, *, output_limit: int = 1 << 20, **options: Any) -> ProgramResult:
        result = await super().run(argv, env, output_limit=1 << 28, **options)
        return replace(
            result,
            stdout_bytes=result.stdout_bytes[:output_limit],
            stderr_bytes=result.stderr_bytes[:output_limit],
        )


class LosesSignals(Planted):
    caught_by = ("death_by_signal_is_a_negative_code",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        result = await super().run(argv, env, **options)
        return replace(result, exit_code=128 - result.exit_code) if result.exit_code < 0 else result


class LeavesStdinOpen(Planted):
    waits = True
    caught_by = ("stdin_is_at_its_end_by_default",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        return await super().run(["sh", "-c", 'tail -f /dev/null | "$@"', "sh", *_words(argv)], env, **options)


class DropsStdin(Planted):
    caught_by = ("stdin_reaches_the_command",)

    async def run(self, argv: Argv, env: Env = None, *, stdin: bytes = b"", **options: Any) -> ProgramResult:
        return await super().run(argv, env, stdin=stdin[: 1 << 16], **options)


class KillsOnlyTheChild(Planted):
    waits = True
    caught_by = ("deadline_kills_the_whole_tree", "a_cancelled_run_kills_its_tree")

    def _end(self, command: Child, key: str) -> None:
        if command.leader is not None:
            os.kill(command.leader, 9)
            os.waitid(os.P_PID, command.leader, os.WEXITED | os.WNOWAIT)


class KillsOneAfterAnother(Planted):
    caught_by = ("nothing_goes_on_after_the_deadline",)

    def _end(self, command: Child, key: str) -> None:
        for pid in Path(f"/proc/{command.leader}/task/{command.leader}/children").read_text().split():
            os.kill(int(pid), 9)
        time.sleep(0.2)
        super()._end(command, key)


class CancelledRunGoesOn(Planted):
    waits = True
    caught_by = ("a_cancelled_run_kills_its_tree",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        task = asyncio.ensure_future(super().run(argv, env, **options))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)


class LosesEarlyOutput(Planted):
    caught_by = ("output_before_the_deadline_is_kept",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        result = await super().run(argv, env, **options)
        return ProgramResult(-9, timed_out=True) if result.timed_out else result


class RaisesAtTheDeadline(Planted):
    caught_by = ("deadline_kills_what_ignores_signals",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        result = await super().run(argv, env, **options)
        if result.timed_out:
            raise TimeoutError
        return result


class JoinsArguments(Planted):
    caught_by = ("argv_is_never_a_shell",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        return await super().run(argv if isinstance(argv, str) else " ".join(argv), env, **options)


class SplitsScripts(Planted):
    caught_by = ("a_string_is_a_shell_script",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        return await super().run(shlex.split(argv) if isinstance(argv, str) else argv, env, **options)


class CutsEnvironment(Planted):
    caught_by = ("env_values_arrive_byte_for_byte",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        cut = {name: value.strip().partition(" ")[0] for name, value in (env or {}).items()}
        return await super().run(argv, cut, **options)


class LeaksEnvironment(Planted):
    caught_by = ("no_host_environment_leaks",)

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **super()._environment(env)}


class IgnoresCwd(Planted):
    caught_by = ("cwd_is_honoured", "missing_cwd_is_an_error_naming_it")

    async def run(self, argv: Argv, env: Env = None, *, cwd: str | None = None, **options: Any) -> ProgramResult:
        return await super().run(argv, env, **options)


class CallsAMissingCwdAnEngineFault(Planted):
    caught_by = ("missing_cwd_is_an_error_naming_it",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        try:
            return await super().run(argv, env, **options)
        except OSError as err:
            raise SandboxError(str(err)) from err


class TakesAnEmptyCommand(Planted):
    caught_by = ("an_empty_command_raises_value_error",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        return await super().run(argv or ["true"], env, **options)


class SwallowsErrorsOfOnOutput(Planted):
    caught_by = ("an_error_of_on_output_ends_the_command",)

    async def run(self, argv: Argv, env: Env = None, *, on_output: Any = None, **options: Any) -> ProgramResult:
        def hear(stream: str, piece: bytes) -> None:
            with suppress(KeyError):
                on_output(stream, piece)

        return await super().run(argv, env, on_output=hear if on_output else None, **{**options, "timeout": 1})


class IgnoresUser(Planted):
    caught_by = ("user_is_honoured_or_refused", "unknown_user_raises_value_error")

    async def run(self, argv: Argv, env: Env = None, *, user: str | None = None, **options: Any) -> ProgramResult:
        return await super().run(argv, env, **options)


class MissingCommandRaises(Planted):
    caught_by = ("missing_command_is_127",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        result = await super().run(argv, env, **options)
        if result.exit_code == 127:
            raise SandboxError("no such command")
        return result


class WaitsForChildren(Planted):
    waits = True
    caught_by = ("a_background_child_does_not_delay_the_result",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        return await super().run(["sh", "-c", '"$@" | cat', "sh", *_words(argv)], env, **options)


class KillsChildrenAtTheEnd(Planted):
    caught_by = ("a_daemon_outlives_its_run_and_dies_with_the_sandbox",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        result = await super().run(argv, env, **options)
        kill_tree(sandbox_marker(self.id))
        return result


class ClosesTheOutputOfChildren(Planted):
    waits = True
    caught_by = ("a_background_child_may_keep_writing",)

    def _settled(self, command: Command, result: ProgramResult, life: object) -> ProgramResult:
        command.close()
        return super()._settled(command, result, life)


class StreamsAtTheEnd(Planted):
    waits = True
    caught_by = ("output_streams_while_the_command_runs",)

    async def run(self, argv: Argv, env: Env = None, *, on_output: Any = None, **options: Any) -> ProgramResult:
        result = await super().run(argv, env, **options)
        if on_output:
            on_output("stdout", result.stdout_bytes)
        return result


class KeepsTextOnly(Planted):
    caught_by = ("output_bytes_are_kept",)

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        result = await super().run(argv, env, **options)
        return replace(result, stdout_bytes=result.stdout.encode())


class ForgetsTotals(Planted):
    caught_by = ("output_is_capped_at_the_tail", "a_flood_of_output_needs_no_memory")

    async def run(self, argv: Argv, env: Env = None, **options: Any) -> ProgramResult:
        result = await super().run(argv, env, **options)
        return replace(result, stdout_total=len(result.stdout_bytes))


class HoardsOutput(Planted):
    caught_by = ("a_flood_of_output_needs_no_memory",)

    async def run(self, argv: Argv, env: Env = None, *, output_limit: int = 1 << 20, **options: Any) -> ProgramResult:
        result = await super().run(argv, env, output_limit=1 << 30, **options)
        return replace(result, stdout_bytes=result.stdout_bytes[-output_limit:])


class ReadsWithoutBound(Planted):
    caught_by = ("read_over_the_limit_raises",)

    async def read(self, path: str, max_bytes: int = 0) -> bytes:
        return await super().read(path, 1 << 40)


class CallsAFileInTheWayMissing(Planted):
    caught_by = ("a_file_in_the_way_raises_not_a_directory_error",)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        try:
            return await super().read(path, max_bytes)
        except NotADirectoryError as err:
            raise FileNotFoundError(str(err)) from err


class ReadsThroughLinks(Planted):
    caught_by = ("a_link_cannot_lead_read_to_the_host",)

    async def read(self, path: str, max_bytes: int = 0) -> bytes:
        return self.at(path).read_bytes()


class WritesThroughLinks(Planted):
    caught_by = ("a_link_cannot_lead_write_to_the_host",)

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self.at(path).write_bytes(data)


class ModesUnderUmask(Planted):
    caught_by = ("write_applies_its_mode",)

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        mask = os.umask(0)
        os.umask(mask)
        await super().write(path, data, mode & ~mask)


class PullsThroughLinks(Planted):
    caught_by = ("pull_names_members_relative_to_the_path",)

    async def pull(self, path: str, exclude: Sequence[str] = (), max_bytes: int = 1 << 30) -> bytes:
        await super().pull(path, exclude, max_bytes)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
            for entry in self.at(path).iterdir():
                if entry.exists():
                    tar.add(entry, entry.name, recursive=False)
        return buffer.getvalue()


class IgnoresExclude(Planted):
    caught_by = ("exclude_leaves_members_out",)

    async def pull(self, path: str, exclude: Sequence[str] = (), max_bytes: int = 1 << 30) -> bytes:
        return await super().pull(path, (), max_bytes)


class PullsWithoutBound(Planted):
    caught_by = ("pull_over_the_limit_raises",)

    async def pull(self, path: str, exclude: Sequence[str] = (), max_bytes: int = 1 << 30) -> bytes:
        return await super().pull(path, exclude, 1 << 40)


class PushesThroughLinks(Planted):
    caught_by = (
        "push_refuses_to_leave_the_root",
        "push_refuses_hard_links_that_leave",
        "push_over_a_link_does_not_write_through_it",
        "push_refuses_devices",
    )

    async def push(self, archive: bytes, path: str = "/", *, layer: bool = False) -> None:
        self.at(path).mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                tar.extract(member, self.at(path), filter="fully_trusted")


class ForksShareFiles(Planted):
    caught_by = ("forks_start_equal_and_stay_apart", "a_template_is_unchanged_by_its_forks")

    def _copy(self, target: str) -> None:
        subprocess.run(["cp", "-al", f"{self._disk}/.", self._store.disk(target)], check=True)


class ForksLoseModes(Planted):
    caught_by = ("forks_start_equal_and_stay_apart",)

    def _copy(self, target: str) -> None:
        subprocess.run(["cp", "-r", f"{self._disk}/.", self._store.disk(target)], check=True, umask=0o077)


class ForksWhileRunning(Planted):
    caught_by = ("forking_a_running_sandbox_is_refused",)

    async def fork(self, name: str | None = None) -> SubprocessSandbox:
        if self.info.state == "running":
            await self.stop()
        return await super().fork(name)


class StopLeavesProcesses(Planted):
    caught_by = ("stop_ends_every_process", "a_fork_has_no_processes_of_its_template")

    def _end_all(self) -> None:
        if self._closing:
            super()._end_all()


class StartForgetsFiles(Planted):
    caught_by = ("start_brings_back_the_files",)

    async def stop(self) -> None:
        subprocess.run(["rm", "-rf", self._disk / "tmp"], check=True)
        await super().stop()


class StopsOnce(Planted):
    caught_by = ("stopping_or_starting_again_changes_nothing",)

    async def stop(self) -> None:
        self._require("running")
        await super().stop()


class StartsOnce(Planted):
    caught_by = ("stopping_or_starting_again_changes_nothing",)

    async def start(self) -> None:
        self._require("stopped")
        await super().start()


class RunsWhileStopped(Planted):
    caught_by = ("a_stopped_sandbox_runs_nothing",)

    def _require(self, state: str, hint: str = "") -> None:
        if self._closing:
            super()._require(state, hint)


class ClosesOnce(Planted):
    caught_by = ("close_twice_is_fine",)

    async def close(self) -> None:
        if self.closed:
            raise SandboxError("closed already")
        await super().close()


class LivesAfterClose(Planted):
    caught_by = ("use_after_close_raises_sandbox_lost",)

    async def close(self) -> None:
        self._end_all()


class ForgetsItsName(Planted):
    caught_by = ("names_are_unique", "open_finds_a_stopped_sandbox", "info_says_what_it_is")

    def __init__(self, store: Any, record: Record, make: Any) -> None:
        super().__init__(store, replace(record, name=None), make)
        store.save(self._record)


MUTANTS = [
    pytest.param(planted, check, id=f"{planted.__name__}-{check}", marks=[pytest.mark.slow] if planted.waits else [])
    for planted in Planted.__subclasses__()
    for check in planted.caught_by
]


def provider_of(planted: type[Planted], home: Path) -> SubprocessProvider:
    class Provider(SubprocessProvider):
        def _sandbox(self, record: Record) -> SubprocessSandbox:
            return planted(self._store, record, self._adopt)

    return Provider(home)


@pytest.mark.parametrize(("planted", "check"), MUTANTS)
async def test_a_planted_bug_is_found_by_its_check(planted: type[Planted], check: str, tmp_path: Path) -> None:
    async with provider_of(planted, tmp_path) as provider:
        result = await run_check(CHECKS[check], provider, patience=A_MOMENT)
    assert result.outcome is Outcome.BROKEN
    assert result.message


async def test_a_run_of_the_contract_tells_of_every_promise_in_order(tmp_path: Path) -> None:
    async with SubprocessProvider(tmp_path) as provider:
        results = {result.name: result for result in await run_contract(provider, image="no-such-image")}
        assert not await provider.sandboxes()
    assert list(results) == list(CHECKS)
    for name, check in CHECKS.items():
        not_declared = results[name].outcome is Outcome.NOT_DECLARED
        assert not_declared == bool(check.needs - SubprocessProvider.features)
    assert sum(result.outcome is Outcome.BROKEN for result in results.values()) > 80


def test_checks_are_found_by_name_and_say_what_they_promise() -> None:
    assert len(CHECKS) == len(checks()) > 80
    for check in checks():
        assert check.function.__name__ == PREFIX + check.name
        assert check.promise.endswith(".")
        assert check.needs == needs_of(check.function)


def _check(function: Any) -> Check:
    return Check("planned", "promise", "test", needs_of(function), function)


async def test_a_check_that_fails_is_broken_with_its_message(tmp_path: Path) -> None:
    async def fails(provider: Provider) -> None:
        expect(False, "expected 2, got 1")

    async with SubprocessProvider(tmp_path) as provider:
        result = await run_check(_check(fails), provider)
    assert (result.outcome, result.message) == (Outcome.BROKEN, "expected 2, got 1")


async def test_a_check_in_which_anything_raises_is_broken(tmp_path: Path) -> None:
    async def raises(provider: Provider) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(provider.open("nothing"))

    async with SubprocessProvider(tmp_path) as provider:
        result = await run_check(_check(raises), provider)
    assert result.outcome is Outcome.BROKEN
    assert "ConfigError: there is no sandbox 'nothing'" in result.message


async def test_a_check_of_an_undeclared_feature_is_not_run(tmp_path: Path) -> None:
    @needs(Feature.LISTEN, Feature.FORK)
    async def never(provider: Provider) -> None:
        raise AssertionError

    async with SubprocessProvider(tmp_path) as provider:
        result = await run_check(_check(never), provider)
    assert (result.outcome, result.message) == (Outcome.NOT_DECLARED, "subprocess does not promise listen")


async def test_a_check_runs_on_the_image_given(tmp_path: Path) -> None:
    async with SubprocessProvider(tmp_path) as provider:
        result = await run_check(CHECKS["close_twice_is_fine"], provider, image="no-such-image")
    assert "no-such-image" in result.message


async def test_expecting_an_error_that_does_not_come_is_broken(tmp_path: Path) -> None:
    async def expects(provider: Provider) -> None:
        box = await provider.create(SandboxSpec())
        with expect_raises("running true", SandboxError):
            await box.run(["true"])

    async with SubprocessProvider(tmp_path) as provider:
        result = await run_check(_check(expects), provider)
    assert result.message == "running true: expected SandboxError, nothing was raised"
