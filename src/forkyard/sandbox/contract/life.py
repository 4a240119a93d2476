"""What is promised of a sandbox's life: making, naming, listing, stopping, starting, closing."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable

from forkyard.errors import ConfigError, SandboxError, SandboxLost
from forkyard.sandbox.contract.promise import (
    PATIENCE,
    alive,
    closing,
    expect,
    expect_alive,
    expect_equal,
    expect_raises,
    fresh,
    image_in_use,
    needs,
    new_mark,
    sh,
    spec,
)
from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import Feature, SandboxInfo


def new_name(word: str = "contract") -> str:
    """A name nobody else uses."""
    return f"{word}-{uuid.uuid4().hex[:12]}"


async def _listed(provider: Provider, box: Sandbox) -> SandboxInfo | None:
    return next((info for info in await provider.sandboxes() if info.id == box.id), None)


async def check_info_says_what_it_is(provider: Provider) -> None:
    """`info` tells id, name, image, parent, state and the time of making."""
    before, name = time.time(), new_name()
    async with fresh(provider, spec(name=name)) as box, fresh(provider) as nameless:
        info = box.info
        expect_equal((info.id, info.name), (box.id, name), "id and name")
        expect_equal(info.image.partition("@")[0], image_in_use.get(), "image, before the version it stands for")
        expect_equal((info.state, info.parent), ("running", None), "state and parent")
        expect(before - 2 <= info.created <= time.time() + 2, f"created should be now, it is {info.created}")
        expect_equal(nameless.info.name, None, "name of a sandbox made without one")
        await box.stop()
        expect_equal(box.info.state, "stopped", "state after stop")
        await box.start()
        expect_equal(box.info.state, "running", "state after start")


async def check_sandboxes_lists_each(provider: Provider) -> None:
    """`sandboxes` lists what runs and what is stopped, and what is closed no more."""
    name = new_name()
    async with fresh(provider, spec(name=name)) as box, fresh(provider) as other:
        ids = [info.id for info in await provider.sandboxes()]
        expect_equal((ids.count(box.id), ids.count(other.id)), (1, 1), "lines of two sandboxes")
        expect(box.id != other.id, "two sandboxes should have different ids")
        await box.stop()
        expect_equal(await _listed(provider, box), box.info, "line of a stopped sandbox")
    expect_equal(await _listed(provider, box), None, "line of a closed sandbox")


async def check_names_are_unique(provider: Provider) -> None:
    """A name in use, by a running or a stopped sandbox, is a ConfigError naming it; once closed it is free."""
    name = new_name()
    async with fresh(provider, spec(name=name)) as box:
        for state in ("running", "stopped"):
            if state == "stopped":
                await box.stop()
            with expect_raises(f"a name in use by a {state} sandbox", ConfigError) as caught:
                await (await provider.create(spec(name=name))).close()
            caught.expect_named(name)
    async with fresh(provider, spec(name=name)) as box:
        expect_equal(box.info.name, name, "name used again")


async def check_odd_names_of_sandboxes_work(provider: Provider) -> None:
    """Names with capitals, dots, slashes, colons, or 200 characters are kept as they are."""
    for name in (
        new_name("Mixed.Case__Name"),
        new_name("run/with:slash and blank"),
        new_name("x" * 180),
        new_name("é.."),
    ):
        async with fresh(provider, spec(name=name)) as box:
            expect_equal(box.info.name, name, "name")
            expect_equal(await sh(box, "echo fine"), "fine\n", f"a command in {name!r}")
            await box.stop()
            async with closing(await provider.open(name)) as again:
                expect_equal(again.id, box.id, f"id of {name!r} opened by name")


async def check_open_finds_a_stopped_sandbox(provider: Provider) -> None:
    """`open` finds a stopped sandbox by name and by id, with its files; an unknown one is a ConfigError naming it."""
    name = new_name()
    async with fresh(provider, spec(name=name)) as box:
        await box.write("file", b"kept")
        await box.stop()
        for key in (name, box.id):
            again = await provider.open(key)
            expect_equal((again.id, again.info.name, again.info.state), (box.id, name, "stopped"), "id, name and state")
            await again.start()
            expect_equal(await sh(again, "cat file"), "kept", "content of a file")
            await again.stop()
        missing = new_name("missing")
        with expect_raises("opening what is not there", ConfigError) as caught:
            await provider.open(missing)
        caught.expect_named(missing)


async def check_unknown_image_is_a_config_error(provider: Provider) -> None:
    """An image that does not exist is a ConfigError naming it, before anything is made."""
    image, name = new_name("no-image"), new_name()
    with expect_raises("an unknown image", ConfigError) as caught:
        await (await provider.create(spec(image=image, name=name))).close()
    caught.expect_named(image)
    expect(all(info.name != name for info in await provider.sandboxes()), "nothing should be left of it, it is listed")


async def check_stop_ends_every_process(provider: Provider) -> None:
    """`stop` ends every process, those that ignore signals and those detached."""
    mark = new_mark()
    async with fresh(provider) as box, fresh(provider) as observer:
        await sh(box, f"trap '' TERM HUP INT; (setsid sleep {mark} >/dev/null 2>&1 &); sleep {mark} >/dev/null 2>&1 &")
        await expect_alive(box, mark, "a process, before stop,")
        await box.stop()
        expect(not await alive(observer, mark), "no process should be left after stop, one runs")
        await box.start()
        expect(not await alive(box, mark), "no process should be left after stop and start, one runs")


async def check_start_brings_back_the_files(provider: Provider) -> None:
    """After stop and start the files are all there, written an instant before, in /tmp and /run too; commands work."""
    async with fresh(provider) as box:
        await box.write("/tmp/early", b"1")
        await box.write("/run/agent.pid", b"1")
        await box.write("/tmp/.setup-done", b"")
        await sh(box, "printf last > file; mkdir -p d/e; ln -s file link; chmod 750 file")
        await box.stop()
        await box.start()
        expect_equal(await sh(box, "cat link; stat -c %a file; ls d"), "last750\ne\n", "files after stop and start")
        expect_equal(
            (await box.read("/tmp/early"), await box.read("/run/agent.pid")), (b"1", b"1"), "files in /tmp and /run"
        )


async def check_stopping_or_starting_again_changes_nothing(provider: Provider) -> None:
    """`stop` of a stopped sandbox and `start` of a running one do nothing: files and processes stay."""
    mark = new_mark()
    async with fresh(provider) as box:
        await sh(box, f"printf kept > file; sleep {mark} >/dev/null 2>&1 &")
        await box.start()
        await expect_alive(box, mark, "a process, after a second start,")
        await box.stop()
        await box.stop()
        expect_equal(box.info.state, "stopped", "state after a second stop")
        await box.start()
        await box.start()
        expect_equal(box.info.state, "running", "state after a second start")
        expect_equal(await sh(box, "cat file"), "kept", "content of a file")


async def check_spec_survives_stop_and_start(provider: Provider) -> None:
    """Environment and working directory of a sandbox stay over stop, start and open."""
    async with fresh(provider, spec(env={"A": "a  b"}, workdir="/srv/here", name=new_name())) as box:
        await box.write("file", b"content")
        await box.stop()
        again = await provider.open(box.id)
        await again.start()
        expect_equal(
            await sh(again, 'printf "%s|" "$A"; cat file'), "a  b|content", "environment and working directory"
        )


async def check_a_stopped_sandbox_runs_nothing(provider: Provider) -> None:
    """A command in a stopped sandbox is a SandboxError, not a result."""
    async with fresh(provider) as box:
        await box.stop()
        with expect_raises("a command in a stopped sandbox", SandboxError):
            await box.run(["true"], timeout=PATIENCE)


async def check_close_twice_is_fine(provider: Provider) -> None:
    """Closing again does nothing, one after the other or at once, from running and from stopped."""
    async with fresh(provider) as box:
        await asyncio.gather(box.close(), box.close())
        await box.close()
    async with fresh(provider) as box:
        await box.stop()
        await box.close()
        await box.close()


async def check_use_after_close_raises_sandbox_lost(provider: Provider) -> None:
    """Every method of a closed sandbox raises SandboxLost."""
    async with fresh(provider) as box:
        await box.write("file", b"x")
        await box.close()
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "run": lambda: box.run(["true"], timeout=PATIENCE),
            "read": lambda: box.read("file"),
            "write": lambda: box.write("file", b"x"),
            "pull": lambda: box.pull("."),
            "push": lambda: box.push(b"\0" * 10240, "."),
            "listen": lambda: box.listen(4000),
            "fork": lambda: box.fork(),
            "stop": lambda: box.stop(),
            "start": lambda: box.start(),
        }
        for what, call in calls.items():
            with expect_raises(f"{what} after close", SandboxLost):
                await call()


async def check_sweep_leaves_what_is_in_use(provider: Provider) -> None:
    """`sweep` returns sentences and touches no sandbox of a living owner, running or stopped."""
    async with fresh(provider, spec(name=new_name())) as stopped, fresh(provider) as running:
        await stopped.write("file", b"kept")
        await stopped.stop()
        removed = await provider.sweep()
        expect(all(isinstance(line, str) for line in removed), f"sweep should return sentences, got {removed!r}")
        expect_equal(await sh(running, "echo fine"), "fine\n", "a command in the running sandbox")
        await stopped.start()
        expect_equal(await stopped.read("file"), b"kept", "file of the stopped sandbox")


@needs(Feature.ISOLATED)
async def check_killing_pid_1_is_harmless_or_said(provider: Provider) -> None:
    """A command that kills PID 1 changes nothing, or the sandbox is lost and says so; it never hangs."""
    async with fresh(provider) as box:
        try:
            await box.run("kill -9 1; kill -TERM 1; kill -INT 1; kill -HUP 1; sleep 0.1", timeout=PATIENCE)
            result = await box.run("echo fine", timeout=PATIENCE)
        except SandboxError:
            return
        expect_equal((result.stdout, result.exit_code), ("fine\n", 0), "a command after PID 1 was killed")
