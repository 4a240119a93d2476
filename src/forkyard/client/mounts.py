"""Disks in sandboxes, as a program names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from forkyard.client.disks import Disk, disk_id_of
from forkyard.client.talk import Talk
from forkyard.values import nearest


@dataclass(frozen=True, slots=True)
class Mount:
    """A disk in a sandbox: itself, its name or its id. A sole mount is at /mnt/archil unless it has a path.

    A plain mount alone writes to its disk, and others are refused, or waited for `queue_ms` long. Those that are
    `read_only` or `conditional` share it.
    """

    disk: Disk | str
    path: str | None = None
    subdirectory: str | None = None
    read_only: bool = False
    conditional: bool = False
    queue_ms: int | None = None


_OPTIONS = tuple(field.name for field in fields(Mount))


async def as_sent(talk: Talk, mounts: Sequence[Mount | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mounts as the server takes them. TypeError for what is none, RefusedError when there is no such disk."""
    return [await _sent(talk, each if isinstance(each, Mount) else _read(each)) for each in mounts]


async def _sent(talk: Talk, mount: Mount) -> dict[str, Any]:
    said = {name: getattr(mount, name) for name in _OPTIONS[1:]}
    more = {name: value for name, value in said.items() if value is not None and value is not False}
    return {"disk_id": await disk_id_of(talk, mount.disk), **more}


def _read(given: Mapping[str, Any]) -> Mount:
    if not isinstance(given, Mapping):
        raise TypeError(f"{given!r:.100} is no mount: write forkyard.Mount(disk, path=...)")
    for name in given:
        if name not in _OPTIONS:
            near = nearest(name, _OPTIONS)
            told = f"did you mean {near!r}? " if near else ""
            raise TypeError(f"a mount has no {name!r}: {told}There are {', '.join(_OPTIONS)}")
    if "disk" not in given:
        raise TypeError("a mount needs its 'disk': a disk, its name or its id")
    return Mount(**given)
