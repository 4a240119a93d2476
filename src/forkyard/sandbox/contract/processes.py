"""What `spawn` promises: input and output while a command runs, its end, and whose it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from forkyard.errors import SandboxLost
from forkyard.sandbox.contract.promise import (
    PATIENCE,
    alive_on_host,
    eventually,
    expect,
    expect_alive,
    expect_equal,
    expect_gone,
    expect_raises,
    fresh,
    needs,
    new_mark,
    patience_in_use,
    sh,
)
from forkyard.sandbox.protocol import Process, Provider, Sandbox
from forkyard.sandbox.values import Feature, ProgramResult
from forkyard.values import MIB

A_WHILE = 0.5  # in which what must not happen would have happened
T = TypeVar("T")


async def within(awaited: Awaitable[T], what: str) -> T:
    """What is awaited; Broken when it does not come in time."""
    seconds = patience_in_use.get()
    try:
        async with asyncio.timeout(seconds):
            return await awaited
    except TimeoutError:
        expect(False, f"{what} should come within {seconds:g} s, it did not")
        raise


async def heard(process: Process, wanted: bytes) -> bytes:
    """What a process wrote until `wanted` was in it."""
    got = b""

    async def pull() -> bytes:
        nonlocal got
        async for _, piece in process.output():
            got += piece
            if wanted in got:
                return got
        expect(False, f"a process should write {wanted!r}, it wrote {got[-200:]!r} and no more")
        return got

    return await within(pull(), f"{wanted!r} from a process")


async def whole(process: Process) -> tuple[bytes, bytes, ProgramResult]:
    """All a process writes to either stream from now on, and how it ends."""
    got = {"stdout": b"", "stderr": b""}

    async def pull() -> ProgramResult:
        async for stream, piece in process.output():
            got[stream] += piece
        return await process.wait()

    result = await within(pull(), "the end of a process")
    return got["stdout"], got["stderr"], result


@needs(Feature.PROCESSES)
async def check_a_process_answers_while_its_input_is_open(provider: Provider) -> None:
    """What is written to a process reaches it at once, and what it writes is there at once."""
    async with fresh(provider) as box:
        process = await box.spawn("while read -r line; do echo got $line; done; echo end >&2; exit 7")
        for word in ("one", "two"):
            await process.write(f"{word}\n".encode())
            expect_equal(await heard(process, b"\n"), f"got {word}\n".encode(), "answer of the process")
        await process.close_stdin()
        await process.close_stdin()
        out, err, result = await whole(process)
        expect_equal((out, err), (b"", b"end\n"), "what came after the end of input")
        expect_equal(result.exit_code, 7, "exit code")
        expect_equal((result.stdout_bytes, result.stderr_bytes), (b"", b""), "output kept in the result")
        expect_equal((result.stdout_total, result.stderr_total), (16, 4), "bytes counted in the result")


@needs(Feature.PROCESSES)
async def check_output_nobody_pulls_halts_its_process(provider: Provider) -> None:
    """A process whose output nobody pulls comes to a halt, goes on when it is pulled, and nothing of it is lost."""
    async with fresh(provider) as box:
        process = await box.spawn(f"head -c {3 * MIB} /dev/zero; touch written; echo end >&2")
        await asyncio.sleep(A_WHILE)
        found = await box.run("ls written", timeout=PATIENCE)
        expect_equal(found.stdout, "", "what a process did that should have come to a halt")
        out, err, result = await whole(process)
        expect_equal((len(out), err), (3 * MIB, b"end\n"), "bytes pulled")
        expect_equal((result.exit_code, result.stdout_total), (0, 3 * MIB), "exit code and bytes counted")


@needs(Feature.PROCESSES)
async def check_output_left_by_a_process_can_be_pulled_later(provider: Provider) -> None:
    """What a process wrote before it ended is there to be pulled after its end, in parts too."""
    async with fresh(provider) as box:
        process = await box.spawn("printf first; printf problem >&2; exit 3")
        result = await within(process.wait(), "the end of a process that is not read")
        expect_equal((result.exit_code, result.stdout_total, result.stderr_total), (3, 5, 7), "exit code and totals")
        pieces = []
        for _ in range(2):
            async for piece in process.output():
                pieces.append(piece)
                break
        expect_equal(sorted(pieces), [("stderr", b"problem"), ("stdout", b"first")], "what was pulled after the end")
        expect_equal(await whole(process), (b"", b"", result), "what is left when all was pulled")


@needs(Feature.PROCESSES)
async def check_a_write_waits_for_its_reader(provider: Provider) -> None:
    """A write waits while the process does not read, and goes on when it does."""
    async with fresh(provider) as box:
        process = await box.spawn("while [ ! -e go ]; do sleep 0.02; done; wc -c")
        write = asyncio.ensure_future(process.write(bytes(3 * MIB)))
        await asyncio.wait([write], timeout=A_WHILE)
        expect(not write.done(), "a write of 3 MB should wait for its reader, it returned before anything was read")
        await box.write("go", b"")
        await within(write, "the end of a write that is read")
        await process.close_stdin()
        out, _, _ = await whole(process)
        expect_equal(out.strip(), str(3 * MIB).encode(), "bytes read by the process")


@needs(Feature.PROCESSES)
async def check_writing_to_nobody_raises(provider: Provider) -> None:
    """A write that nobody reads raises BrokenPipeError: after the end of input or process, and while it waits."""
    async with fresh(provider) as box:
        process = await box.spawn("sleep 99")
        write = asyncio.ensure_future(process.write(bytes(3 * MIB)))
        await asyncio.wait([write], timeout=0.1)
        await within(process.kill(), "the end of a process that was killed")
        with expect_raises("a write under way when the process is killed", BrokenPipeError):
            await within(write, "the end of such a write")
        with expect_raises("a write to a process that has ended", BrokenPipeError):
            await within(process.write(b"x"), "the end of such a write")
        process = await box.spawn("cat")
        await process.close_stdin()
        with expect_raises("a write after the end of input", BrokenPipeError):
            await within(process.write(b"x"), "the end of such a write")
        expect_equal((await whole(process))[2].exit_code, 0, "exit code of one whose input was closed")


@needs(Feature.PROCESSES)
async def check_kill_ends_the_whole_tree_of_a_process(provider: Provider) -> None:
    """`kill` ends what a process started, detached children too, spares other commands, and is fine twice."""
    mark, other = new_mark(), new_mark()
    async with fresh(provider) as box:
        beside = await box.spawn(["sleep", other])
        script = f"trap '' TERM INT HUP; (setsid sleep {mark} &); sleep {mark} & echo begun; sleep {mark}"
        process = await box.spawn(script)
        await heard(process, b"begun\n")
        await within(process.kill(), "the end of a process that was killed")
        await expect_gone(box, mark, "the tree of a killed process")
        out, err, result = await whole(process)
        expect_equal((out, err, result.exit_code), (b"", b"", -9), "output and exit code of a killed process")
        await within(process.kill(), "the end of a process that was killed twice")
        await expect_alive(box, other, "a process beside the killed one")
        await beside.kill()


@needs(Feature.PROCESSES)
async def check_a_process_outlives_whoever_looks_on(provider: Provider) -> None:
    """Cancelling who waits for a process, reads it or started it does nothing to it, and loses none of its output."""
    async with fresh(provider) as box:
        process = await asyncio.create_task(box.spawn("read -r line; echo got $line"))
        for look in (process.wait(), heard(process, b"got")):
            task = asyncio.ensure_future(look)
            await asyncio.wait([task], timeout=0.1)
            task.cancel()
            await asyncio.wait([task], timeout=PATIENCE)
            expect(task.cancelled(), "one who looks on should be gone when cancelled")
        await process.write(b"on\n")
        out, _, result = await whole(process)
        expect_equal((out, result.exit_code), (b"got on\n", 0), "output and exit code")


@needs(Feature.PROCESSES)
async def check_output_ends_with_its_process(provider: Provider) -> None:
    """The output of a process ends with it, though a child holds it open; the child lives on, and may write."""
    mark = new_mark()
    child = f"while [ ! -e go ]; do sleep 0.02; done; head -c 300000 /dev/zero && echo survived > flag; sleep {mark}"
    async with fresh(provider) as box:
        process = await box.spawn(f"({child}) & echo started")
        out, _, result = await whole(process)
        expect_equal((out, result.exit_code), (b"started\n", 0), "output and exit code")
        await process.kill()  # which has ended
        await box.write("go", b"")
        await sh(box, "while [ ! -e flag ]; do sleep 0.05; done")
        await expect_alive(box, mark, "a child of a process that has ended")


@needs(Feature.PROCESSES)
async def check_the_end_of_the_sandbox_ends_its_processes(provider: Provider) -> None:
    """When the sandbox stops or closes its processes die, their output ends and `wait` raises SandboxLost."""
    for end in ("stop", "close"):
        mark = new_mark()
        async with fresh(provider) as box:
            process = await box.spawn(f"echo begun; sleep {mark}")
            await heard(process, b"begun\n")
            last = asyncio.ensure_future(heard(process, b"more"))
            await (box.stop() if end == "stop" else box.close())
            with expect_raises(f"`wait` of a process when its sandbox {end}s", SandboxLost):
                await within(process.wait(), "the end of such a process")
            done, _ = await asyncio.wait([last], timeout=PATIENCE)
            expect(done and last.exception(), f"the output of a process should end when its sandbox {end}s")
            await within(process.kill(), "a kill of such a process")

            async def gone(mark: str = mark) -> bool:
                return not alive_on_host(mark)

            await eventually(gone, f"a process should be dead when its sandbox {end}s, it still runs")


@needs(Feature.PROCESSES)
async def check_a_process_starts_as_a_command_does(provider: Provider) -> None:
    """Words, environment and directory of a process are those of `run`, and so are the errors."""
    async with fresh(provider) as box:
        await sh(box, "mkdir -p work")
        process = await box.spawn(
            ["sh", "-c", 'basename "$PWD"; echo "$0 $NAME"', "a  b"], {"NAME": "c  d"}, cwd="work"
        )
        out, _, _ = await whole(process)
        expect_equal(out, b"work\na  b c  d\n", "directory, argument and variable")
        with expect_raises("a process in a directory that is missing", FileNotFoundError):
            await box.spawn("true", cwd="/no/such/directory")
        with expect_raises("a process of an unknown user", ValueError):
            await box.spawn("true", user="no-such-user")
        with expect_raises("a process of an empty command", ValueError):
            await box.spawn([])
        missing = await box.spawn(["no-such-program"])
        out, err, result = await whole(missing)
        expect_equal((out, result.exit_code), (b"", 127), "output and exit code of a program that does not exist")
        expect(b"no-such-program" in err, f"standard error should name a program that does not exist: {err!r}")


@needs(Feature.PROCESSES)
async def check_a_stopped_sandbox_spawns_nothing(provider: Provider) -> None:
    """In a sandbox that is closed `spawn` raises SandboxLost."""
    box: Sandbox
    async with fresh(provider) as box:
        pass
    with expect_raises("spawning in a closed sandbox", SandboxLost):
        await box.spawn("true")
