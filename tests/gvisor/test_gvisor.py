"""What is special to sandboxes in gVisor: whose kernel is inside, what is left behind, a whole rollout."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from forkyard.errors import ConfigError, SandboxError, SandboxLost
from forkyard.sandbox import Feature, Limits, SandboxSpec, Terminal
from forkyard.sandbox.contract.archives import member, pack
from forkyard.sandbox.gvisor import GvisorProvider
from forkyard.sandbox.held.channel import Reply
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.live import Live
from forkyard.sandbox.local.sandbox import LocalSandbox
from forkyard.sandbox.network import Network
from tests.support.leftovers import mounts_of, processes_of

READ_AT_ONCE = 1 << 16  # of an archive
OWNER = """
    import asyncio, sys
    from pathlib import Path
    from forkyard.sandbox import SandboxSpec
    from forkyard.sandbox.gvisor import GvisorProvider

    async def main():
        async with GvisorProvider(Path(sys.argv[1])) as provider:
            kept = await provider.create(SandboxSpec(name="kept"))
            await kept.write("/note", b"kept")
            await kept.stop()
            forks = [await kept.fork() for _ in range(2)]
            for fork in forks:
                await fork.run("sleep 98766 > /dev/null 2>&1 &")
            print("up", flush=True)
            await asyncio.sleep(600)

    asyncio.run(main())
"""


def processes_with(*words: str) -> list[str]:
    """The command lines of this machine that hold one of `words`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if any(word in line for word in words):
            found.append(line)
    return found


async def test_the_kernel_inside_is_gvisors(runsc: None, home: Path) -> None:
    async with GvisorProvider(home) as gvisor:
        box = await gvisor.create(SandboxSpec())
        said = await box.run("dmesg; cat /proc/version")
        assert "gVisor" in said.stdout
        assert os.uname().release not in said.stdout
        await box.close()


async def test_a_template_of_local_is_forked_in_gvisor_and_the_other_way_round(runsc: None, home: Path) -> None:
    async with LocalProvider(home) as local, GvisorProvider(home) as gvisor:
        made = await local.create(SandboxSpec(name="shared-with-gvisor"))
        await made.run("mkdir -p /work; echo local > /work/file; rm /etc/shells")
        await made.stop()
        fork = await (await gvisor.open("shared-with-gvisor")).fork("back-to-local")
        assert (await fork.run("cat /work/file; test -e /etc/shells || echo removed")).stdout == "local\nremoved\n"
        await fork.run("echo gvisor > /work/file; rm /etc/hosts")
        await fork.stop()
        back = await (await local.open("back-to-local")).fork()
        assert (await back.run("cat /work/file; test -e /etc/hosts || echo removed")).stdout == "gvisor\nremoved\n"
        for box in (back, fork, made):
            await box.close()


async def test_an_empty_tmp_is_the_disks_and_survives_a_stop(runsc: None, home: Path) -> None:
    async with GvisorProvider(home) as gvisor:
        box = await gvisor.create(SandboxSpec())
        assert (await box.run("find /tmp -mindepth 1; echo x > /tmp/kept")).stdout == ""
        await box.stop()
        await box.start()
        assert await box.read("/tmp/kept") == b"x\n"
        await box.close()


async def test_what_it_cannot_do_is_refused(runsc: None, home: Path) -> None:
    async with GvisorProvider(home) as gvisor:
        with pytest.raises(ConfigError, match="cannot bound memory_mb on this machine"):
            await gvisor.create(SandboxSpec(limits=Limits(memory_mb=100)))
        box = await gvisor.create(SandboxSpec())
        with pytest.raises(SandboxError, match="has no 'terminal': use one of `local`"):
            await box.spawn("echo none", terminal=Terminal())
        assert (await box.run("echo fine")).stdout == "fine\n"
        await box.close()
        last = (await gvisor.findings())[-1]
        assert "terminals" in last.detail and "-e local" in last.mend


