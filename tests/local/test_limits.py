"""Limits of the local provider as the kernel sees them: what is set, what is not unless asked for, what is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from forkyard.errors import ConfigError, SandboxError, SandboxLost
from forkyard.sandbox import Feature, Limits, ProgramResult, SandboxSpec
from forkyard.sandbox.inside.watcher import Disk
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.cgroups import find_controllers
from forkyard.sandbox.local.diskwatch import LOW_WATER_MB
from forkyard.sandbox.promises import check_spec, kept, unkept
from tests.support.ordinary_user import home_of_the_user, run_as_user

V1 = Path("/sys/fs/cgroup")
first_version = pytest.mark.skipif(
    os.getuid() != 0 or not (V1 / "memory/memory.memsw.limit_in_bytes").exists(),
    reason="needs control groups version 1",
)


def group_of(pid: int, controller: str) -> Path | None:
    """The directory of the group a process is in, if it is one of ours."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if names == controller and "forkyard" in path:
            return V1 / controller / path.lstrip("/")
    return None


def pid_of(sandbox: object) -> int:
    return int(sandbox._live.pid)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "fields",
    [
        {"cpus": 0},
        {"cpus": float("nan")},
        {"cpus": True},
        {"memory_mb": 0},
        {"memory_mb": 1.5},
        {"pids": 1},
        {"disk_mb": -1},
        {"open_files": 10},
        {"file_mb": "5"},
        {"output_mb": 0},
    ],
    ids=str,
)
def test_a_number_that_is_no_bound_is_refused_by_name(fields: dict[str, object]) -> None:
    (name,) = fields
    with pytest.raises(ConfigError, match=f"limits.{name} = .* at least"):
        Limits(**fields)  # type: ignore[arg-type]


def test_a_bound_that_nobody_keeps_is_refused_or_left_out() -> None:
    limits = Limits(cpus=1, pids=64, file_mb=3)
    features = {Feature.LIMIT_PIDS}
    assert unkept(limits, features) == ["cpus", "file_mb"]
    assert kept(limits, features) == Limits(pids=64)
    with pytest.raises(ConfigError, match="cannot bound cpus on this machine") as told:
        check_spec("local", SandboxSpec(limits=limits), features)
    assert len(told.value.problems) == 2


@first_version
async def test_a_sandbox_without_limits_is_in_a_group_for_its_processes_alone(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec())
    pid = pid_of(sandbox)
    pids = group_of(pid, "pids")
    assert pids is not None and (pids / "pids.max").read_text() == "512\n"
    assert (group_of(pid, "memory"), group_of(pid, "cpu")) == (None, None)
    assert local.yard._disk_watch is None
    await sandbox.close()


@first_version
async def test_memory_is_bounded_without_swap_and_processor_time_by_a_quota(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec(limits=Limits(cpus=1.5, memory_mb=100, pids=40)))
    pid = pid_of(sandbox)
    groups = {name: group_of(pid, name) for name in ("memory", "cpu", "pids")}
    memory, cpu, pids = (group for group in groups.values() if group)
    assert (memory / "memory.limit_in_bytes").read_text() == f"{100 << 20}\n"
    assert (memory / "memory.memsw.limit_in_bytes").read_text() == f"{100 << 20}\n"
    assert (cpu / "cpu.cfs_quota_us").read_text() == "150000\n"
    assert (pids / "pids.max").read_text() == "40\n"
    await sandbox.run("sleep 1000 & echo")
    await sandbox.close()
    assert [group for group in (memory, cpu, pids) if group.exists()] == []


@first_version
async def test_the_kernels_own_account_of_a_busy_sandbox_stays_near_its_quota(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec(limits=Limits(cpus=0.2)))
    cpu = group_of(pid_of(sandbox), "cpu")
    assert cpu is not None
    spin = "timeout 1.5 sh -c 'while :; do :; done'"
    throttled = 0
    while throttled < 5:  # of the 15 periods in which it wants more; fewer where the machine gives it even less
        times = (await sandbox.run(f"{spin} & {spin} & {spin} & wait; times")).stdout
        minutes, seconds = times.split()[2].rstrip("s").split("m")
        assert int(minutes) * 60 + float(seconds) < 0.2 * 1.5 + 0.2
        throttled = int(dict(line.split() for line in (cpu / "cpu.stat").read_text().splitlines())["nr_throttled"])
    await sandbox.close()


