"""This machine's Python where there is none: started from a mount, by its own dynamic loader with its own libraries.

Under the mount, `bin/python` is the interpreter, `so` holds the loader and the shared objects, and the standard library
lies where an interpreter in `bin` looks for it. So it runs in an image of any libc, or of none.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from forkyard.errors import ConfigError

PYTHON: Final = Path(os.path.realpath(sys.executable))
STANDARD: Final = Path(sysconfig.get_path("stdlib"))
VERSION: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"

_FIND_MAPPED = """
import ctypes, json, sys
names = []
class Loaded(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Loaded), ctypes.c_size_t, ctypes.c_void_p)
def note(loaded, size, data):
    names.append((loaded.contents.name or b"").decode())
    return 0
ctypes.CDLL(None).dl_iterate_phdr(note, None)
mapped = sorted({name for name in names if "/" in name})
sys.stdout.write(json.dumps([files, mapped]))
"""

_LOADER = re.compile(r"ld(-linux|-musl|64)?[-.\w]*\.so(\.\d+)?")


def command(here: str, program: str) -> tuple[str, ...]:
    """What starts a program, as text, in a sandbox that has the mount at `here`."""
    return (f"{here}/so/loader", "--library-path", f"{here}/so", f"{here}/bin/python", "-I", "-S", "-c", program)


def asked(code: str, *arguments: str, isolated: bool = False) -> tuple[list[Path], list[Path]]:
    """The `files` that code of this machine's Python finds, and all shared objects it then has mapped.

    `isolated` leaves it the standard library alone. Raises ConfigError when the code fails.
    """
    argv = [sys.executable, *(("-I", "-S") if isolated else ()), "-c", code + _FIND_MAPPED, *arguments]
    env: dict[str, str] | None = {} if isolated else None
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/", env=env)
    if done.returncode != 0:
        raise ConfigError(f"this Python cannot be put into a sandbox: {done.stderr.strip()[-500:]}")
    files, mapped = json.loads(done.stdout)
    return [Path(path) for path in files], [Path(path) for path in mapped]


def place(draft: Path, mapped: Sequence[Path], skip: Callable[[Path], bool]) -> None:
    """Put the interpreter, its loader and the shared objects that are not to be skipped where `command` looks for them.

    Raises ConfigError for a Python that has no loader, OSError when it cannot be written.
    """
    copy(PYTHON, draft / "bin/python")
    copy(_loader_of(mapped), draft / "so/loader")
    for path in mapped:
        if ".so" in path.name and not skip(path):
            copy(path, draft / "so" / path.name)


def copy(source: Path, target: Path) -> None:
    """A file for everybody to read, and to run when its source is a program."""
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def _loader_of(mapped: Sequence[Path]) -> Path:
    """The dynamic loader among shared objects."""
    for path in mapped:
        if _LOADER.fullmatch(path.name):
            return path
    raise ConfigError(f"{PYTHON} has no dynamic loader, so it cannot be mounted into a sandbox: use another Python")
