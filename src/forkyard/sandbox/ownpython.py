"""This machine's Python where there is none: started from a mount, by its own dynamic loader with its own libraries.

Under the mount, `bin/python` is the interpreter, `so` holds the loader and the shared objects, and the standard library
lies where an interpreter in `bin` looks for it. So it runs in an image of any libc, or of none.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from forkyard.errors import ConfigError

PYTHON: Final = Path(os.path.realpath(sys.executable))
STANDARD: Final = Path(sysconfig.get_path("stdlib"))
VERSION: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"

FIND_MAPPED: Final = """
import ctypes
names = []
class Loaded(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Loaded), ctypes.c_size_t, ctypes.c_void_p)
def note(loaded, size, data):
    names.append((loaded.contents.name or b"").decode())
    return 0
ctypes.CDLL(None).dl_iterate_phdr(note, None)
mapped = sorted({name for name in names if "/" in name})
"""
"""Code after which `mapped` holds the paths of all shared objects that the Python that runs it has."""

_LOADER = re.compile(r"ld(-linux|-musl|64)?[-.\w]*\.so(\.\d+)?")


def command(here: str, program: str) -> tuple[str, ...]:
    """What starts a program, as text, in a sandbox that has the mount at `here`."""
    return (f"{here}/so/loader", "--library-path", f"{here}/so", f"{here}/bin/python", "-I", "-S", "-c", program)


def loader_of(mapped: Sequence[Path]) -> Path:
    """The dynamic loader among shared objects. Raises ConfigError for a Python that has none."""
    for path in mapped:
        if _LOADER.fullmatch(path.name):
            return path
    raise ConfigError(f"{PYTHON} has no dynamic loader, so it cannot be mounted into a sandbox: use another Python")
