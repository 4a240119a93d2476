"""This machine's Python as a sandbox may have it: a directory with all it needs, to be mounted read-only.

An image needs no Python then, and no C library (see `forkyard.sandbox.ownpython`). Beside the standard library lies
this package, with what that needs, and nothing else of the machine.
"""

from __future__ import annotations

import asyncio
import compileall
import fcntl
import hashlib
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from forkyard.errors import ConfigError
from forkyard.locks import locked
from forkyard.sandbox import Mount, ownpython
from forkyard.sandbox.common import default_home
from forkyard.sandbox.ownpython import PYTHON, STANDARD, VERSION, command
from forkyard.values import new_id

HERE: Final = "/.forkyard-python"
_PROGRAM = f"import sys; sys.path.append('{HERE}/packages'); from forkyard.tools.inside import main; main()"
COMMAND: Final = command(HERE, _PROGRAM)
"""What starts a toolset's program in a sandbox with the mount."""

_LEFT_OUT = (
    *("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "tkinter", "_tkinter*", "turtledemo"),
    *("ensurepip", "config-*", "pydoc_data", "*.a", "*.opt-?.pyc"),
)
_UNUSED_DAYS = 1.0
_ASK = """
import sys
before = {name.partition(".")[0] for name in sys.modules}
import forkyard.tools.inside, pydantic.json_schema
found = {name.partition(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names)
import importlib, importlib.metadata, os
files = [sys.modules[name].__file__ for name in sorted(found) if getattr(sys.modules[name], "__file__", None)]
made = importlib.metadata.packages_distributions()
for name in sorted({name for top in found for name in made.get(top, ())}):  # some ask for their own version
    own = importlib.metadata.distribution(name)
    files += [str(own.locate_file(file)) for file in own.files or () if file.match("*.dist-info/METADATA")]
for name in os.listdir(sys.argv[1]) if os.path.isdir(sys.argv[1]) else ():
    if not name.startswith("_tkinter"):
        try:
            importlib.import_module(name.partition(".")[0])
        except Exception:
            pass
"""
_found: dict[Path, Path] = {}
_locks: list[int] = []


async def python_mount() -> Mount:
    """The mount, made once for this Python and this package. Raises ConfigError when it cannot be made."""
    home = (default_home() / "python").resolve()
    if home not in _found:
        _found[home] = await asyncio.to_thread(_made, home)
    return Mount(_found[home], HERE, read_only=True)


def _made(home: Path) -> Path:
    """Where it lies. It stays as long as this process lives; what no process has used for a day is removed."""
    files, mapped = _asked()
    packages = [file.parent if file.name in ("__init__.py", "METADATA") else file for file in files]
    place = home / _digest(packages)
    lock = place.with_suffix(".lock")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _locks.append(locked(lock, fcntl.LOCK_SH))
        if not place.exists():
            draft = home / f"{place.name}.{new_id()}"
            try:
                _build(draft, packages, mapped)
                with suppress(OSError):  # another was as fast
                    draft.rename(place)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        os.utime(lock)
        _sweep(home)
    except OSError as err:
        raise ConfigError(f"Python for sandboxes cannot be put at {place}: {err}") from err
    return place


def _asked() -> tuple[list[Path], list[Path]]:
    """The packages it needs, and the shared objects that are mapped when everything is imported."""
    files, mapped = ownpython.asked(_ASK, str(STANDARD / "lib-dynload"))
    return [file for file in files if not _is_standard(file)], mapped


def _is_standard(file: Path) -> bool:
    return file.is_relative_to(STANDARD) and not {"site-packages", "dist-packages"}.intersection(file.parts)


def _digest(packages: list[Path]) -> str:
    found = hashlib.sha256(f"{sys.version} {PYTHON}".encode())
    for package in packages:
        for path in sorted(package.rglob("*.py")) if package.is_dir() else [package]:
            status = path.stat()
            found.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return found.hexdigest()[:16]


def _build(draft: Path, packages: list[Path], mapped: list[Path]) -> None:
    (draft / "packages").mkdir(parents=True)
    standard = draft / sys.platlibdir / VERSION
    shutil.copytree(STANDARD, standard, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for package in packages:
        if package.is_dir():
            shutil.copytree(package, draft / "packages" / package.name, ignore=shutil.ignore_patterns("*.opt-?.pyc"))
        else:
            shutil.copy2(package, draft / "packages")
    copied = (STANDARD, *packages)
    ownpython.place(draft, mapped, skip=lambda path: any(path.is_relative_to(each) for each in copied))
    compileall.compile_dir(draft, quiet=2)
    for path in draft.rglob("*"):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    draft.chmod(0o755)


def _sweep(home: Path) -> None:
    for lock in home.glob("*.lock"):
        with suppress(BlockingIOError, FileNotFoundError):  # in use, or another process is at it
            if time.time() - lock.stat().st_mtime < _UNUSED_DAYS * 86_400:
                continue
            fd = locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for place in home.glob(f"{lock.stem}*/"):  # drafts of processes that were killed, too
                shutil.rmtree(place, ignore_errors=True)
            lock.unlink()
            os.close(fd)
