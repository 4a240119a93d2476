"""What `run` promises of time: deadlines, cancellation, and children left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from forkyard.errors import SandboxLost
from forkyard.sandbox.contract.promise import (
    PATIENCE,
    alive,
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
from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import Feature, ProgramResult

SHORT = 1.0  # a deadline in which a shell has mostly started its children


async def _late(box: Sandbox, script: str, begun: str, what: str) -> ProgramResult:
    """The result of a script whose deadline passes once it has begun, as its output tells."""
    deadline = SHORT
    while True:
        result = await _within(deadline + PATIENCE, box.run(script, timeout=deadline), what)
        if result.stdout == begun or deadline > patience_in_use.get() / 4:
            return result
        deadline *= 4  # a machine with much to do may not have come to it


async def _within(seconds: float, awaited: Awaitable[ProgramResult], what: str) -> ProgramResult:
    try:
        async with asyncio.timeout(seconds):
            return await awaited
    except TimeoutError:
        expect(False, f"{what} should return within {seconds:g} s, it did not")
        raise


async def check_deadline_kills_the_whole_tree(provider: Provider) -> None:
    """At the deadline every process of the tree dies: in its own session, forked twice, or holding the output."""
    mark = new_mark()
    script = (
        f"echo begun; (setsid sleep {mark} &); (sh -c 'sleep {mark} & sleep {mark}' &); "
        f"setsid sh -c 'setsid sleep {mark} & wait' & sleep {mark} & sleep {mark}; :"
    )
    async with fresh(provider) as box:
        result = await _late(box, script, "begun\n", "a run past its deadline")
        expect_equal((result.timed_out, result.ok), (True, False), "timed_out and ok")
        expect_equal(result.stdout, "begun\n", "output before the deadline")
        await expect_gone(box, mark, "every process of the tree")


async def check_deadline_kills_what_ignores_signals(provider: Provider) -> None:
    """A command that ignores TERM, INT and HUP dies at the deadline like any other, its children too."""
    mark = new_mark()
    script = f"trap '' TERM INT HUP; sleep {mark} & echo begun; while :; do sleep 0.2; done"
    async with fresh(provider) as box:
        result = await _late(box, script, "begun\n", "a run that ignores signals")
        expect(result.timed_out, "timed_out should be set, it is not")
        await expect_gone(box, mark, "a child that ignores signals")


@needs(Feature.ISOLATED)
async def check_deadline_finds_what_hides(provider: Provider) -> None:
    """At the deadline also those die that left session, parents and environment and closed their output."""
    mark = new_mark()
    script = f"(env -i setsid sh -c '(env -i setsid sleep {mark} >/dev/null 2>&1 </dev/null &)' &); sleep {mark}"
    async with fresh(provider) as box:
        result = await _within(SHORT + PATIENCE, box.run(script, timeout=SHORT), "a run past its deadline")
        expect(result.timed_out, "timed_out should be set, it is not")
        await expect_gone(box, mark, "a process that hides")


async def check_output_before_the_deadline_is_kept(provider: Provider) -> None:
    """What was written before the deadline comes back, and the run returns soon after it."""
    async with fresh(provider) as box:
        script = "printf problem >&2; printf early; sleep 99"
        result = await _late(box, script, "early", "a run past its deadline")
        expect_equal(
            (result.stdout, result.stderr, result.timed_out), ("early", "problem", True), "output and timed_out"
        )


async def check_nothing_goes_on_after_the_deadline(provider: Provider) -> None:
    """No process of the tree takes another step because one it waited for was killed before it."""
    script = "(sleep 99; touch went-on) & (sleep 99; touch went-on) & sleep 99; touch went-on; echo more; echo more >&2"
    async with fresh(provider) as box:
        for _ in range(5):
            result = await _within(SHORT + PATIENCE, box.run(script, timeout=0.2), "a run past its deadline")
            expect_equal((result.stdout, result.stderr, result.timed_out), ("", "", True), "output and timed_out")
        found = await box.run("ls went-on", timeout=PATIENCE)
        expect_equal(found.stdout, "", "files made after the deadline")


async def check_deadline_spares_other_commands(provider: Provider) -> None:
    """A deadline ends its own command's tree only: other commands and earlier daemons of the sandbox go on."""
    daemon, other = new_mark(), new_mark()
    async with fresh(provider) as box:
        await sh(box, f"sleep {daemon} >/dev/null 2>&1 &")
        script = f"touch begun; sleep {other} & while [ ! -e go ]; do sleep 0.05; done; echo whole"
        beside = asyncio.create_task(box.run(script, timeout=PATIENCE))
        await sh(box, "while [ ! -e begun ]; do sleep 0.05; done")
        late = await box.run("sleep 99", timeout=SHORT)
        await box.write("go", b"")
        expect(late.timed_out, "timed_out should be set, it is not")
        expect_equal((await beside).stdout, "whole\n", "output of the command beside")
        for mark, what in ((daemon, "an earlier daemon"), (other, "the other command's child")):
            await expect_alive(box, mark, f"{what}, after another command's deadline,")


