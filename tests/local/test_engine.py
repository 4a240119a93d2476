"""The engine under the local provider: what dies, what stays, and what is swept."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from forkyard.errors import ConfigError, EngineLost, SandboxError, SandboxLost
from forkyard.sandbox import Limits, SandboxSpec
from forkyard.sandbox.contract.promise import new_mark
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.cgroups import find_controllers
from forkyard.sandbox.local.idmap import IdMap
from tests.support.leftovers import processes_of


def descendants_with(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in command:
                found.append(int(entry.name))
    return found


def groups_of(engine: str) -> list[Path]:
    return [group for parent in find_controllers().parents for group in parent.glob(f"{engine}-*")]


def left_on_disk(home: Path) -> dict[str, list[str]]:
    return {name: sorted(p.name for p in (home / name).iterdir()) for name in ("disks", "trash", "engines")}


async def test_a_closed_provider_leaves_nothing_but_the_host_image(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider:
        boxes = [await provider.create(SandboxSpec()) for _ in range(3)]
        await boxes[0].stop()
        await (await boxes[0].fork()).run("sleep 1000 & echo $!")
        engine = provider.store.engine
    left = left_on_disk(tmp_path)
    assert left == {"disks": left["disks"], "trash": [], "engines": []}
    assert len(left["disks"]) == 1
    assert processes_of(tmp_path, engine) == []
    assert groups_of(engine) == []


async def test_a_dead_pid_1_is_a_lost_sandbox(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec())
    running = asyncio.create_task(sandbox.run("sleep 1000"))
    await sandbox.run(["true"])
    os.kill(sandbox._live.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(SandboxLost):
        await running
    with pytest.raises(SandboxLost):
        await sandbox.run(["true"])
    await sandbox.close()


async def test_a_dead_spawner_is_replaced_and_what_it_forked_goes_on(home: Path) -> None:
    async with LocalProvider(home) as provider:
        first = await provider.create(SandboxSpec())
        engine = provider.yard._engine
        assert engine is not None
        engine._process.kill()
        engine._process.wait()
        with pytest.raises(EngineLost, match="spawner is gone"):
            await engine._spawn()
        assert (await first.run(["echo", "still here"])).stdout == "still here\n"
        second = await provider.create(SandboxSpec())
        assert (await second.run(["true"])).ok
        await first.close()
        await second.close()


OWNER = """
    import asyncio, sys
    from pathlib import Path
    from forkyard.sandbox import SandboxSpec
    from forkyard.sandbox.local import LocalProvider

    async def main():
        provider = LocalProvider(Path(sys.argv[1]))
        kept = await provider.create(SandboxSpec(name="kept"))
        await kept.write("/note", b"kept")
        await kept.stop()
        for _ in range(3):
            box = await provider.create(SandboxSpec())
            await box.run(f"setsid sleep {sys.argv[2]} & echo")
        nameless = await provider.create(SandboxSpec())
        await nameless.stop()
        print("up", provider.store.engine, flush=True)
        await asyncio.sleep(1000)

    asyncio.run(main())
