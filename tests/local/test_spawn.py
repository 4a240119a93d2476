"""Spawned processes of the local provider: what they hold, what becomes of them, and who is in the way of whom."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any

import pytest

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox import Feature, Limits, Process, ProgramResult, Sandbox, SandboxSpec, Terminal
from forkyard.sandbox.contract.promise import expect_gone, new_mark
from forkyard.sandbox.held.channel import Channel
from forkyard.sandbox.held.commands import Commands
from forkyard.sandbox.inside import rootfs, wire
from forkyard.sandbox.local import LocalProvider

BLANKS = 8  # descriptors of the PID 1s that wait ready, which come and go


async def pulled(process: Process) -> tuple[bytes, ProgramResult]:
    got = b""
    async with asyncio.timeout(100):
        async for _, piece in process.output():
            got += piece
        return got, await process.wait()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def expect_no_more_than(files: int) -> None:
    """That so many are open soon: a pipe is closed once its last writer has really ended."""
    async with asyncio.timeout(100):
        while open_files() > files:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("terminal", [None, Terminal()])
async def test_processes_leave_no_descriptors(local: LocalProvider, terminal: Terminal | None) -> None:
    box = await local.create(SandboxSpec())
    await pulled(await box.spawn("echo first", terminal=terminal))
    before = open_files()
    for _ in range(20):
        assert await pulled(await box.spawn("echo out", terminal=terminal))
        unread = await box.spawn("echo out; exit 3", terminal=terminal)
        assert (await unread.wait()).exit_code == 3
        killed = await box.spawn("sleep 100", terminal=terminal)
        await killed.kill()
        await (await box.spawn(["no-such-program"], terminal=terminal)).wait()
        with pytest.raises(FileNotFoundError):
            await box.spawn("true", cwd="/no/such", terminal=terminal)
        with pytest.raises(ValueError):
            await box.spawn("true", user="no-such-user", terminal=terminal)
    await expect_no_more_than(before + BLANKS)
    running = [await box.spawn("sleep 100", terminal=terminal) for _ in range(3)]
    await box.close()
    for process in running:
        with pytest.raises(SandboxLost):
            await process.wait()
    await expect_no_more_than(before + BLANKS)


@pytest.mark.parametrize("terminal", [None, Terminal()])
async def test_a_spawn_that_is_cancelled_leaves_nothing_running(
    local: LocalProvider, terminal: Terminal | None
) -> None:
    box = await local.create(SandboxSpec())
    await box.run("true")
    before = open_files()
    for steps in range(1, 16):
        mark = new_mark()
        task = asyncio.ensure_future(box.spawn(["sleep", mark], terminal=terminal))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().kill()
        await expect_gone(box, mark, "a command nobody has")
    await expect_no_more_than(before + BLANKS)


async def test_a_process_and_a_live_fork_are_not_in_each_others_way(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    process = await box.spawn("while read -r line; do echo got $line; done")
    forks = [asyncio.ensure_future(box.fork()) for _ in range(2)]
    others = await asyncio.gather(*(box.spawn(f"echo {n}") for n in range(8)))
    assert [(await pulled(other))[0] for other in others] == [f"{n}\n".encode() for n in range(8)]
    for fork in await asyncio.gather(*forks):
        assert await fork.is_quiet()
    await process.write(b"on\n")
    await process.close_stdin()
    assert (await pulled(process))[0] == b"got on\n"


async def test_a_process_stands_still_while_its_sandbox_is_paused(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    process = await box.spawn("while read -r line; do echo got $line; done")
    await box.pause()
    with pytest.raises(SandboxError, match="is paused"):
        await box.spawn("true")
    await process.write(b"on\n")
    pull = asyncio.ensure_future(anext(process.output()))
    await asyncio.wait([pull], timeout=0.3)
    assert not pull.done()
    await box.resume()
    assert await pull == ("stdout", b"got on\n")
    await box.pause()
    async with asyncio.timeout(100):
        await process.kill()
    assert (await process.wait()).exit_code == -9


async def test_a_process_that_closed_its_input_cannot_be_written_to(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    process = await box.spawn("exec <&-; echo closed; sleep 99")
    await anext(process.output())
    with pytest.raises(BrokenPipeError):
        await process.write(b"x")


async def test_two_who_pull_share_what_there_is(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    process = await box.spawn("head -c 1000000 /dev/zero")
    parts = await asyncio.gather(pulled(process), pulled(process))
    assert sum(len(part) for part, _ in parts) == 1_000_000


async def test_what_a_process_writes_counts_among_the_output_of_its_sandbox(local: LocalProvider) -> None:
    if Feature.LIMIT_OUTPUT not in local.features:
        pytest.skip("this machine bounds no output")
    box = await local.create(SandboxSpec(limits=Limits(output_mb=1)))
    got, result = await pulled(await box.spawn("head -c 3000000 /dev/zero; sleep 100"))
    assert (result.exit_code, result.ended_by) == (-9, "output")
    assert len(got) <= 3_000_000
    got, result = await pulled(await box.spawn("echo more"))
    assert (got, result.exit_code, result.ended_by) == (b"", -9, "output")


async def test_a_sandbox_cannot_use_up_the_terminals_of_the_machine(local: LocalProvider) -> None:
    greedy, other = await local.create(SandboxSpec()), await local.create(SandboxSpec())
    script = (
        "import os\nheld = []\ntry:\n  while True: held.append(os.openpty())\nexcept OSError as e: print(len(held))"
    )
    got, _ = await pulled(await greedy.spawn(["python3", "-c", script]))
    assert 0 < int(got) <= rootfs.TERMINALS
    greedily = await greedy.spawn(["python3", "-c", f"import time\n{script}\nprint(flush=True)\ntime.sleep(100)"])
    assert await anext(greedily.output())
    with pytest.raises(SandboxError, match="a command can have no terminal"):
        await greedy.spawn("tty", terminal=Terminal())
    assert (await pulled(await other.spawn("tty", terminal=Terminal())))[0] == b"/dev/pts/0\r\n"


async def test_a_pid_1_that_gives_no_terminal_is_not_believed() -> None:
    ours, theirs = socket.socketpair()
    before = open_files()
    commands = Commands(channel := Channel(ours, lambda: None), lambda why: None)
    spawning = asyncio.ensure_future(commands.spawn({"argv": ["true"]}, Terminal(), lambda result: result))
    with theirs:
        theirs.setblocking(False)
        buffer = bytearray()
        while not (asked := wire.split(buffer, 1 << 16)):
            buffer += await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
        nothing = os.open(os.devnull, os.O_RDWR)
        answer: dict[str, Any] = {"id": asked[0]["id"], "event": "opened", "fds": 2}
        theirs.sendmsg([wire.encode(answer)], wire.ancillary([nothing, nothing]))
        os.close(nothing)
        with pytest.raises(SandboxError, match="no terminal"):
            await spawning
        assert open_files() == before
        channel.end("the test is over")


async def test_many_processes_live_beside_each_other(local: LocalProvider) -> None:
    box: Sandbox = await local.create(SandboxSpec())
    processes = [await box.spawn("read -r line; echo $line; sleep 0.1; exit 3") for _ in range(30)]
    for number, process in enumerate(processes):
        await process.write(f"{number}\n".encode())
    for number, process in enumerate(processes):
        got, result = await pulled(process)
        assert (got, result.exit_code) == (f"{number}\n".encode(), 3)


async def test_a_provider_that_is_closed_ends_its_processes(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    process = await box.spawn("sleep 100")
    await local.close()
    with pytest.raises(SandboxLost):
        await process.wait()
    with suppress(BrokenPipeError):
        await process.write(b"x")
        raise AssertionError("nobody reads it")
