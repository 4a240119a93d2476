"""Finding control groups. Version 2 is tried for real with the one controller it has on hybrid machines, hugetlb; its
controllers for processor time, memory and processes are known from a tree of files that looks like one. A kernel has
them all in `tests/machine`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.sandbox import Limits, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.cgroups import Controllers, Group, Place, count_of, find_controllers
from forkyard.sandbox.local.delegation import OWNERS, own_group, unified_parent

UNIFIED = next((at for at in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if (at / "cgroup.procs").exists()
                and (at / "cgroup.controllers").exists()), None)  # fmt: skip
UID = 54321


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own"
    path.write_text(text)
    return path


def test_the_number_behind_a_name_is_read_from_either_versions_file() -> None:
    assert count_of("oom_kill", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n") == 3
    assert count_of("oom_kill", "low 0\nhigh 0\nmax 71\noom 5\noom_kill 4\noom_group_kill 0\n") == 4
    assert count_of("oom_kill", "") == 0
    assert count_of("oom_kill", "oom_kill many\n") == 0


@pytest.mark.skipif(os.getuid() != 0, reason="version 1 is root's")
def test_each_controller_is_taken_where_it_is(tmp_path: Path) -> None:
    root = tree(tmp_path / "cg", {"memory/tasks": "", "pids/tasks": "", "unified/cgroup.controllers": "cpu hugetlb\n"})
    tree(root, {"unified/cgroup.subtree_control": "", "unified/forkyard/cgroup.subtree_control": ""})
    found = find_controllers(root, own(tmp_path, "4:memory:/\n0::/\n"))
    assert found.memory == Place(root / "memory/forkyard", False)
    assert found.pids == Place(root / "pids/forkyard", False)
    # A file keeps what is written to it, as "+cpu", which is not what a kernel would say: so it counts as not enabled.
    assert found.cpu is None
    assert (root / "unified/cgroup.subtree_control").read_text() == "+cpu"


def test_our_own_group_is_found_from_what_the_kernel_says(tmp_path: Path) -> None:
    mount = tree(tmp_path, {"cgroup.type": "domain"})  # as inside a container, so that root is no exception
    scope = "user.slice/user-1000.slice/user@1000.service/app.slice/run-u1.scope"
    assert own_group(mount, f"1:cpu:/x\n0::/{scope}\n") == mount / scope
    assert own_group(mount, f"0::/{scope}/{OWNERS}\n") == mount / scope
    assert own_group(mount, "0::/\n") == mount
    assert own_group(mount, "") == mount


def test_what_is_not_offered_or_not_there_is_not_promised(tmp_path: Path) -> None:
    assert unified_parent(tmp_path, "0::/gone\n", "forkyard", ["cpu"]) == (tmp_path / "gone/forkyard", []) or (
        os.getuid() == 0
    )
    mount = tree(tmp_path, {"cgroup.type": "domain", "cgroup.controllers": "memory\n"})
    assert unified_parent(mount, "0::/\n", "forkyard", ["cpu"]) == (mount / "forkyard", [])
    assert not (mount / "forkyard").exists()


def test_limits_of_version_2_are_written_as_the_kernel_reads_them(tmp_path: Path) -> None:
    place = Place(tmp_path, True)
    group = Group(Controllers(place, place, place), "e-1")
    for name in ("cpu.max", "memory.max", "memory.swap.max", "pids.max"):
        (tmp_path / "e-1" / name).write_text("max")
    group.limit_pids(Limits())
    group.limit_use(Limits(cpus=0.5, memory_mb=3), os.getpid())
    written = {path.name: path.read_text() for path in (tmp_path / "e-1").iterdir()}
    assert written == {
        "cpu.max": "50000 100000",
        "memory.max": "3145728",
        "memory.swap.max": "0ax",  # the kernel takes each write as a whole, a file keeps what is behind it
        "pids.max": "512",
    }
    tree(tmp_path, {"e-1/memory.events": "oom 1\noom_kill 2\n"})
    assert group.memory_kills() == 2


@pytest.fixture
def scope() -> Iterator[Path]:
    """A group of version 2 that belongs to an ordinary user, with a controller to hand down."""
    if os.getuid() != 0 or UNIFIED is None or "hugetlb" not in (UNIFIED / "cgroup.controllers").read_text():
        pytest.skip("needs root, and control groups version 2 with a controller")
    before = (UNIFIED / "cgroup.subtree_control").read_text()
    (UNIFIED / "cgroup.subtree_control").write_text("+hugetlb")
    path = UNIFIED / f"forkyard-test-{os.getpid()}"
    path.mkdir()
    for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
        os.chown(path / name, UID, UID)
    yield path
    for group in (path / "forkyard", path / OWNERS, path):
        if group.exists():
            group.rmdir()
    if "hugetlb" not in before:
        (UNIFIED / "cgroup.subtree_control").write_text("-hugetlb")


IN_SCOPE = """
    import os, subprocess, sys
    from pathlib import Path
    from forkyard.sandbox.local.delegation import unified_parent

    mount, scope = Path(sys.argv[1]), Path(sys.argv[2])
    (scope / "cgroup.procs").write_text("0")
    if "crowded" in sys.argv:
        subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL)
    os.setgid(54321)
    os.setuid(54321)
    for _ in range(2):  # the second time from the group it has moved to
        parent, enabled = unified_parent(mount, Path("/proc/self/cgroup").read_text(), "forkyard", ["hugetlb", "cpu"])
        print(parent.relative_to(scope), enabled)
    print(Path("/proc/self/cgroup").read_text().rpartition("/")[2].strip())
"""


def in_scope(scope: Path, *more: str) -> list[str]:
    code = textwrap.dedent(IN_SCOPE)
    run = subprocess.Popen(
        [sys.executable, "-c", code, str(UNIFIED), str(scope), *more], stdout=subprocess.PIPE, text=True
    )
    out, _ = run.communicate(timeout=30)
    while left := (scope / "cgroup.procs").read_text().split():
        for pid in left:
            os.kill(int(pid), 9)
    return out.splitlines()


def test_in_a_delegated_group_an_ordinary_user_gets_controllers_and_makes_room_for_them(scope: Path) -> None:
    assert in_scope(scope) == ["forkyard ['hugetlb']", "forkyard ['hugetlb']", OWNERS]


def test_a_delegated_group_with_other_programs_in_it_is_left_as_it_is(scope: Path) -> None:
    first, second, group = in_scope(scope, "crowded")
    assert (first, second, group) == ("forkyard []", "forkyard []", scope.name)


async def test_a_sandbox_is_born_in_its_group_of_version_2(scope: Path, home: Path) -> None:
    parent = scope / "forkyard"
    parent.mkdir()
    async with LocalProvider(home) as provider:
        provider.yard.controllers = Controllers(cpu=Place(parent, True))
        sandbox = await provider.create(SandboxSpec())
        group = Path(f"/proc/{sandbox._live.pid}/cgroup").read_text()  # type: ignore[attr-defined]
        assert f"0::/{scope.name}/forkyard/{provider.store.engine}-" in group
        await sandbox.close()
    assert [path for path in parent.iterdir() if path.is_dir()] == []
