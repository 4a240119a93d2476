"""What `fork` promises."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox.contract.life import new_name
from forkyard.sandbox.contract.promise import (
    alive,
    closing,
    expect,
    expect_alive,
    expect_equal,
    expect_raises,
    fresh,
    needs,
    new_mark,
    sh,
    spec,
)
from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import Feature

FILL = """
mkdir -p work/d; printf base > work/file; ln -s file work/link
printf x > work/tool; chmod 750 work/tool; printf one > work/d/one; printf two > work/d/two
"""
CHANGE = """
printf more >> work/file; printf new > work/new; chmod 700 work/tool
rm work/d/one; rm -r work/d; mkdir work/d
"""
LIST = "ls -A work work/d; cat work/file; readlink work/link; stat -c %a work/tool"


async def _template(box: Sandbox) -> str:
    """Fill a sandbox and stop it; returns what LIST prints in it and in every fresh fork."""
    await sh(box, FILL)
    listing = await sh(box, LIST)
    await box.stop()
    return listing


@needs(Feature.FORK)
async def check_forks_start_equal_and_stay_apart(provider: Provider) -> None:
    """Forks start with the template's files and running; what one changes the others never see."""
    async with fresh(provider) as template:
        listing = await _template(template)
        async with closing(await template.fork()) as one, closing(await template.fork()) as two:
            expect_equal((one.info.state, one.info.parent), ("running", template.id), "state and parent of a fork")
            expect(len({one.id, two.id, template.id}) == 3, "forks should have ids of their own")
            for box in (one, two):
                expect_equal(await sh(box, LIST), listing, "files of a fresh fork")
            await sh(one, CHANGE)
            await one.write("work/link", b"replaced")
            expect_equal(await sh(two, LIST), listing, "files of one fork after changes in the other")
            await sh(two, "printf two > work/file")
            expect_equal(await sh(one, "cat work/file; ls -A work/d"), "basemore", "files of the changed fork")


@needs(Feature.FORK)
async def check_a_template_is_unchanged_by_its_forks(provider: Provider) -> None:
    """A template outlives its forks and, started again, has exactly its own files."""
    async with fresh(provider) as template:
        listing = await _template(template)
        async with closing(await template.fork()) as fork:
            await sh(fork, CHANGE)
        async with closing(await template.fork()) as fork:
            expect_equal(await sh(fork, LIST), listing, "files of a fork made after another was closed")
        await template.start()
        expect_equal(await sh(template, LIST), listing, "files of the template after its forks")


@needs(Feature.FORK)
async def check_a_fork_outlives_its_template(provider: Provider) -> None:
    """A fork keeps what it shares when the template changes or is closed."""
    async with fresh(provider) as template:
        listing = await _template(template)
        async with closing(await template.fork()) as fork:
            await template.start()
            await sh(template, "printf changed > work/file; rm -r work/d")
            expect_equal(await sh(fork, LIST), listing, "files of a fork after its template changed")
            await template.close()
            expect_equal(await sh(fork, LIST), listing, "files of a fork after its template was closed")
            await fork.stop()
            await fork.start()
            expect_equal(await sh(fork, LIST), listing, "files of that fork after stop and start")


@needs(Feature.FORK)
async def check_a_fork_of_a_fork_works(provider: Provider) -> None:
    """A chain of forks gathers what each link wrote, without sync; earlier links and siblings have none of it."""
    async with AsyncExitStack() as stack:
        template = await stack.enter_async_context(fresh(provider))
        await sh(template, "printf t > t")
        await template.stop()
        chain = [template]
        for letter in "abcd":
            box = await stack.enter_async_context(closing(await chain[-1].fork()))
            await sh(box, f"printf {letter} > {letter}; printf {letter} >> t")
            await box.stop()
            chain.append(box)
        await chain[-1].start()
        expect_equal(await sh(chain[-1], "cat t a b c d"), "tabcdabcd", "files at the end of the chain")
        sibling = await stack.enter_async_context(closing(await chain[1].fork()))
        expect_equal(
            await sh(sibling, "cat t a; ls b c d 2>/dev/null || :"), "taa", "files of a sibling at the second link"
        )
        await template.start()
        expect_equal(await sh(template, "cat t; ls a b c d 2>/dev/null || :"), "t", "files of the template")


