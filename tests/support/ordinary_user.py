"""Run a command as an ordinary user, when the tests themselves are root's.

The user needs to reach this Python and this checkout, which may lie under directories that only root may enter. So
the command gets mounts of its own in which these are opened, and, on request, a line in the password file and a range
of subordinate ids, or a /dev/net/tun that anybody may open, as most machines have it; all of it gone when the command
ends.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UID = 54321
CHECKOUT = Path(__file__).parents[2]


def _closed_ancestor(path: Path) -> Path | None:
    """The topmost directory above `path` that others may not pass through."""
    for ancestor in [*reversed(path.parents), path]:
        if not ancestor.stat().st_mode & 0o001:
            return ancestor
    return None


def _script(keep: Path, subordinate_ids: bool, tun: bool) -> list[str]:
    needed = sorted({Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), CHECKOUT})
    closed = {path: ancestor for path in needed if (ancestor := _closed_ancestor(path))}
    lines = ["set -e", "mount --make-rprivate /"]
    for number, path in enumerate(closed):
        lines += [f"mkdir {keep}/{number}", f"mount --bind {shlex.quote(str(path))} {keep}/{number}"]
    lines += [f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(a))}" for a in sorted(set(closed.values()))]
    for number, path in enumerate(closed):
        quoted = shlex.quote(str(path))
        lines += [f"mkdir -p {quoted}", f"mount --bind {keep}/{number} {quoted}"]
    if subordinate_ids:
        rows = {
            "passwd": f"forkyard-tester:x:{UID}:{UID}::/:/bin/sh",
            "subuid": "forkyard-tester:700000:65536",
            "subgid": "forkyard-tester:700000:65536",
        }
        for name, row in rows.items():
            copy = f"{keep}/{name}"
            lines += [f"cat /etc/{name} > {copy}", f"echo {shlex.quote(row)} >> {copy}", f"touch /etc/{name}"]
            lines += [f"mount --bind {copy} /etc/{name}"]
    if tun:
        lines += [f"mknod -m 666 {keep}/tun c 10 200", f"mount --bind {keep}/tun /dev/net/tun"]
    return lines


@contextmanager
def home_of_the_user() -> Iterator[Path]:
    """A directory that belongs to the user, in memory: an image of theirs has 17,000 files, slow to remove."""
    path = Path(tempfile.mkdtemp(prefix="forkyard-user-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=777,size=2g", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)
        path.rmdir()


def run_as_user(
    *command: str, home: Path, subordinate_ids: bool = False, tun: bool = False, timeout: float = 280
) -> subprocess.CompletedProcess[str]:
    """Run a command as uid 54321, with nothing of root's environment."""
    with tempfile.TemporaryDirectory(prefix="forkyard-mounts-") as name:
        keep = Path(name)
        keep.chmod(0o755)
        as_user = f"setpriv --reuid {UID} --regid {UID} --clear-groups --inh-caps=-all"
        environment = f"env -i HOME={home} PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8"
        final = f"exec {as_user} {environment} {shlex.join(command)}"
        script = "\n".join([*_script(keep, subordinate_ids, tun), f"cd {shlex.quote(str(CHECKOUT))}", final])
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
