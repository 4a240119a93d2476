"""What a home's engines have left on the machine: processes, mounts, control groups, directories."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from forkyard.sandbox.local.cgroups import find_controllers


def processes_of(home: Path, *engines: str) -> list[int]:
    """Spawners, janitors and unused PID 1s of a home, which stand in it, and everything in its engines' groups."""
    numbered = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [int(entry.name) for entry in numbered if _stands_in(entry, home) or _is_of(entry, engines)]


def _stands_in(process: Path, home: Path) -> bool:
    try:
        return str((process / "cwd").readlink()).startswith(str(home))
    except OSError:  # it has ended, or is ending and stands nowhere any more
        return False


def _is_of(process: Path, engines: tuple[str, ...]) -> bool:
    try:
        groups = (process / "cgroup").read_text()
    except OSError:
        return False
    return any(f"/{engine}-" in groups for engine in engines)


def groups_of(*engines: str) -> list[Path]:
    """Control groups of engines."""
    controllers = find_controllers()
    return [group for engine in engines for group in controllers.groups_of(engine)]


def mounts_of(home: Path) -> list[str]:
    """Mounts of this process's namespace that have to do with a home."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(home) in line]


def stray_directories(home: Path) -> dict[str, list[str]]:
    """What lies in a home that no row refers to."""
    with sqlite3.connect(f"file:{home}/forkyard.db?mode=ro", uri=True) as db:
        known = {disk for (disk,) in db.execute("SELECT disk FROM stack UNION SELECT disk FROM boxes")}
    db.close()
    disks = sorted(path.name for path in (home / "disks").iterdir() if path.name not in known)
    missing = sorted(disk for disk in known if disk and not (home / "disks" / disk / "u").is_dir())
    others = {name: sorted(path.name for path in (home / name).iterdir()) for name in ("trash", "engines")}
    return {"disks": disks, "missing": missing, **others}


NOTHING: dict[str, list[str]] = {"disks": [], "missing": [], "trash": [], "engines": []}
