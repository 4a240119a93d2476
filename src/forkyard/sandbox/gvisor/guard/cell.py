"""The file system a guard and its runsc live in: the sandbox's disk, the program, /proc, a few devices, and no more.

/root       the sandbox's disk, which gVisor serves to the guest as "/"
/bin/runsc  the machine's, read-only
/run        runsc's state, the bundle, one command's description and log at a time
/tmp        empty; runsc makes the root of the guest's kernel there
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .lineage import POINTS
from .runsc import PROGRAM, STATE

if TYPE_CHECKING:
    from forkyard.sandbox.inside import files, kernel, rootfs
else:
    from inside import files, kernel, rootfs

DISK = "/root"
BUNDLE = "/run/bundle"
TRACE = "/run/trace.json"
SINK = "/run/sink"
_FIRST = "/run/first"
_FIRST_INSIDE = "/dev/.forkyard"
_CELL = rootfs.HOST_USR  # an empty directory, or one no longer needed once the disk is mounted
_NAMES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_SYS_CHROOT": 18,
    "CAP_AUDIT_WRITE": 29,
}
_NAMESPACES = ("pid", "ipc", "uts", "mount")
CAPABILITIES = sorted(name for name, number in _NAMES.items() if number in rootfs.CAPABILITIES)


def enter(runsc: str) -> None:
    """Make the cell around the disk at `rootfs.ROOT`, and leave everything else behind."""
    for name in files.SYSTEM:
        rootfs.ensure_directory(f"{rootfs.ROOT}/{name}")  # where gVisor puts its own
    kernel.mount("tmpfs", _CELL, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=64m")
    for name in ("root", "bin", "proc", "dev", "run", "tmp", "run/bundle", "run/first"):
        os.mkdir(f"{_CELL}/{name}", 0o755)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("65536")  # a gVisor has some of its own, and its guests none of this kernel's
    os.close(os.open(f"{_CELL}{PROGRAM}", os.O_CREAT | os.O_WRONLY, 0o755))
    kernel.mount(runsc, f"{_CELL}{PROGRAM}", None, kernel.MS_BIND)
    kernel.mount(rootfs.ROOT, f"{_CELL}{DISK}", None, kernel.MS_MOVE)
    for name in ("proc", "dev"):
        kernel.mount(f"{rootfs.ASIDE}/{name}", f"{_CELL}/{name}", None, kernel.MS_MOVE)
    kernel.pivot_into(_CELL)


@contextmanager
def inside() -> Iterator[None]:
    """The body sees the sandbox's disk as "/", as a guest would; a guest's links lead nowhere else."""
    outside = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chroot(DISK)
        os.chdir("/")
        try:
            yield
        finally:
            os.fchdir(outside)
            os.chroot(".")
            os.chdir("/")
    finally:
        os.close(outside)


@contextmanager
def tmp_in_use() -> Iterator[None]:
    """Keep something in the sandbox's /tmp: over an empty one gVisor would mount a file system of its own."""
    with inside():
        try:
            name = f"/tmp/.forkyard-{os.getpid()}-{os.urandom(6).hex()}"
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError:  # there is none, so gVisor mounts nothing there
            name = ""
    yield
    if name:
        with inside():
            os.unlink(name)


def write_bundle(hostname: str, rlimits: Mapping[str, int], ports: bool) -> None:
    """What runsc has to be told of a sandbox; with `ports` its network is the guard's."""
    with open(f"{_FIRST}/first", "wb") as file:
        file.write(first_process())
    os.chmod(f"{_FIRST}/first", 0o755)
    config = {
        "ociVersion": "1.0.2",
        "hostname": hostname,
        "root": {"path": DISK, "readonly": False},
        "process": process([f"{_FIRST_INSIDE}/first"], {}, "/", (0, 0, ()), rlimits),
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]},
            {"destination": _FIRST_INSIDE, "type": "bind", "source": _FIRST, "options": ["ro"]},
        ],
        "linux": {"namespaces": [{"type": kind} for kind in (*_NAMESPACES, *(() if ports else ("network",)))]},
    }
    points = [{"name": name, "context_fields": ["group_id"]} for name in POINTS]
    sink = {"name": "remote", "config": {"endpoint": SINK, "retries": 100, "backoff": "1ms", "backoff_max": "20ms"}}
    write(f"{BUNDLE}/config.json", config)
    write(TRACE, {"trace_session": {"name": "Default", "points": points, "sinks": [sink]}})
    os.mkdir(STATE, 0o700)


def write(path: str, value: dict[str, Any]) -> None:
    """Write a JSON file of the cell."""
    with open(path, "w") as file:
        json.dump(value, file)


def process(
    argv: list[str], env: dict[str, str], cwd: str, ids: tuple[int, int, tuple[int, ...]], rlimits: Mapping[str, int]
) -> dict[str, Any]:
    """A process as runsc takes it; `ids` are a user, a group and more groups.

    Root has the usual capabilities, others none, and nobody gains any.
    """
    uid, gid, groups = ids
    mine = CAPABILITIES if uid == 0 else []
    sets = {"bounding": CAPABILITIES, "permitted": mine, "effective": mine, "inheritable": [], "ambient": []}
    return {
        "user": {"uid": uid, "gid": gid, "additionalGids": list(groups)},
        "args": argv,
        "env": [f"{name}={value}" for name, value in env.items()],
        "cwd": cwd,
        "capabilities": sets,
        "noNewPrivileges": True,
        "rlimits": [{"type": name, "hard": value, "soft": value} for name, value in rlimits.items()],
    }


def first_process() -> bytes:
    """The program of the guest's PID 1: an image may have none. It ignores SIGCHLD, so orphans vanish, and waits."""
    ignore = bytes.fromhex("b80d000000 bf11000000")  # mov eax, rt_sigaction; mov edi, SIGCHLD
    rest = bytes.fromhex("31d2 41ba08000000 0f05 b822000000 0f05 ebf7")  # its call; mov eax, pause; call; again
    action = struct.pack("<4Q", 1, 0, 0, 0)  # SIG_IGN
    code = ignore + bytes.fromhex("488d35") + struct.pack("<i", len(rest)) + rest + action  # lea rsi, action
    base, headers = 0x400000, 64 + 56
    size = headers + len(code)
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, base + headers, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 4096) + code
