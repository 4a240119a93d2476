"""The contract finds bugs in `spawn`: each class below plants one, and the check named for it says broken."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox import Feature, Process, ProgramResult, Provider, Sandbox, SandboxSpec, Terminal
from forkyard.sandbox.contract import Outcome, checks, run_check
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.subprocess import SubprocessProvider, SubprocessSandbox
from forkyard.sandbox.values import Stream

CHECKS = {check.name: check for check in checks()}
A_MOMENT = 2.0  # seconds to wait for what will not come


class Planted:
    """A process with a bug; `caught_by` names the check that has to find it."""

    caught_by = ""
    at_terminals = False

    def __init__(self, inner: Process) -> None:
        self.inner = inner
        self.tasks: list[asyncio.Future[Any]] = []

    @classmethod
    async def spawn(cls, box: Sandbox, *words: Any, **options: Any) -> Process:
        return cls(await box.spawn(*words, **options))

    async def write(self, data: bytes) -> None:
        await self.inner.write(data)

    async def close_stdin(self) -> None:
        await self.inner.close_stdin()

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        async for piece in self.inner.output():
            yield piece

    async def resize(self, cols: int, rows: int) -> None:
        await self.inner.resize(cols, rows)

    async def kill(self) -> None:
        await self.inner.kill()

    async def wait(self) -> ProgramResult:
        return await self.inner.wait()


class KeepsInputBack(Planted):
    caught_by = "a_process_answers_while_its_input_is_open"
    kept = b""

    async def write(self, data: bytes) -> None:
        self.kept += data

    async def close_stdin(self) -> None:
        await self.inner.write(self.kept)
        await self.inner.close_stdin()


class MergesStreams(Planted):
    caught_by = "a_process_answers_while_its_input_is_open"

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        async for _, piece in self.inner.output():
            yield "stdout", piece


class ReadsAhead(Planted):
    caught_by = "output_nobody_pulls_halts_its_process"

    def __init__(self, inner: Process) -> None:
        super().__init__(inner)
        self.pieces: list[tuple[Stream, bytes]] = []
        self.tasks.append(asyncio.ensure_future(self.read()))

    async def read(self) -> None:
        async for piece in self.inner.output():
            self.pieces.append(piece)

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        await self.tasks[0]
        while self.pieces:
            yield self.pieces.pop(0)


class ForgetsWhatIsLeft(Planted):
    caught_by = "output_left_by_a_process_can_be_pulled_later"

    async def wait(self) -> ProgramResult:
        result = await self.inner.wait()
        async for _ in self.inner.output():
            pass
        return result


class CountsNothing(Planted):
    caught_by = "output_left_by_a_process_can_be_pulled_later"

    async def wait(self) -> ProgramResult:
        return replace(await self.inner.wait(), stdout_total=0)


class WritesWithoutWaiting(Planted):
    caught_by = "a_write_waits_for_its_reader"

    async def write(self, data: bytes) -> None:
        self.tasks.append(asyncio.ensure_future(self.inner.write(data)))

    async def close_stdin(self) -> None:
        await asyncio.wait(self.tasks)
        await self.inner.close_stdin()


class SwallowsBrokenPipes(Planted):
    caught_by = "writing_to_nobody_raises"

    async def write(self, data: bytes) -> None:
        with suppress(BrokenPipeError):
            await self.inner.write(data)


class KillsOnlyTheLeader(Planted):
    caught_by = "kill_ends_the_whole_tree_of_a_process"

    @classmethod
    async def spawn(cls, box: Sandbox, *words: Any, **options: Any) -> Process:
        assert isinstance(box, SubprocessSandbox)
        planted = cls(await box.spawn(*words, **options))
        planted.leader = list(box._commands.values())[-1].leader
        return planted

    leader: int | None = None

    async def kill(self) -> None:
        if self.leader is not None:
            os.kill(self.leader, 9)
            await self.inner.wait()


class KillsOnce(Planted):
    caught_by = "kill_ends_the_whole_tree_of_a_process"
    killed = False

    async def kill(self) -> None:
        if self.killed:
            raise SandboxError("killed already")
        self.killed = True
        await self.inner.kill()


class DiesWithWhoWaits(Planted):
    caught_by = "a_process_outlives_whoever_looks_on"

    async def wait(self) -> ProgramResult:
        try:
            return await self.inner.wait()
        except asyncio.CancelledError:
            await self.inner.kill()
            raise


class LosesAPieceWithItsReader(Planted):
    caught_by = "output_left_by_a_process_can_be_pulled_later"

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        pieces = [piece async for piece in self.inner.output()]
        for piece in pieces:
            yield piece


class WaitsForChildren(Planted):
    caught_by = "output_ends_with_its_process"

    @classmethod
    async def spawn(cls, box: Sandbox, *words: Any, **options: Any) -> Process:
        script, *others = words
        held = ["sh", "-c", '"$@" | cat', "sh", "sh", "-c", script] if isinstance(script, str) else script
        return cls(await box.spawn(held, *others, **options))


class CallsTheEndOfTheSandboxADeath(Planted):
    caught_by = "the_end_of_the_sandbox_ends_its_processes"

    async def wait(self) -> ProgramResult:
        try:
            return await self.inner.wait()
        except SandboxLost:
            return ProgramResult(-9)


class RaisesForAMissingProgram(Planted):
    caught_by = "a_process_starts_as_a_command_does"

    @classmethod
    async def spawn(cls, box: Sandbox, *words: Any, **options: Any) -> Process:
        process = await box.spawn(*words, **options)
        if words[0] == ["no-such-program"]:
            raise SandboxError("no such program")
        return process


class IgnoresItsDirectory(Planted):
    caught_by = "a_process_starts_as_a_command_does"

    @classmethod
    async def spawn(cls, box: Sandbox, *words: Any, cwd: str | None = None, **options: Any) -> Process:
        return await box.spawn(*words, **options)


class SpawnsAfterTheEnd(Planted):
    caught_by = "a_stopped_sandbox_spawns_nothing"

    @classmethod
    async def spawn(cls, box: Sandbox, *words: Any, **options: Any) -> Process:
        with suppress(SandboxLost):
            return await box.spawn(*words, **options)
        raise SandboxError("it is closed")


class HasPipesForATerminal(Planted):
    caught_by = "a_terminal_is_one_to_the_command"
    at_terminals = True

    @classmethod
    async def spawn(cls, box: Sandbox, *words: Any, terminal: Terminal | None = None, **options: Any) -> Process:
        return await box.spawn(*words, **options)


class ForgetsTheSize(Planted):
    caught_by = "a_terminal_is_one_to_the_command"
    at_terminals = True

    @classmethod
    async def spawn(cls, box: Sandbox, *words: Any, terminal: Terminal | None = None, **options: Any) -> Process:
        return await box.spawn(*words, **options, terminal=Terminal() if terminal else None)


class HasATerminalOfNoSession(Planted):
    caught_by = "keys_of_a_terminal_act"
    at_terminals = True

    @classmethod
    async def spawn(cls, box: Sandbox, *words: Any, **options: Any) -> Process:
        return await box.spawn(["setsid", "-w", "sh", "-c", *words], **options)


class IgnoresResizes(Planted):
    caught_by = "a_terminal_can_be_resized"
    at_terminals = True

    async def resize(self, cols: int, rows: int) -> None:
        Terminal(cols, rows)


class CutsTheEndOfATerminal(Planted):
    caught_by = "output_through_a_terminal_is_whole"
    at_terminals = True

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        last: tuple[Stream, bytes] | None = None
        async for piece in self.inner.output():
            if last:
                yield last
            last = piece


class HangsUpOnly(Planted):
    caught_by = "kill_ends_what_runs_at_a_terminal"
    at_terminals = True

    async def kill(self) -> None:
        await self.inner.write(b"\x03")


class Box:
    """A sandbox whose processes are planted ones."""

    def __init__(self, inner: Sandbox, planted: type[Planted]) -> None:
        self.inner, self.planted = inner, planted

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def spawn(self, *words: Any, **options: Any) -> Process:
        return await self.planted.spawn(self.inner, *words, **options)


class Boxes:
    """A provider of such sandboxes."""

    def __init__(self, inner: Provider, planted: type[Planted]) -> None:
        self.inner, self.planted = inner, planted

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.inner.close()

    async def create(self, spec: SandboxSpec) -> Any:
        return Box(await self.inner.create(spec), self.planted)


def names(planted: type[Planted]) -> str:
    return f"{planted.__name__}-{planted.caught_by}"


@pytest.mark.slow
@pytest.mark.parametrize("planted", Planted.__subclasses__(), ids=names)
async def test_a_planted_bug_is_found_by_its_check(planted: type[Planted], tmp_path: Path) -> None:
    make: Callable[[Path], Provider] = LocalProvider if planted.at_terminals else SubprocessProvider
    inner = make(tmp_path)
    async with Boxes(inner, planted) as provider:
        result = await run_check(CHECKS[planted.caught_by], provider, patience=A_MOMENT)
        assert result.outcome is Outcome.BROKEN, result
        assert result.message


async def test_what_a_provider_does_not_promise_it_refuses(tmp_path: Path) -> None:
    async with SubprocessProvider(tmp_path) as provider:
        assert Feature.TERMINALS not in provider.features
        box = await provider.create(SandboxSpec())
        with pytest.raises(SandboxError, match="a provider with `terminals`"):
            await box.spawn("true", terminal=Terminal())