@needs(Feature.FORK)
async def check_forking_a_running_sandbox_is_refused(provider: Provider) -> None:
    """Without the feature, forking a sandbox that runs is a SandboxError that says so, and the sandbox goes on."""
    if Feature.FORK_RUNNING in provider.features:
        return
    async with fresh(provider) as box:
        with expect_raises("forking a running sandbox", SandboxError) as caught:
            await (await box.fork()).close()
        caught.expect_named("running", "stop")
        expect_equal(await sh(box, "echo fine"), "fine\n", "the next command")


@needs(Feature.FORK)
async def check_a_fork_has_no_processes_of_its_template(provider: Provider) -> None:
    """A fork has the files of its template and none of its processes; its own die with it alone."""
    mark, own = new_mark(), new_mark()
    async with fresh(provider) as template:
        await sh(template, f"sleep {mark} >/dev/null 2>&1 & echo $! > pid")
        await template.stop()
        async with closing(await template.fork()) as one, closing(await template.fork()) as two:
            expect(not await alive(one, mark), "a fork should have no process of its template, it has one")
            await sh(two, f"sleep {own} >/dev/null 2>&1 &")
            await one.close()
            await expect_alive(two, own, "a fork's process, after another fork was closed,")


@needs(Feature.FORK, Feature.ISOLATED)
async def check_a_fork_has_its_own_hostname_and_entropy(provider: Provider) -> None:
    """Forks of one template have different host names and random bytes."""
    script = "cat /proc/sys/kernel/hostname; head -c 16 /dev/urandom | od -An -tx1"
    async with fresh(provider) as template:
        await template.stop()
        async with closing(await template.fork()) as one, closing(await template.fork()) as two:
            (host_one, bytes_one), (host_two, bytes_two) = [(await sh(box, script)).splitlines() for box in (one, two)]
            expect(host_one != host_two, f"forks should have different host names, both are {host_one!r}")
            expect(bytes_one != bytes_two, "forks should have different random bytes, they are equal")


@needs(Feature.FORK)
async def check_a_fork_keeps_environment_and_workdir(provider: Provider) -> None:
    """A fork has the environment and the working directory of its template."""
    async with fresh(provider, spec(env={"A": "a  b"}, workdir="/srv/here")) as template:
        await template.write("file", b"content")
        await template.stop()
        async with closing(await template.fork()) as fork:
            expect_equal(
                await sh(fork, 'printf "%s|" "$A"; cat file'), "a  b|content", "environment and a file of workdir"
            )


@needs(Feature.FORK)
async def check_forks_have_names_of_their_own(provider: Provider) -> None:
    """A fork gets the name asked for and no other; a name in use is a ConfigError naming it."""
    name, fork_name = new_name("template"), new_name("fork")
    async with fresh(provider, spec(name=name)) as template:
        await template.stop()
        async with closing(await template.fork(fork_name)) as fork, closing(await template.fork()) as nameless:
            expect_equal((fork.info.name, nameless.info.name), (fork_name, None), "names of two forks")
            for taken in (name, fork_name):
                with expect_raises("forking under a name in use", ConfigError) as caught:
                    await (await template.fork(taken)).close()
                caught.expect_named(taken)


@needs(Feature.FORK)
async def check_many_forks_at_once(provider: Provider) -> None:
    """A template can be forked eight times at once, and each fork is whole."""
    async with fresh(provider) as template, AsyncExitStack() as stack:
        listing = await _template(template)
        forks = await asyncio.gather(*(template.fork() for _ in range(8)))
        for fork in forks:
            stack.push_async_callback(fork.close)
        got = await asyncio.gather(*(sh(fork, LIST) for fork in forks))
        expect_equal(got, [listing] * 8, "files of eight forks")
