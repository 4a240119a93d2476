"""Checks of the bounds that control groups of version 2 keep, as the kernel sees them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.sandbox import Feature, Limits, Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from tests.machine.inside.telling import PATIENCE

CONTROLLERS = {"cpu": Feature.LIMIT_CPU, "memory": Feature.LIMIT_MEMORY, "pids": Feature.LIMIT_PIDS}
BOUNDS = {"cpu": Limits(cpus=1), "memory": Limits(memory_mb=64), "pids": Limits(pids=64)}
HOG = "head -c 40000000 /dev/zero | tail > /dev/null"  # `tail` holds a line without end in memory
SPIN = "timeout 1.5 sh -c 'while :; do :; done'"
TREE = Path("/sys/fs/cgroup")


def group_of(pid: int) -> Path:
    """The directory of the control group a process is in."""
    return TREE / Path(f"/proc/{pid}/cgroup").read_text().strip().removeprefix("0::/")


def pid_of(sandbox: Sandbox) -> int:
    return int(sandbox._live.pid)  # type: ignore[attr-defined]


def said(group: Path, name: str) -> str:
    return (group / name).read_text().strip()


def number(group: Path, name: str, key: str) -> int:
    rows = dict(line.split() for line in (group / name).read_text().splitlines())
    return int(rows[key])


async def finding(provider: LocalProvider) -> str:
    """What `forkyard doctor` says of control groups."""
    found = next(one for one in await provider.findings() if one.name == "control groups")
    return f"{found.ok}: {found.detail} {found.mend}"


async def limited(provider: LocalProvider, limits: Limits) -> tuple[Sandbox, Path]:
    sandbox = await provider.create(SandboxSpec(limits=limits))
    return sandbox, group_of(pid_of(sandbox))


async def all_controllers_are_declared(provider: LocalProvider) -> None:
    assert set(CONTROLLERS.values()) <= provider.features
    told = await finding(provider)
    assert told.startswith("True: cpu (version 2), memory (version 2), pids (version 2)"), told


async def a_sandbox_is_born_in_a_group_of_its_own(provider: LocalProvider) -> None:
    blank = await (await provider.yard.engine()).take()  # before it has a disk, let alone a command
    group = group_of(blank.pid)
    assert group.parent == provider.yard.controllers.pids.directory  # type: ignore[union-attr]
    assert group.name.startswith(provider.store.engine)
    await blank.kill("not needed")
    assert not group.exists()
    sandbox, group = await limited(provider, Limits())
    assert [said(group, name) for name in ("pids.max", "memory.max", "cpu.max")] == ["512", "max", "max 100000"]
    await sandbox.close()


async def what_is_asked_for_is_set(provider: LocalProvider) -> None:
    sandbox, group = await limited(provider, Limits(cpus=1.5, memory_mb=100, pids=40))
    files = {"cpu.max": "150000 100000", "memory.max": str(100 << 20), "memory.swap.max": "0", "pids.max": "40"}
    assert {name: said(group, name) for name in files} == files
    fork = await sandbox.fork()
    assert {name: said(group_of(pid_of(fork)), name) for name in files} == files
    await fork.close()
    await sandbox.run("sleep 1000 & echo")
    await sandbox.close()
    assert not group.exists()


async def memory_is_bounded_without_swap_and_told_from_failure(provider: LocalProvider) -> None:
    sandbox, group = await limited(provider, Limits(memory_mb=24))
    result = await sandbox.run(HOG)
    assert (result.ended_by, result.exit_code) == ("oom", 137), result
    assert number(group, "memory.events", "oom_kill") >= 1
    assert said(group, "memory.swap.current") == "0"
    assert (await sandbox.run("exit 137")).ended_by is None
    assert (await sandbox.run(f"{HOG}; true")).ended_by is None
    assert (await sandbox.run("echo fine")).stdout == "fine\n"
    await sandbox.close()


async def processes_are_bounded(provider: LocalProvider) -> None:
    sandbox, group = await limited(provider, Limits(pids=20))
    result = await sandbox.run("i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); done; wait")
    assert not result.ok, result
    assert number(group, "pids.events", "max") >= 1
    assert int(said(group, "pids.current")) <= 20
    assert (await sandbox.run("echo fine")).stdout == "fine\n"
    await sandbox.close()


async def processor_time_is_bounded(provider: LocalProvider) -> None:
    sandbox, group = await limited(provider, Limits(cpus=0.2))
    before, started = number(group, "cpu.stat", "usage_usec"), time.monotonic()
    await sandbox.run(f"{SPIN} & {SPIN} & wait")
    used = (number(group, "cpu.stat", "usage_usec") - before) / 1e6 / (time.monotonic() - started)
    assert number(group, "cpu.stat", "nr_throttled") >= 1
    assert used < 0.4, used
    await sandbox.close()


async def a_paused_sandbox_uses_no_processor_time(provider: LocalProvider) -> None:
    sandbox, group = await limited(provider, Limits(cpus=1))
    running = asyncio.ensure_future(sandbox.run("while :; do :; done", timeout=PATIENCE))
    pid, first = 0, ""
    while not first:  # its first process is there, and has used some time
        pid = max(map(int, said(group, "cgroup.procs").split()))
        first = times(pid) if pid != pid_of(sandbox) else ""
        await asyncio.sleep(0.1)
    while times(pid) == first:
        await asyncio.sleep(0.1)
    await sandbox.pause()
    paused = times(pid)
    await asyncio.sleep(1)
    assert times(pid) == paused
    await sandbox.resume()
    while times(pid) == paused:
        await asyncio.sleep(0.1)
    await sandbox.close()
    await asyncio.wait([running])
    running.exception()  # seen: the sandbox was closed


def times(pid: int) -> str:
    """The processor time a process has used."""
    return " ".join(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])


async def nothing_is_left_of_groups(provider: LocalProvider) -> None:
    await provider.yard.close()
    for parent in provider.yard.controllers.parents:
        assert [path.name for path in parent.iterdir() if path.is_dir()] == []


async def what_a_killed_owner_leaves_is_swept(provider: LocalProvider) -> None:
    command = [sys.executable, "-m", "tests.machine.inside.owner", str(provider.store.home)]
    killed = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert killed.stdout is not None
    group = TREE / (await killed.stdout.readline()).decode().strip()
    assert said(group, "memory.max") == str(48 << 20)
    killed.send_signal(signal.SIGKILL)
    await killed.wait()
    while number(group, "cgroup.events", "populated"):
        await asyncio.sleep(0.05)
    said_of_it = await provider.sweep()
    assert not group.exists()
    assert f"control group {group.name}" in said_of_it, said_of_it


async def what_is_not_delegated_is_not_promised(provider: LocalProvider) -> None:
    places = provider.yard.controllers
    missing = [name for name in CONTROLLERS if getattr(places, name) is None]
    assert missing == os.environ["MISSING"].split()
    told = await finding(provider)
    assert told.startswith("False: ") and f"not usable: {', '.join(missing)}" in told, told
    assert "systemd-run --user --scope -p Delegate=yes" in told
    for name in CONTROLLERS:
        assert (CONTROLLERS[name] in provider.features) is (name not in missing), name
    for name in missing:
        try:
            await provider.create(SandboxSpec(limits=BOUNDS[name]))
        except ConfigError as err:
            assert "on this machine" in str(err), err
        else:
            raise AssertionError(f"a sandbox was made with a bound on {name} that nobody keeps")
    sandbox = await provider.create(SandboxSpec())
    assert (await sandbox.run("echo fine")).stdout == "fine\n"
    await sandbox.close()