async def check_a_cancelled_run_kills_its_tree(provider: Provider) -> None:
    """Cancelling the caller kills the whole tree of the command; the sandbox goes on."""
    mark = new_mark()
    async with fresh(provider) as box:
        begun = asyncio.Event()
        script = f"(setsid sleep {mark} &); sleep {mark} & sleep 0.1; echo begun; sleep {mark}"
        run = asyncio.create_task(box.run(script, on_output=lambda stream, piece: begun.set()))
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
        run.cancel()
        done, _ = await asyncio.wait([run], timeout=patience_in_use.get())
        expect(done and run.cancelled(), "a cancelled run should end as cancelled soon, it did not")
        await expect_gone(box, mark, "the tree of a cancelled run")
        expect_equal(await sh(box, "echo fine"), "fine\n", "the next command")


async def check_a_background_child_does_not_delay_the_result(provider: Provider) -> None:
    """A run returns when its command ends, though a background child still holds its output open."""
    async with fresh(provider) as box:
        result = await box.run(f"sleep {new_mark()} & echo started", timeout=patience_in_use.get())
        expect_equal(
            (result.stdout, result.exit_code, result.timed_out), ("started\n", 0, False), "output, code, timed_out"
        )
        expect_equal(await sh(box, "echo next"), "next\n", "the next command")


async def check_a_daemon_outlives_its_run_and_dies_with_the_sandbox(provider: Provider) -> None:
    """What a command leaves running lives on through later commands, and dies when the sandbox stops or closes."""
    mark, last = new_mark(), new_mark()
    async with fresh(provider) as box:
        await sh(
            box,
            f"sleep {mark} & nohup sh -c 'while [ ! -e go ]; do sleep 0.05; done; echo ok > late' >/dev/null 2>&1 &",
        )
        await expect_alive(box, mark, "a background child, after its command,")
        await sh(box, "touch go; while [ ! -s late ]; do sleep 0.05; done")
        expect_equal(await box.read("late"), b"ok\n", "what the daemon wrote after its command had ended")
        await expect_alive(box, mark, "a background child, after later commands,")
        await box.stop()
        await box.start()
        expect(not await alive(box, mark), "a background child should die when the sandbox stops, it still runs")
        await sh(box, f"setsid sleep {last} >/dev/null 2>&1 &")
        await expect_alive(box, last, "a detached child, after its command,")
    await _expect_gone_on_host(last, "a detached child of a closed sandbox")


async def check_a_background_child_may_keep_writing(provider: Provider) -> None:
    """A background child may go on writing to its command's output, more than a pipe holds, unharmed."""
    script = "(while [ ! -e go ]; do sleep 0.02; done; head -c 300000 /dev/zero && echo survived > flag) & echo started"
    async with fresh(provider) as box:
        result = await box.run(script, timeout=PATIENCE)
        expect_equal(result.stdout, "started\n", "output of the command")
        await box.write("go", b"")
        await sh(box, "while [ ! -e flag ]; do sleep 0.05; done")
        expect_equal(result.stdout_total, 8, "bytes counted for the command")


async def check_closing_ends_a_command_under_way(provider: Provider) -> None:
    """A run in a sandbox that is closed meanwhile ends soon with SandboxLost, and its processes die."""
    mark = new_mark()
    async with fresh(provider) as box:
        run = await _begun(box, f"echo begun; sleep {mark}")
        await box.close()
        with expect_raises("a run in a sandbox closed meanwhile", SandboxLost):
            await _within(10, run, "a run in a closed sandbox")
    await _expect_gone_on_host(mark, "the command of a closed sandbox")


async def _begun(box: Sandbox, script: str) -> asyncio.Task[ProgramResult]:
    """Start a script that says a word first, and wait for the word."""
    heard = asyncio.Event()
    run = asyncio.create_task(box.run(script, on_output=lambda stream, piece: heard.set()))
    async with asyncio.timeout(PATIENCE):
        await heard.wait()
    return run


async def _expect_gone_on_host(mark: str, what: str) -> None:
    async def gone() -> bool:
        return not alive_on_host(mark)

    await eventually(gone, f"{what} should be dead, it still runs")