async def test_a_sandbox_far_over_its_bound_is_ended_and_says_why(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec(limits=Limits(disk_mb=5)))
    other = await local.create(SandboxSpec(limits=Limits(disk_mb=5)))
    with pytest.raises(SandboxLost, match="far more to its disk than it may"):
        while True:  # each command is killed, and each has written something by then
            await sandbox.run("fallocate -l 200M /f$$; sleep 10", timeout=20)
    assert (await other.run("echo fine")).stdout == "fine\n"
    await sandbox.close()
    await other.close()


def test_what_is_written_while_a_kill_is_under_way_calls_for_no_second_one() -> None:
    disk = Disk("a-disk", 1, (10, 10), ahead=False)
    assert disk._judge((20, 1), 0.0) == "kill"
    assert disk._judge((30, 1), 0.1) is None  # by those who are dying
    disk.cleared()
    assert disk._judge((40, 1), 0.2) is None  # where the next command starts from
    assert disk._judge((41, 1), 0.3) == "kill"
    disk.cleared()
    assert [disk._judge((41, 1), at) for at in (0.4, 5.0)] == [None, "kill"]  # nobody clears up
    assert [disk._judge((50, 1), at) for at in (5.1, 9.0)] == [None, "kill"]  # nobody says that they are dead


@pytest.mark.slow
async def test_a_tree_too_deep_to_be_counted_ends_its_sandbox(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec(limits=Limits(disk_mb=100)))
    deep = "i=0; while [ $i -lt 1200 ]; do mkdir d && cd d && i=$((i+1)); done; sleep 30"
    with pytest.raises(SandboxLost, match="far more"):
        await sandbox.run(deep, cwd="/srv", timeout=60)
    await sandbox.close()


async def test_directories_without_permissions_and_files_of_others_are_counted(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec(limits=Limits(disk_mb=20)))
    hidden = "mkdir /h && chown 1000 /h && chmod 0 /h && cd /h && fallocate -l 60M x; chmod 0 x; sleep 30"
    assert (await sandbox.run(hidden, timeout=20)).ended_by == "disk"
    await sandbox.close()


async def test_a_background_process_that_fills_the_disk_is_ended_too(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec(limits=Limits(disk_mb=20)))
    await sandbox.run("setsid sh -c 'sleep 0.1; fallocate -l 60M /f; exec sleep 98213' >/dev/null 2>&1 &")
    result = await sandbox.run("sleep 30", timeout=20)
    assert (result.ended_by, result.exit_code) == ("disk", -9)
    assert (await sandbox.run("grep -l 9821[3] /proc/[0-9]*/cmdline")).stdout == ""
    await sandbox.close()


async def test_limits_survive_the_death_of_the_spawner(home: Path) -> None:
    async with LocalProvider(home) as provider:
        sandbox = await provider.create(SandboxSpec(limits=Limits(disk_mb=20)))
        fill = "rm -f /f; fallocate -l 60M /f; sleep 30"
        assert (await sandbox.run(fill, timeout=20)).ended_by == "disk"
        engine = provider.yard._engine
        assert engine is not None
        engine._process.kill()
        engine._process.wait()
        await (await provider.create(SandboxSpec())).close()
        assert (await sandbox.run(fill, timeout=20)).ended_by == "disk"
        await sandbox.close()


