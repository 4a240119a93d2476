"""What `pause` and `resume` promise."""

from __future__ import annotations

import asyncio

from forkyard.errors import SandboxError
from forkyard.sandbox.contract.archives import member, pack
from forkyard.sandbox.contract.live_forks import COUNT
from forkyard.sandbox.contract.promise import (
    PATIENCE,
    Stopwatch,
    closing,
    eventually,
    expect,
    expect_equal,
    expect_raises,
    fresh,
    needs,
    sh,
)
from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import Feature

STILL = 0.3
MANY = 4000  # files, which take longer to unpack than a pause takes to begin


async def _log(box: Sandbox) -> int:
    return len(await box.read("/log"))


async def _expect_counting(box: Sandbox, what: str) -> None:
    before = await _log(box)

    async def grew() -> bool:
        return await _log(box) > before

    await eventually(grew, f"a process {what} should go on, it does not")


async def _expect_still(box: Sandbox, what: str) -> None:
    before = await _log(box)
    await asyncio.sleep(STILL)
    expect_equal(await _log(box), before, f"bytes written by a process {what}")


@needs(Feature.PAUSE)
async def check_a_paused_sandbox_stands_still_and_goes_on(provider: Provider) -> None:
    """No process of a paused sandbox does anything until it is resumed; asked twice, both stay as they are."""
    async with fresh(provider) as box:
        await sh(box, f"({COUNT}) >/dev/null 2>&1 & while ! test -s /log; do :; done")
        await box.pause()
        await box.pause()
        expect_equal(box.info.state, "paused", "the state of a paused sandbox")
        await _expect_still(box, "of a paused sandbox")
        await box.resume()
        await box.resume()
        expect_equal(box.info.state, "running", "the state of a resumed sandbox")
        await _expect_counting(box, "of a resumed sandbox")


@needs(Feature.PAUSE)
async def check_what_was_stopped_inside_stays_stopped(provider: Provider) -> None:
    """A process that somebody inside had stopped does not go on with the others."""
    async with fresh(provider) as box:
        count = f"setsid sh -c '{COUNT}' >/dev/null 2>&1 & echo $! > /pid; while ! test -s /log; do :; done"
        await sh(box, count)
        await sh(box, "kill -STOP $(cat /pid); while ! grep -q '^State:.T' /proc/$(cat /pid)/status; do :; done")
        await box.pause()
        await box.resume()
        await _expect_still(box, "that was stopped from inside")
        await sh(box, "kill -CONT $(cat /pid)")
        await _expect_counting(box, "that was let go on from inside")


@needs(Feature.PAUSE)
async def check_nothing_acts_in_a_paused_sandbox(provider: Provider) -> None:
    """Running, writing, pulling and pushing in a paused sandbox is a SandboxError that says so; reading works."""
    async with fresh(provider) as box:
        await box.write("/file", b"content")
        await box.pause()
        for what, act in {
            "run": box.run(["true"]),
            "write": box.write("/file", b"other"),
            "pull": box.pull("/file"),
            "push": box.push(b"", "/"),
        }.items():
            with expect_raises(f"{what} in a paused sandbox", SandboxError) as caught:
                await act
            caught.expect_named("paused", "resume")
        expect_equal(await box.read("/file"), b"content", "a file of a paused sandbox")
        await box.resume()
        expect_equal(await sh(box, "cat /file"), "content", "that file after it was resumed")


@needs(Feature.PAUSE)
async def check_a_command_under_way_is_paused_too(provider: Provider) -> None:
    """A command that runs when its sandbox is paused ends after it is resumed, or at its own deadline."""
    async with fresh(provider) as box:
        script = "echo > /begun; while ! test -e /go; do sleep 0.02; done; echo told"
        slow = asyncio.ensure_future(box.run(script, timeout=3 * PATIENCE))
        try:
            await sh(box, "while ! test -e /begun; do :; done")
            await box.pause()
            await box.resume()
            await box.write("/go", b"")
            expect_equal((await slow).stdout, "told\n", "output of a command that was paused")
        finally:
            slow.cancel()
        for deadline in (1.5, PATIENCE):  # a machine with much to do may not come to it within the first
            late = asyncio.ensure_future(box.run("echo > /again; exec sleep 60", timeout=deadline))
            if (await box.run("while ! test -e /again; do sleep 0.02; done", timeout=deadline)).ok:
                break
            await late
        await box.pause()
        expect((await late).timed_out, "a command should end at its deadline though it is paused, it did not")


@needs(Feature.PAUSE)
async def check_a_push_under_way_is_paused_too(provider: Provider) -> None:
    """Nothing of an archive is unpacked while its sandbox is paused; after it is resumed the rest is."""
    archive = pack(member(f"{number}", b"") for number in range(MANY))
    async with fresh(provider) as box:
        pushing = asyncio.ensure_future(box.push(archive, "/pushed"))
        try:

            async def begun() -> bool:
                return pushing.done() or await _is_there(box, "/pushed/0")

            await eventually(begun, "a push should begin, it does not")
            await box.pause()
            before = await _unpacked(box)
            await asyncio.sleep(STILL)
            expect_equal(await _unpacked(box), before, "files of a push into a sandbox that was paused meanwhile")
            await box.resume()
            await pushing
            expect_equal(await _unpacked(box), MANY, "files of a push after it was resumed")
        finally:
            pushing.cancel()


async def _unpacked(box: Sandbox) -> int:
    """How many files are there, which come one after another."""
    low, high = 0, MANY
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if await _is_there(box, f"/pushed/{middle}") else (low, middle)
    return low


async def _is_there(box: Sandbox, path: str) -> bool:
    try:
        await box.read(path)
    except FileNotFoundError:
        return False
    return True


@needs(Feature.PAUSE)
async def check_a_paused_sandbox_can_be_stopped_and_closed(provider: Provider) -> None:
    """Stopping and closing a paused sandbox works at once; started again, it runs."""
    watch = Stopwatch()
    async with fresh(provider) as box:
        await sh(box, "echo kept > /kept; sleep 1000 >/dev/null 2>&1 &")
        await box.pause()
        await box.stop()
        expect_equal(box.info.state, "stopped", "the state of a paused sandbox that was stopped")
        with expect_raises("pausing a stopped sandbox", SandboxError) as caught:
            await box.pause()
        caught.expect_named("stopped")
        await box.start()
        expect_equal(await sh(box, "cat /kept"), "kept\n", "a file after pause, stop and start")
        await box.pause()
    watch.expect_under(PATIENCE, "pausing, stopping and closing")


@needs(Feature.PAUSE, Feature.FORK_RUNNING)
async def check_a_fork_of_a_paused_sandbox_runs_and_its_source_stands_still(provider: Provider) -> None:
    """A paused sandbox can be forked: the fork runs, the source stays paused."""
    async with fresh(provider) as box:
        await sh(box, f"({COUNT}) >/dev/null 2>&1 & while ! test -s /log; do :; done")
        await box.pause()
        async with closing(await box.fork()) as fork:
            expect_equal((box.info.state, fork.info.state), ("paused", "running"), "states of source and fork")
            expect(await fork.read("/log") == await box.read("/log"), "source and fork should have the same files")
            expect_equal(await sh(fork, "echo runs"), "runs\n", "a command in the fork")
            await _expect_still(box, "of a paused sandbox that was forked")
        await box.resume()
        await _expect_counting(box, "of a sandbox resumed after its fork")
