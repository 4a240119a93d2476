"""How users inside sandboxes correspond to users of the host."""

from __future__ import annotations

import os
import pwd
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GUEST_USERS = 65536
GUEST_BASE = 1_500_000_000  # first host id of the 65536 a root-started engine gives to its sandboxes


@dataclass(frozen=True, slots=True)
class IdMap:
    """How users inside sandboxes correspond to users of the host; a store belongs to one such map."""

    mode: str  # "range" (65536 users) or "single" (root only)
    uid_map: str
    gid_map: str
    owner: tuple[int, int]  # host uid and gid of the sandboxes' root
    mapper: dict[str, str] | None = None


def id_map() -> IdMap:
    """The best map this user can have."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        if _may_map(GUEST_BASE + GUEST_USERS):
            mapping = f"0 {GUEST_BASE} {GUEST_USERS}"
            return IdMap("range", mapping, mapping, (GUEST_BASE, GUEST_BASE))
        return IdMap("single", "0 0 1", "0 0 1", (0, 0))
    mapper = {"uid": shutil.which("newuidmap"), "gid": shutil.which("newgidmap")}
    sub_uid, sub_gid = _subordinate("/etc/subuid", uid), _subordinate("/etc/subgid", uid)
    if mapper["uid"] and mapper["gid"] and sub_uid and sub_gid:
        programs = {kind: path for kind, path in mapper.items() if path}
        uid_map, gid_map = f"0 {uid} 1 1 {sub_uid} {GUEST_USERS - 1}", f"0 {gid} 1 1 {sub_gid} {GUEST_USERS - 1}"
        return IdMap("range", uid_map, gid_map, (uid, gid), programs)
    return IdMap("single", f"0 {uid} 1", f"0 {gid} 1", (uid, gid))


def _may_map(highest: int) -> bool:
    """Whether this root owns ids that high (inside some containers it does not)."""
    rows = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(int(inside) <= GUEST_BASE and highest <= int(inside) + int(count) for inside, _, count in rows)


def _subordinate(path: str, uid: int) -> int | None:
    """The first of 65536 subordinate ids of a user; newuidmap knows users of the password file only."""
    with suppress(OSError, KeyError, ValueError):
        names = {pwd.getpwuid(uid).pw_name, str(uid)}
        for line in Path(path).read_text().splitlines():
            name, start, count = line.split(":")
            if name in names and int(count) >= GUEST_USERS - 1:
                return int(start)
    return None
