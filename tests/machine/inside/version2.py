"""Control groups of version 2 alone, with every controller: as root, and as an ordinary user."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from tests.machine.inside import limits
from tests.machine.inside.telling import Check, tell, try_all

USER = 1000
DELEGATED = ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control")
NEWNS, NEWCGROUP, MS_REC_PRIVATE = 0x20000, 0x2000000, 0x44000
OF_A_SANDBOX = (
    limits.all_controllers_are_declared,
    limits.a_sandbox_is_born_in_a_group_of_its_own,
    limits.what_is_asked_for_is_set,
    limits.memory_is_bounded_without_swap_and_told_from_failure,
    limits.processes_are_bounded,
    limits.processor_time_is_bounded,
)


def main() -> None:
    _swap()
    for name, case in CASES.items():
        started = time.monotonic()
        pid = os.fork()  # what is imported by then is imported once
        if pid == 0:
            _end_with(case)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        tell(f"{name}: its end", f"ended with {ended}" if ended else "", started)


def _end_with(case: Callable[[], None]) -> NoReturn:
    try:
        case()
    except BaseException:  # noqa: BLE001 - whatever it is, it is told
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def as_root() -> None:
    more = (limits.a_paused_sandbox_uses_no_processor_time, limits.what_a_killed_owner_leaves_is_swept)
    _try("root", *OF_A_SANDBOX, *more, limits.nothing_is_left_of_groups)


def as_root_of_a_container() -> None:
    """Root who sees a part of the tree only, as its root, with others in it; as in a container."""
    _be_in(limits.TREE / "container")
    beside = subprocess.Popen(["sleep", "1000"])
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(NEWNS | NEWCGROUP) == 0
    assert libc.mount(None, b"/", None, MS_REC_PRIVATE, None) == 0
    assert libc.umount2(os.fsencode(limits.TREE), 2) == 0
    assert libc.mount(b"cgroup2", os.fsencode(limits.TREE), b"cgroup2", 0, None) == 0
    _try(
        "root of a container",
        limits.all_controllers_are_declared,
        limits.what_is_asked_for_is_set,
        limits.nothing_is_left_of_groups,
    )
    beside.kill()
    beside.wait()


def as_a_user_with_delegation() -> None:
    """As `systemd-run --user --scope -p Delegate=yes` has it."""
    _become_user(_scope("user-1", "cpu memory pids"))
    _try(
        "user with delegation",
        *OF_A_SANDBOX,
        limits.what_a_killed_owner_leaves_is_swept,
        limits.nothing_is_left_of_groups,
    )


def as_a_user_with_some_delegation() -> None:
    """As a user's service manager has it where nobody set Delegate=: it was handed no processor time."""
    _become_user(_scope("user-2", "memory pids"))
    os.environ["MISSING"] = "cpu"
    _try("user with some delegation", limits.what_is_not_delegated_is_not_promised, limits.processes_are_bounded)


def as_a_user_without_delegation() -> None:
    group = limits.TREE / "user.slice/session-1.scope"
    _be_in(group)
    _become_user(group)
    os.environ["MISSING"] = "cpu memory pids"
    _try("user without delegation", limits.what_is_not_delegated_is_not_promised)


CASES = {
    "root": as_root,
    "container": as_root_of_a_container,
    "delegated": as_a_user_with_delegation,
    "partly": as_a_user_with_some_delegation,
    "undelegated": as_a_user_without_delegation,
}


def _try(whose: str, *checks: Check) -> None:
    home = Path("/root/home" if os.getuid() == 0 else "/home/tester/home")
    asyncio.run(try_all(whose, home, *checks))


def _swap() -> None:
    """Swap, so that what is not to be swapped could be."""
    with Path("/swap").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 128 << 20)
    subprocess.run("chmod 600 /swap && busybox mkswap /swap && busybox swapon /swap", shell=True, check=True)


def _scope(whose: str, controllers: str) -> Path:
    """Enter a scope of a user's service manager, which is handed these controllers."""
    _hand_down(limits.TREE, "cpu memory pids")
    manager = limits.TREE / f"user.slice/{whose}.slice/user@{USER}.service"
    scope = manager / "app.slice/run-1.scope"
    at = limits.TREE
    for name in scope.relative_to(at).parts:
        at /= name
        at.mkdir(exist_ok=True)
        if at == manager or manager in at.parents:
            for file in DELEGATED:
                os.chown(at / file, USER, USER)
        if at != scope:
            _hand_down(at, controllers if at.name != "user.slice" else "cpu memory pids")
    (scope / "cgroup.procs").write_text("0")
    return scope


def _hand_down(group: Path, controllers: str) -> None:
    (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers.split()))


def _be_in(group: Path) -> None:
    group.mkdir(parents=True, exist_ok=True)
    _hand_down(limits.TREE, "cpu memory pids")
    (group / "cgroup.procs").write_text("0")


def _become_user(group: Path) -> None:
    assert limits.group_of(os.getpid()) == group
    os.setgroups([USER])
    os.setgid(USER)
    os.setuid(USER)
    os.environ.update(HOME="/home/tester", USER="tester")
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable, as whoever was not root before: its files in /proc are its own


if __name__ == "__main__":
    main()