async def test_without_ports_there_are_none_and_no_network(runsc: None, home: Path) -> None:
    async with GvisorProvider(home, ports=False) as gvisor:
        assert not {Feature.LISTEN, Feature.CONNECT, Feature.ALLOWLIST, Feature.PUBLIC_NETWORK} & gvisor.features
        with pytest.raises(ConfigError, match="no network 'public'"):
            await gvisor.create(SandboxSpec(network=Network("public")))
        box = await gvisor.create(SandboxSpec())
        for refused in (box.listen(8080), box.connect(8080)):
            with pytest.raises(SandboxError, match="use one of `local`"):
                await refused
        for place, answer in (("169.254.169.254/80", "No route"), ("127.0.0.1/9", "refused")):
            said = await box.run(["bash", "-c", f"exec 3<>/dev/tcp/{place}"], timeout=100)
            assert answer in said.stderr
        await box.close()


async def test_what_is_killed_while_it_is_halted_does_nothing_more(runsc: None, home: Path) -> None:
    async with GvisorProvider(home) as gvisor:
        box = await gvisor.create(SandboxSpec())
        begun = asyncio.Event()
        script = "setsid sh -c 'sleep 600; echo late > /late' & echo begun; wait"
        killed = asyncio.create_task(box.run(script, on_output=lambda *said: begun.set()))
        await asyncio.wait_for(begun.wait(), 100)
        await box.pause()
        killed.cancel()
        await asyncio.gather(killed, return_exceptions=True)
        await box.resume()
        async with asyncio.timeout(100):
            while not await box.is_quiet():
                await asyncio.sleep(0.01)
        with pytest.raises(FileNotFoundError):
            await box.read("/late")
        await box.close()


@asynccontextmanager
async def push_under_way(box: LocalSandbox) -> AsyncIterator[tuple[int, asyncio.Future[Reply]]]:
    """A push to /pushed that waits for more of its archive, which is written here, and the answer at its end."""
    (read, write), null = os.pipe(), os.open(os.devnull, os.O_RDWR)
    try:
        request = live(box).channel.new_id()
        answer = await live(box).channel.post(request, "push", [read, null, null], path="/pushed", cwd="/", layer=False)
    finally:
        os.close(read)
        os.close(null)
    try:
        yield write, answer
    finally:
        os.close(write)


async def created(gvisor: GvisorProvider) -> LocalSandbox:
    box = await gvisor.create(SandboxSpec())
    assert isinstance(box, LocalSandbox)
    return box


def live(box: LocalSandbox) -> Live:
    assert box._live is not None
    return box._live


async def read_when_there(box: LocalSandbox, path: str) -> bytes:
    async with asyncio.timeout(100):
        while True:
            with suppress(FileNotFoundError):
                return await box.read(path)
            await asyncio.sleep(0.01)


async def test_a_push_that_waits_for_its_archive_is_halted_and_goes_on(runsc: None, home: Path) -> None:
    async with GvisorProvider(home) as gvisor:
        box = await created(gvisor)
        content = bytes(READ_AT_ONCE - tarfile.BLOCKSIZE)
        whole = memoryview(pack(member(name, content) for name in ("first", "second")))
        async with push_under_way(box) as (archive, answer):
            os.write(archive, whole[:READ_AT_ONCE])
            await read_when_there(box, "/pushed/first")
            await box.pause()
            os.write(archive, whole[READ_AT_ONCE : 2 * READ_AT_ONCE])
            fork = await box.fork()
            assert (await fork.run("ls /pushed")).stdout == "first\n"
            with pytest.raises(FileNotFoundError):
                await box.read("/pushed/second")
            await box.resume()
            await read_when_there(box, "/pushed/second")
            os.write(archive, whole[2 * READ_AT_ONCE :])
        async with asyncio.timeout(100):
            assert (await answer)[0]["status"] == 0
        assert await box.read("/pushed/second") == content
        await fork.close()
        await box.close()


@pytest.mark.parametrize("halted", [False, True])
async def test_a_push_ends_with_everything_else(runsc: None, home: Path, halted: bool) -> None:
    async with GvisorProvider(home) as gvisor:
        box = await created(gvisor)
        async with push_under_way(box) as (_, answer):
            if halted:
                await box.pause()
            await live(box).clear()
            async with asyncio.timeout(100):
                assert (await answer)[0]["status"] == -signal.SIGKILL
        await box.close()