"""


async def test_a_killed_owner_leaves_no_process_and_a_sweep_removes_the_rest(tmp_path: Path) -> None:
    mark = new_mark()
    command = [sys.executable, "-c", textwrap.dedent(OWNER), str(tmp_path), mark]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        try:
            up, engine = owner.stdout.readline().split()
            assert up == "up"
            while len(descendants_with(f"sleep\0{mark}\0")) < 3:  # a shell may not have come to start it
                await asyncio.sleep(0.01)
        finally:
            owner.kill()
    async with asyncio.timeout(100):
        while descendants_with(f"sleep\0{mark}\0") or processes_of(tmp_path, engine):
            await asyncio.sleep(0.01)
    async with LocalProvider(tmp_path) as provider:
        removed = await provider.sweep()
        assert len([line for line in removed if line.startswith("sandbox")]) == 4
        assert [info.name for info in await provider.sandboxes()] == ["kept"]
        kept = await provider.open("kept")
        fork = await kept.fork()
        assert await fork.read("/note") == b"kept"
        await fork.close()
        await kept.close()
    left = left_on_disk(tmp_path)
    assert (len(left["disks"]), left["trash"], left["engines"]) == (1, [], [])
    assert groups_of(engine) == []


async def test_two_processes_share_one_home(home: Path) -> None:
    async with LocalProvider(home) as one, LocalProvider(home) as two:
        template = await one.create(SandboxSpec(name="shared-template"))
        await template.write("/x", b"1")
        with pytest.raises(ConfigError, match="running in another process"):
            await two.open("shared-template")
        await template.stop()
        seen = await two.open("shared-template")
        forks = await asyncio.gather(*(seen.fork() for _ in range(4)), *(template.fork() for _ in range(4)))
        assert [await fork.read("/x") for fork in forks] == [b"1"] * 8
        with pytest.raises(ConfigError, match="already"):
            await two.create(SandboxSpec(name="shared-template"))
        for fork in forks:
            await fork.close()
        await template.close()


async def test_a_home_of_another_mapping_is_refused(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider:
        await provider.sandboxes()
        provider2 = LocalProvider(tmp_path)
        provider2.yard.ids = IdMap("single", "0 0 1", "0 0 1", (1, 1))
        with pytest.raises(ConfigError, match="another FORKYARD_HOME"):
            await provider2.sandboxes()


async def test_an_unusable_home_is_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="FORKYARD_HOME"):
        await LocalProvider(tmp_path / "file" / "home").sandboxes()


async def test_an_unknown_image_says_what_to_do(local: LocalProvider) -> None:
    with pytest.raises(ConfigError, match="forkyard image import"):
        await local.create(SandboxSpec(image="debian:nowhere"))


async def test_a_cancelled_create_leaves_nothing(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider:
        await (await provider.create(SandboxSpec())).close()
        for delay in (0, 0.0005, 0.001, 0.002, 0.004):
            creating = asyncio.create_task(provider.create(SandboxSpec()))
            await asyncio.sleep(delay)
            creating.cancel()
            try:
                await (await creating).close()
            except asyncio.CancelledError:
                pass
        assert await provider.sandboxes() == []
        sandbox = await provider.create(SandboxSpec())
        assert (await sandbox.run(["true"])).ok
        await sandbox.close()


async def test_a_fork_bomb_stays_in_its_sandbox(local: LocalProvider) -> None:
    bombed = await local.create(SandboxSpec(limits=Limits(pids=64)))
    other = await local.create(SandboxSpec())
    bomb = asyncio.create_task(bombed.run(["bash", "-c", "b() { b | b & }; b; sleep 100"], timeout=2))
    for _ in range(20):
        assert (await other.run(["true"], timeout=60)).ok
    assert (await bomb).timed_out
    await bombed.close()
    await other.close()


async def test_a_tree_of_any_depth_is_deleted(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider:
        sandbox = await provider.create(SandboxSpec())
        deep = "i=0; while [ $i -lt 1500 ]; do mkdir d && cd d && i=$((i+1)); done; chmod 000 .; touch /top"
        assert (await sandbox.run(deep, cwd="/srv", timeout=60)).ok
        with pytest.raises(SandboxError):
            await sandbox.pull("/srv", max_bytes=1 << 20)
        await sandbox.close()
        assert (await (await provider.create(SandboxSpec())).run(["true"])).ok
    assert left_on_disk(tmp_path)["trash"] == []


async def test_a_stack_of_many_layers_works_until_it_is_refused_plainly(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec(image="scratch"))
    for number in range(40):
        await sandbox.write(f"/layer{number}", b"x")
        await sandbox.stop()
        await sandbox.start()
    assert await sandbox.read("/layer0") == b"x"
    await sandbox.close()


async def test_work_in_a_closed_or_stopped_sandbox_is_refused(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec())
    await sandbox.stop()
    with pytest.raises(SandboxError, match="stopped"):
        await sandbox.run(["true"])
    await sandbox.close()
    await sandbox.close()
    for action in (sandbox.run(["true"]), sandbox.fork(), sandbox.stop(), sandbox.start(), sandbox.read("/x")):
        with pytest.raises(SandboxLost):
            await action


@pytest.mark.skipif(
    os.getuid() != 0 or not Path("/proc/self/autogroup").exists(), reason="root's, where sessions share the processor"
)
async def test_the_engine_runs_ahead_of_the_commands_it_starts(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec())
    pid = sandbox._live.pid  # type: ignore[attr-defined]
    engine = Path(f"/proc/{pid}/autogroup").read_text().split()
    command = (await sandbox.run("cat /proc/self/autogroup; nice")).stdout.split()
    await sandbox.close()
    assert int(engine[-1]) < 0
    assert command[-2:] == ["0", "0"]


async def test_a_command_cancelled_while_its_message_is_sent_harms_no_other(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec())
    long = ["echo", *["x" * 100_000] * 15]  # far more than a socket holds
    for turns in range(12):
        task = asyncio.create_task(sandbox.run(long))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert (await sandbox.run("echo ok")).stdout == "ok\n"


@pytest.mark.parametrize("user", ["root", "65534"])
async def test_a_command_starts_with_no_signal_ignored_or_blocked(local: LocalProvider, user: str) -> None:
    if user != "root" and not local.yard.many_users:
        pytest.skip("this user has no subordinate ids, so only root exists inside")
    sandbox = await local.create(SandboxSpec(image="host"))
    result = await sandbox.run(["cat", "/proc/self/status"], user=user)
    status = dict(line.split(":\t") for line in result.stdout.splitlines() if line.startswith("Sig"))
    of_the_c_library = 1 << 31 | 1 << 32
    assert int(status["SigBlk"], 16) == 0
    assert int(status["SigIgn"], 16) & ~of_the_c_library == 0
    await sandbox.close()


IGNORING = """
import asyncio, signal, sys
from pathlib import Path
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.subprocess import SubprocessProvider

async def main():
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # as nohup and a shell's & leave them
    for kind, user in ((LocalProvider, None), (LocalProvider, sys.argv[2]), (SubprocessProvider, None)):
        async with kind(Path(sys.argv[1]) / kind.name) as provider:
            sandbox = await provider.create(SandboxSpec())
            print(*(await sandbox.run("grep ^SigIgn /proc/self/status; kill -INT $$", user=user)).stdout.split())
            await sandbox.close()

asyncio.run(main())
"""


async def test_a_command_hears_signals_that_its_owner_ignores(local: LocalProvider, tmp_path: Path) -> None:
    user = "65534" if local.yard.many_users else "root"
    command = [sys.executable, "-c", IGNORING, str(tmp_path), user]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    of_the_c_library = 1 << 31 | 1 << 32
    masks = [int(line.split()[1], 16) & ~of_the_c_library for line in done.stdout.splitlines()]
    assert masks == [0, 0, 0], done.stdout
