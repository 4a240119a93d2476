"""Bounds on the processor time, memory and processes of a whole sandbox, by control groups.

Version 1, version 2 and both at once; root's, and of version 2 also a part of the tree that was delegated to an
ordinary user. A sandbox is born in the group that bounds its processes; of a group for processor time or memory it
becomes a member when such a bound is asked for, so that nobody else pays for one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

from forkyard.sandbox.local.delegation import unified_parent
from forkyard.sandbox.values import Limits
from forkyard.values import MIB

ROOT = Path("/sys/fs/cgroup")
DEFAULT_PIDS = 512
PERIOD = 100_000  # microseconds over which processor time is counted
_PARENT = "forkyard"


@dataclass(frozen=True, slots=True)
class Place:
    """A directory in which a controller lets us make groups, and whether it is of version 2."""

    directory: Path
    unified: bool


@dataclass(frozen=True, slots=True)
class Controllers:
    """Where each controller can be used; None where it cannot."""

    cpu: Place | None = None
    memory: Place | None = None
    pids: Place | None = None

    @property
    def parents(self) -> set[Path]:
        """The directories groups are made in."""
        places: Iterable[Place | None] = (getattr(self, field.name) for field in fields(self))
        return {place.directory for place in places if place}

    def groups_of(self, engine: str) -> list[Path]:
        """What is left of the groups of an engine."""
        return [group for parent in self.parents for group in parent.glob(f"{engine}-*")]


NAMES = tuple(field.name for field in fields(Controllers))


def find_controllers(root: Path = ROOT, own: Path = Path("/proc/self/cgroup")) -> Controllers:
    """The controllers this process may use. `own` says which groups it is in.

    In a delegated group of version 2 this process moves into a group beneath it: only then may there be others.
    """
    found = _first_version(root) if os.getuid() == 0 else {}
    mount = next((at for at in (root, root / "unified") if (at / "cgroup.controllers").exists()), None)
    if mount is not None and (missing := [name for name in NAMES if name not in found]):
        parent, enabled = unified_parent(mount, own.read_text(), _PARENT, missing)
        found |= {name: Place(parent, True) for name in enabled}
    return Controllers(**found)


def _first_version(root: Path) -> dict[str, Place]:
    found = {}
    for name in NAMES:
        directory = root / name / _PARENT
        if os.access(root / name / "tasks", os.W_OK):  # of version 1 only: version 2 has no such file
            with suppress(OSError):
                directory.mkdir(exist_ok=True)
                found[name] = Place(directory, False)
    return found


class Group:
    """The control groups of one sandbox: made before it, removed after it."""

    def __init__(self, controllers: Controllers, name: str) -> None:
        self._controllers = controllers
        self._name = name
        self._memory: Path | None = None  # known once memory is bounded
        places = {controllers.cpu, controllers.memory, controllers.pids}
        born = {place for place in places if place and (place.unified or place is controllers.pids)}
        self._birth = [(place.directory / name, place.unified) for place in born]
        self._directories: list[Path] = []
        for directory, _ in self._birth:
            self._make(directory)

    def _make(self, directory: Path) -> None:
        directory.mkdir()
        self._directories.append(directory)

    @contextmanager
    def entrances(self) -> Iterator[list[int]]:
        """Files to which a new process writes "0" to come under the limits.

        Opened here, since the kernel asks what their opener may do; it moves itself, since that waits for nobody.
        """
        fds: list[int] = []
        try:
            for directory, unified in self._birth:
                fds.append(os.open(directory / ("cgroup.procs" if unified else "tasks"), os.O_WRONLY | os.O_CLOEXEC))
            yield fds
        finally:
            for fd in fds:
                os.close(fd)

    @contextmanager
    def all_entrances(self) -> Iterator[list[int]]:
        """The same of all groups that there are by now."""
        fds: list[int] = []
        try:
            fds += [os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for directory in self._directories]
            yield fds
        finally:
            for fd in fds:
                os.close(fd)

    def limit_pids(self, limits: Limits) -> None:
        """Bound the number of processes; every sandbox has such a bound."""
        if place := self._controllers.pids:
            _write(place.directory / self._name / "pids.max", str(limits.pids or DEFAULT_PIDS))

    def limit_use(self, limits: Limits, pid: int) -> None:
        """Bound processor time and memory of process `pid`, the first of its sandbox, and all it will start."""
        if limits.cpus is not None and (place := self._controllers.cpu):
            _limit_cpu(self._join(place, pid), limits.cpus, place.unified)
        if limits.memory_mb is not None and (place := self._controllers.memory):
            directory = self._join(place, pid)
            _limit_memory(directory, str(limits.memory_mb * MIB), place.unified)
            self._memory = directory / ("memory.events" if place.unified else "memory.oom_control")

    def _join(self, place: Place, pid: int) -> Path:
        directory = place.directory / self._name
        if directory not in self._directories:
            self._make(directory)
            _write(directory / "cgroup.procs", str(pid))
        return directory

    def memory_kills(self) -> int:
        """How many of its processes the kernel has killed because its memory was full."""
        if self._memory is None:
            return 0
        with suppress(OSError):  # the sandbox has just ended
            return count_of("oom_kill", self._memory.read_text())
        return 0

    def remove(self) -> None:
        """Remove the groups of an ended sandbox; the kernel may need a moment to let go of the last process."""
        for directory in self._directories:
            remove_group(directory)


class Groups:
    """Makes the groups of one engine, under names that tell whose they are."""

    def __init__(self, controllers: Controllers, engine: str) -> None:
        self._controllers = controllers
        self._engine = engine
        self._made = 0

    def make(self) -> Group:
        """A group for one more sandbox."""
        self._made += 1
        return Group(self._controllers, f"{self._engine}-{self._made}")


def remove_group(directory: Path, patience: float = 2.0) -> bool:
    """Remove one group; False when it is still in use after `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            directory.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
            continue
        return True


def count_of(name: str, text: str) -> int:
    """The number that stands behind `name` in a file of lines such as "oom_kill 1"; 0 when there is none."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _limit_cpu(directory: Path, cpus: float, unified: bool) -> None:
    quota = round(cpus * PERIOD)
    if unified:
        _write(directory / "cpu.max", f"{quota} {PERIOD}")
        return
    _write(directory / "cpu.cfs_period_us", str(PERIOD))
    _write(directory / "cpu.cfs_quota_us", str(quota))


def _limit_memory(directory: Path, limit: str, unified: bool) -> None:
    """Memory and no swap. At the bound the kernel kills the largest process alone, so that PID 1 lives on."""
    if unified:
        _write(directory / "memory.max", limit)
        with suppress(FileNotFoundError):  # a kernel without swap
            _write(directory / "memory.swap.max", "0")
        return
    _write(directory / "memory.limit_in_bytes", limit)
    try:
        _write(directory / "memory.memsw.limit_in_bytes", limit)
    except FileNotFoundError:  # a kernel that does not count swap can still be asked to leave it alone
        _write(directory / "memory.swappiness", "0")


def _write(path: Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def pid_max(limits: Limits) -> dict[str, str]:
    """Without a group for processes: the process ids of the sandbox's own namespace, as a file and its content.

    Empty before Linux 6.14, where writing it would change the host's.
    """
    major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    if (major, minor) < (6, 14):
        return {}
    return {"/proc/sys/kernel/pid_max": str(max(limits.pids or DEFAULT_PIDS, 301))}