async def test_a_runsc_that_leaves_no_log_costs_its_command_alone(runsc: None, home: Path) -> None:
    async with GvisorProvider(home) as gvisor:
        box = await created(gvisor)
        begun = asyncio.Event()
        await box.run("mkfifo /go")
        command = asyncio.create_task(box.run("echo begun; cat /go", on_output=lambda *said: begun.set()))
        await asyncio.wait_for(begun.wait(), 100)
        (log,) = Path(f"/proc/{live(box).pid}/root/run").glob("*.log")
        log.unlink()
        await box.run("echo > /go")
        with pytest.raises(SandboxError, match="runsc ended without a word"):
            await command
        assert (await box.run("echo fine")).stdout == "fine\n"
        await box.close()


async def test_a_sandbox_whose_guests_cannot_be_killed_goes_with_them(runsc: None, home: Path) -> None:
    async with GvisorProvider(home) as gvisor:
        box = await created(gvisor)
        begun = asyncio.Event()
        command = asyncio.create_task(box.run("echo begun; sleep 600", on_output=lambda *said: begun.set()))
        await asyncio.wait_for(begun.wait(), 100)
        shutil.rmtree(f"/proc/{live(box).pid}/root/run/state")  # runsc finds no gVisor any more
        command.cancel()
        await asyncio.gather(command, return_exceptions=True)
        with pytest.raises(SandboxLost):
            await box.run("true")
        await box.close()


@pytest.mark.slow
async def test_of_what_forks_away_nothing_is_left_at_a_deadline(runsc: None, home: Path) -> None:
    async with GvisorProvider(home) as gvisor:
        box = await gvisor.create(SandboxSpec())
        with suppress(SandboxLost):  # it forked faster than it was stopped, and the sandbox went
            away = "away() { away & }; away; sleep 600"
            assert (await box.run(f"({away}) > /dev/null 2>&1", timeout=1)).timed_out
            async with asyncio.timeout(100):
                while not await box.is_quiet():
                    await asyncio.sleep(0.01)
        await box.close()


def test_without_runsc_the_user_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="apt-get install runsc"):
        GvisorProvider(tmp_path)
    old = tmp_path / "runsc"
    old.write_text("#!/bin/sh\necho runsc version 0.0~20221219.0\n")
    old.chmod(0o755)
    with pytest.raises(ConfigError, match="20240729 or newer"):
        GvisorProvider(tmp_path)


@pytest.mark.slow
async def test_a_killed_owner_leaves_nothing_after_a_sweep(runsc: None, tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(OWNER), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        try:
            assert owner.stdout.readline() == "up\n"
        finally:
            owner.kill()
    async with asyncio.timeout(100):
        while processes_with("sleep 98766") or processes_of(tmp_path):
            await asyncio.sleep(0.01)
    async with GvisorProvider(tmp_path) as provider:
        removed = await provider.sweep()
        assert len([line for line in removed if line.startswith("sandbox")]) == 2
        kept = await provider.open("kept")
        fork = await kept.fork()
        assert await fork.read("/note") == b"kept"
        await fork.close()
        await kept.close()
    assert list((tmp_path / "trash").iterdir()) == []
    assert list((tmp_path / "engines").iterdir()) == []
    assert mounts_of(tmp_path) == []


@pytest.mark.slow
def test_a_rollout_runs_from_fork_to_record(runsc: None, tmp_path: Path) -> None:
    task = Path(__file__).parents[2] / "examples/tasks/dice-range"
    arguments = ["run", str(task), "-a", "oracle", "-e", "forkyard.sandbox.gvisor:GvisorProvider", "--base", "host"]
    arguments.append("--unbounded")
    done = subprocess.run(
        [sys.executable, "-m", "forkyard.cli", *arguments, "--out", str(tmp_path / "runs"), "--run", "one"],
        env={**os.environ, "FORKYARD_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "runs/one/traces.jsonl").read_text())
    assert (record["status"], record["reward"]) == ("SCORED", 1.0)
