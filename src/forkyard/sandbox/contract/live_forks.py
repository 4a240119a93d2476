"""What `fork` of a sandbox that is not stopped promises."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from forkyard.sandbox.contract.forks import CHANGE, FILL, LIST
from forkyard.sandbox.contract.promise import (
    alive,
    closing,
    expect,
    expect_alive,
    expect_equal,
    fresh,
    needs,
    new_mark,
    sh,
)
from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import Feature

COUNT = "i=0; : > /log; while :; do i=$((i+1)); echo $i >> /log; done"


@needs(Feature.FORK_RUNNING)
async def check_a_fork_of_a_running_sandbox_is_equal_and_apart(provider: Provider) -> None:
    """A running sandbox can be forked: the fork has its files and what it deleted, and neither sees the other."""
    async with fresh(provider) as source:
        await sh(source, FILL + CHANGE)
        listing = await sh(source, LIST)
        async with closing(await source.fork()) as fork:
            expect_equal((fork.info.state, fork.info.parent), ("running", source.id), "state and parent of the fork")
            expect_equal(await sh(fork, LIST), listing, "files of the fork")
            await sh(fork, "printf fork > work/file; rm work/new")
            expect_equal(await sh(source, LIST), listing, "files of the source after changes in its fork")
            await sh(source, "printf source > work/file")
            expect_equal(await sh(fork, "cat work/file; ls work"), "forkd\nfile\nlink\ntool\n", "files of the fork")


@needs(Feature.FORK_RUNNING)
async def check_a_fork_of_a_running_sandbox_is_one_moment_of_its_disk(provider: Provider) -> None:
    """What processes write while they are forked is in the fork up to one moment, and they go on."""
    async with fresh(provider) as source:
        await sh(source, f"({COUNT}) >/dev/null 2>&1 & while ! test -s /log; do :; done")
        for _ in range(3):
            async with closing(await source.fork()) as fork:
                lines = (await fork.read("/log")).decode().splitlines()
                expect_equal(lines, [str(number) for number in range(1, len(lines) + 1)], "numbers counted in the fork")
                expect(len(lines) < len((await _grown(source, len(lines))).splitlines()), "the source should count on")


async def _grown(source: Sandbox, lines: int) -> bytes:
    while True:
        log = await source.read("/log")
        if len(log.splitlines()) > lines:
            return log
        await asyncio.sleep(0.01)


@needs(Feature.FORK_RUNNING)
async def check_a_fork_of_a_running_sandbox_has_none_of_its_processes(provider: Provider) -> None:
    """Of a running source the fork has the files alone; the source keeps its processes."""
    mark = new_mark()
    async with fresh(provider) as source:
        await sh(source, f"sleep {mark} >/dev/null 2>&1 &")
        await expect_alive(source, mark, "a process of the source, before the fork,")
        async with closing(await source.fork()) as fork:
            expect(not await alive(fork, mark), "a fork should have no process of its source, it has one")
        await expect_alive(source, mark, "a process of the source, after its fork was closed,")


@needs(Feature.FORK_RUNNING)
async def check_a_running_fork_of_a_running_fork_gathers_all(provider: Provider) -> None:
    """Forks of running forks gather what each link wrote, and outlive the links before them."""
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(fresh(provider))
        for letter in "abcd":
            await sh(box, f"printf {letter} > {letter}; printf {letter} >> all")
            following = await stack.enter_async_context(closing(await box.fork()))
            await box.close()
            box = following
        expect_equal(await sh(box, "cat all a b c d"), "abcdabcd", "files at the end of the chain")
        await box.stop()
        async with closing(await box.fork()) as fork:
            expect_equal(await sh(fork, "cat all a b c d"), "abcdabcd", "files of a fork of its end, stopped")


@needs(Feature.FORK_RUNNING)
async def check_forks_of_a_running_sandbox_at_once(provider: Provider) -> None:
    """A running sandbox can be forked four times at once, and each fork is whole."""
    async with fresh(provider) as source, AsyncExitStack() as stack:
        await sh(source, FILL)
        listing = await sh(source, LIST)
        forks = await asyncio.gather(*(source.fork() for _ in range(4)))
        for fork in forks:
            stack.push_async_callback(fork.close)
        expect_equal([await sh(fork, LIST) for fork in forks], [listing] * 4, "files of four forks")
        expect_equal(await sh(source, LIST), listing, "files of the source")
