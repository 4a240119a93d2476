"""Where in the tree of control groups, version 2, this process may make groups of its own.

A group that has members cannot hand its controllers down to groups beneath it, the root of the tree excepted. So
where we are not at that root, the members of our own group first move into a group of their own beneath it: all of
them for root, whose container it is; otherwise only if they are this process and those that started it, as
`systemd-run --user --scope -p Delegate=yes` has it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

OWNERS = "forkyard-owners"  # the group that our own group's members move to


def unified_parent(mount: Path, own: str, name: str, wanted: Sequence[str]) -> tuple[Path, list[str]]:
    """A group `name` in which to make others, and which of the `wanted` controllers work in it; none where not ours.

    `mount` is where the tree is, `own` the content of /proc/self/cgroup.
    """
    base = own_group(mount, own)
    parent = base / name
    try:
        offered = (base / "cgroup.controllers").read_text().split()
        usable = [controller for controller in wanted if controller in offered]
        if not usable:
            return parent, []
        parent.mkdir(exist_ok=True)
        _hand_down_all(base, usable)
        _hand_down(parent, usable)
        enabled = (parent / "cgroup.subtree_control").read_text().split()
    except OSError:
        return parent, []
    return parent, [controller for controller in usable if controller in enabled]


def own_group(mount: Path, own: str) -> Path:
    """The group whose tree is ours to arrange: the root of the tree for root, else the one this process is in."""
    if os.getuid() == 0 and not (mount / "cgroup.type").exists():  # only the kernel's own root has none
        return mount
    line = next((line for line in own.splitlines() if line.startswith("0::")), "0::/")
    group = mount / line.removeprefix("0::").lstrip("/")
    return group.parent if group.name == OWNERS else group


def _hand_down_all(base: Path, controllers: Sequence[str]) -> None:
    try:
        _hand_down(base, controllers)
    except OSError as err:
        if err.errno != errno.EBUSY:
            raise
        _move_members(base)
        _hand_down(base, controllers)


def _hand_down(group: Path, controllers: Sequence[str]) -> None:
    (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def _move_members(base: Path) -> None:
    members = [int(pid) for pid in (base / "cgroup.procs").read_text().split()]
    if os.getuid() != 0 and not set(members) <= _lineage():
        raise PermissionError(errno.EPERM, "other programs run in this control group", str(base))
    owners = base / OWNERS
    owners.mkdir(exist_ok=True)
    for pid in members:
        (owners / "cgroup.procs").write_text(str(pid))


def _lineage() -> set[int]:
    """This process and those it descends from."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
        pid = int(after_name.split()[1])
    return found