async def test_a_sandbox_whose_disk_nobody_watches_any_more_is_ended(home: Path) -> None:
    async with LocalProvider(home) as provider:
        sandbox = await provider.create(SandboxSpec(limits=Limits(disk_mb=20)))
        watch = provider.yard._disk_watch
        assert watch is not None
        watch._sock.shutdown(2)
        with pytest.raises(SandboxLost, match="nobody watches"):
            await sandbox.run("sleep 30", timeout=20)
        await sandbox.close()
        again = await provider.create(SandboxSpec(limits=Limits(disk_mb=20)))
        assert (await again.run("echo fine")).stdout == "fine\n"
        await again.close()


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system")
@pytest.mark.parametrize(
    ("options", "said"), [(f"size={LOW_WATER_MB // 2}m", "MB left"), ("size=1g,nr_inodes=3000", "inodes left")]
)
async def test_no_sandbox_starts_while_the_hosts_disk_is_nearly_full(tmp_path: Path, options: str, said: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", tmp_path], check=True)
    try:
        async with LocalProvider(tmp_path) as provider:
            with pytest.raises(SandboxError, match=said):
                await provider.create(SandboxSpec(image="scratch"))
            assert await provider.sandboxes() == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


async def test_a_fork_is_refused_once_the_hosts_disk_is_nearly_full(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("mounts a small file system")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={LOW_WATER_MB + 64}m", "tmpfs", tmp_path], check=True)
    try:
        async with LocalProvider(tmp_path) as provider:
            template = await provider.create(SandboxSpec(image="scratch"))
            await template.stop()
            (tmp_path / "filler").write_bytes(bytes(128 << 20))
            await asyncio.sleep(1.0)  # a look at the free space holds that long
            with pytest.raises(SandboxError, match="make room"):
                await template.fork()
            (tmp_path / "filler").unlink()
            await (await template.fork()).close()
            await template.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


UNDER_A_QUOTA = """
    import asyncio, sys
    from pathlib import Path
    from forkyard.sandbox import Limits, SandboxSpec
    from forkyard.sandbox.local import LocalProvider

    async def main():
        async with LocalProvider() as provider:
            sandbox = await provider.create(SandboxSpec(limits=Limits(disk_mb=20)))
            hidden = "mkdir /h && cd /h && fallocate -l 60M x; chmod 0 . x; sleep 30"
            print((await sandbox.run(hidden, timeout=20)).ended_by)
            await sandbox.close()

    asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("subordinate_ids", [False, True], ids=["single", "range"])
def test_the_disk_of_an_ordinary_users_sandbox_is_bounded(subordinate_ids: bool) -> None:
    if subordinate_ids and not shutil.which("newuidmap"):
        pytest.skip("newuidmap is not installed (apt-get install uidmap)")
    with home_of_the_user() as home:
        code = textwrap.dedent(UNDER_A_QUOTA)
        done = run_as_user(sys.executable, "-c", code, home=home, subordinate_ids=subordinate_ids)
        assert (done.stdout, done.stderr) == ("disk\n", "")


def test_no_group_is_left_of_a_closed_provider(home: Path) -> None:
    async def use() -> str:
        async with LocalProvider(home) as provider:
            limits = kept(Limits(cpus=1, memory_mb=200, disk_mb=100), provider.features)
            for _ in range(3):
                await (await provider.create(SandboxSpec(limits=limits))).run(["true"])
            return provider.store.engine

    engine = asyncio.run(use())
    assert [group for parent in find_controllers().parents for group in parent.glob(f"{engine}-*")] == []


async def test_an_output_bound_costs_nothing_where_it_is_not_asked_for(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec())
    assert sandbox._live.commands.allowance is None  # type: ignore[attr-defined]
    await sandbox.close()


async def test_output_counts_for_all_commands_whatever_is_kept_and_outlives_a_stop(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec(limits=Limits(output_mb=1)))
    for _ in range(3):
        assert (await sandbox.run("head -c 300000 /dev/zero", output_limit=0)).ok
    await sandbox.stop()
    await sandbox.start()
    result = await sandbox.run("head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2; sleep 60", timeout=20)
    assert (result.exit_code, result.ended_by, result.timed_out) == (-9, "output", False)
    assert await sandbox.run("echo more") == ProgramResult(-9, ended_by="output")
    await sandbox.close()
