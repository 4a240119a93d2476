"""How much each sandbox may write to its disk, where nobody says: so that one of them does not fill the machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from forkyard.values import MIB

_GIB = 1024  # MiB
LEAST, MOST, SHARE = 1 * _GIB, 64 * _GIB, 4


def default_storage_mib(home: Path) -> int:
    """A quarter of what is free where that home lies now, in whole GiB: 1 at least, 64 at most."""
    place = next(each for each in (home, *home.parents) if each.exists())
    free = shutil.disk_usage(place).free // MIB
    return min(MOST, max(LEAST, free // SHARE // _GIB * _GIB))
