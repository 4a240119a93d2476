"""Forks of running and paused sandboxes against guests that make it hard."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from forkyard.sandbox import Limits, Sandbox, SandboxSpec
from forkyard.sandbox.contract.promise import new_mark, sh
from forkyard.sandbox.local import LocalProvider
from tests.local.test_engine import descendants_with, left_on_disk

# Everything a tree is, one entry a line; run inside, since only there all of it can be read.
LISTING = r"""
import hashlib, json, os, stat, sys
def entry(path):
    s = os.lstat(path)
    kind = stat.S_IFMT(s.st_mode)
    found = [oct(s.st_mode), s.st_uid, s.st_gid, 0 if kind == stat.S_IFDIR else s.st_nlink, s.st_mtime_ns, s.st_rdev]
    if kind == stat.S_IFLNK:
        found.append(os.readlink(path))
    if kind == stat.S_IFREG:
        found += [s.st_size, s.st_blocks * 512 < s.st_size, hashlib.sha256(open(path, "rb").read()).hexdigest()]
    if kind in (stat.S_IFREG, stat.S_IFDIR):
        found.append(sorted((name, os.getxattr(path, name).hex()) for name in os.listxattr(path)))
    return found
tree = {}
for top in sys.argv[1:]:
    for folder, names, files in os.walk(top):
        for name in [*names, *files]:
            tree[os.path.join(folder, name)] = entry(os.path.join(folder, name))
print(json.dumps(tree, sort_keys=True))
"""

WEIRD = r"""
import os, socket
os.makedirs("/w/deep/er"); os.chdir("/w")
for name in ("plain", "-rf", "new\nline", ".wh.plain", ".wh..wh..opq", "sp ace", b"\xff\xfe", "'quote'", "\u2028"):
    open(name, "w").write(repr(name))
for number, target in enumerate(("/etc/shadow", "../../../../etc/shadow", "gone", ".", "loop", "/proc/1/root")):
    os.symlink(target, f"link{number}")
os.symlink("loop", "loop")
for number in range(5):
    os.link("plain", f"hard{number}"); os.link("link0", f"hardlink{number}")
os.link("plain", "deep/er/hard")
os.mkfifo("fifo", 0o640); os.link("fifo", "fifo2")
socket.socket(socket.AF_UNIX).bind("socket")
for number, mode in enumerate((0, 0o111, 0o4755, 0o2755, 0o1777, 0o444)):
    open(f"mode{number}", "w").write("m"); os.mkdir(f"dir{number}"); open(f"dir{number}/in", "w").write("i")
    os.chmod(f"mode{number}", mode); os.chmod(f"dir{number}", mode)
with open("sparse", "wb") as file:
    file.truncate(64 << 20); file.seek(5 << 20); file.write(b"data")
open("hole", "wb").truncate(1 << 20)
for name in ("note", "overlay.opaque", "overlay.whiteout", "overlay.origin", "overlay.redirect"):
    for path in ("plain", "deep"):
        os.setxattr(path, f"user.{name}", b"y")
if os.environ.get("USERS"):
    os.chown("mode5", 1234, 4321); os.lchown("link2", 7, 8); os.chown("dir5", 33, 33)
os.utime("plain", ns=(1, 1000000001)); os.utime("link1", ns=(5, 7), follow_symlinks=False); os.utime("deep", ns=(3, 4))
os.unlink("/etc/hosts"); os.rename("/etc/passwd", "/etc/moved"); os.symlink("moved", "/etc/passwd")
os.unlink("/etc/group"); os.mkdir("/etc/group"); open("/etc/group/file", "w").close()
os.mkdir("/usr/forks")
for number in range(9):
    open(f"/usr/forks/{number}", "w").close()
os.unlink("/usr/bin/awk"); os.mkdir("/usr/bin/awk")
"""


async def listing(box: Sandbox, *tops: str) -> dict[str, Any]:
    done = await box.run(["python3", "-B", "-c", LISTING, *tops], timeout=60, output_limit=64 << 20)
    assert done.ok, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def test_a_fork_of_a_tree_full_of_traps_is_the_same_tree(local: LocalProvider) -> None:
    async with asyncio.timeout(110):
        source = await local.create(SandboxSpec(env={"USERS": "1"} if local.yard.many_users else {}))
        made = await source.run(["python3", "-c", WEIRD])
        assert made.ok, made.stderr
        before = await listing(source, "/w", "/etc", "/usr/forks")
        fork = await source.fork()
        assert await listing(fork, "/w", "/etc", "/usr/forks") == before
        assert [change.path for change in await fork.changes()] == []
        again = await fork.fork()
        await fork.close()
        await again.stop()
        last = await again.fork()
        assert await listing(last, "/w", "/etc", "/usr/forks") == before
        assert (await last.run("test -d /usr/bin/awk")).ok
        for box in (source, again, last):
            await box.close()


WHOLE = """
for n in $(seq 20); do
    cat /log.$n /t.$n 2>/dev/null > /n
    cmp /n <(seq $(wc -l < /n)) || exit 1
done
cat /log.* /t.* 2>/dev/null | wc -l
"""
BOMB = """
import os
log = os.open("/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    try:
        os.fork()
    except OSError:
        pass
    os.write(log, b"x")
"""


async def test_forks_while_twenty_writers_write(local: LocalProvider) -> None:
    source = await local.create(SandboxSpec())
    writer = "i=0; while :; do i=$((i+1)); echo $i >> /log.$1; mv /log.$1 /t.$1; mv /t.$1 /log.$1; done"
    await sh(source, f"for n in $(seq 20); do sh -c '{writer}' sh $n & done >/dev/null 2>&1")
    await sh(source, "for n in $(seq 20); do while ! test -s /log.$n -o -s /t.$n; do :; done; done")
    last = 0
    for _ in range(3):
        fork = await source.fork()
        done = await fork.run(["bash", "-c", WHOLE])
        assert (done.stderr, done.exit_code) == ("", 0)
        assert int(done.stdout) > last
        last = int(done.stdout)
        await fork.close()
    await source.close()


async def test_a_fork_bomb_comes_to_a_halt_and_goes_on(local: LocalProvider) -> None:
    bombed = await local.create(SandboxSpec(limits=Limits(pids=64)))
    other = await local.create(SandboxSpec())
    bomb = asyncio.create_task(bombed.run(["python3", "-c", BOMB], timeout=300))
    while (await other.run(["true"])).ok:
        try:
            if len(await bombed.read("/log")) > 200:
                break
        except FileNotFoundError:
            pass
    await bombed.pause()
    size = len(await bombed.read("/log"))
    fork = await bombed.fork()
    assert len(await fork.read("/log")) == size == len(await bombed.read("/log"))
    assert (await other.run(["true"], timeout=60)).ok
    await bombed.resume()
    await bombed.close()
    bomb.cancel()
    await asyncio.wait([bomb])
    await fork.close()
    await other.close()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


async def test_what_goes_on_by_itself_is_stopped_again(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    mark = new_mark()
    await sh(box, f"sleep {mark} >/dev/null 2>&1 &")
    async with asyncio.timeout(100):
        while not (found := descendants_with(f"sleep\0{mark}")):
            await asyncio.sleep(0.01)
    (pid,) = found
    await box.pause()
    for _ in range(3):
        assert state_of(pid) == "T"
        os.kill(pid, signal.SIGCONT)
        async with asyncio.timeout(100):
            while state_of(pid) != "T":
                await asyncio.sleep(0.01)
    await box.resume()
    async with asyncio.timeout(100):
        while state_of(pid) == "T":
            await asyncio.sleep(0.01)
    await box.close()


async def test_what_is_asked_while_a_fork_is_made_waits_for_it(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    await sh(box, "for i in $(seq 1500); do echo $i > /f$i; done")
    forking = asyncio.create_task(box.fork())
    asked = [asyncio.create_task(box.run(["sh", "-c", f"echo {n} > /asked{n}"])) for n in range(5)]
    late = asyncio.create_task(box.run("sleep 60", timeout=0.01))
    fork = await forking
    assert all(done.ok for done in await asyncio.gather(*asked)) and (await late).timed_out
    assert (await box.run("ls /f* | wc -l; ls /asked* | wc -l")).stdout == "1500\n5\n"
    assert (await fork.run("ls /f* | wc -l")).stdout == "1500\n"
    await fork.close()
    await box.close()


async def test_a_cancelled_fork_leaves_nothing_and_its_source_goes_on(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider:
        box = await provider.create(SandboxSpec())
        await sh(box, "for i in $(seq 2000); do echo $i > /f$i; done; sleep 1000 >/dev/null 2>&1 &")
        for delay in (0, 0.001, 0.005, 0.02, 0.06):
            forking = asyncio.create_task(box.fork())
            await asyncio.sleep(delay)
            forking.cancel()
            try:
                await (await forking).close()
            except asyncio.CancelledError:
                pass
            assert len(await provider.sandboxes()) == 1
            assert (await box.run(["sh", "-c", "ps -eo stat,comm | grep -c '^T' || :"])).stdout == "0\n"
        fork = await box.fork()
        assert (await fork.run("ls /f* | wc -l")).stdout == "2000\n"
        await fork.close()
        await box.close()
    assert len(left_on_disk(tmp_path)["disks"]) == 1


async def test_nothing_of_overlayfs_is_in_an_archive(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    await sh(box, "mkdir -p /w/d /w/gone; echo > /w/d/f; echo > /w/x")
    await box.stop()
    fork = await box.fork()
    await sh(fork, "rm /w/x; rm -r /w/gone /w/d; mkdir /w/d; echo > /w/d/g")
    copy = await fork.fork()
    for one in (fork, copy):
        archive = await one.pull("/w")
        assert b"overlay" not in archive and b"x\0" not in archive[:100] and b"xattr" not in archive
    for one in (copy, fork, box):
        await one.close()


OWNER = """
    import asyncio, sys
    from pathlib import Path
    from forkyard.sandbox import SandboxSpec
    from forkyard.sandbox.local import LocalProvider

    async def main():
        provider = LocalProvider(Path(sys.argv[1]))
        box = await provider.create(SandboxSpec(name="source"))
        await box.run(f"for i in $(seq 4000); do echo $i > /f$i; done; sleep {sys.argv[2]} >/dev/null 2>&1 &")
        print("up", flush=True)
        while True:
            await (await box.fork()).close()

    asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("enough", [5, 700, 2500])
async def test_an_owner_killed_while_it_copies_leaves_nothing_a_sweep_does_not_remove(
    tmp_path: Path, enough: int
) -> None:
    mark = new_mark()
    command = [sys.executable, "-c", textwrap.dedent(OWNER), str(tmp_path), mark]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        try:
            assert owner.stdout.readline() == "up\n"
            source = {path.name for path in (tmp_path / "disks").iterdir() if (path / "u/f1").exists()}
            disks = tmp_path / "disks"
            end = time.monotonic() + 100
            while not any(copying(path, enough) for path in disks.iterdir() if path.name not in source):
                assert time.monotonic() < end
        finally:
            owner.kill()
    async with asyncio.timeout(100):
        while descendants_with(f"sleep\0{mark}") or descendants_with(str(tmp_path)):
            await asyncio.sleep(0.01)
    async with LocalProvider(tmp_path) as provider:
        removed = await provider.sweep()
        assert any("source" in line for line in removed)
        assert await provider.sandboxes() == []
    async with asyncio.timeout(100):
        while left_on_disk(tmp_path)["trash"]:  # the dead owner's janitor may still be at it
            await asyncio.sleep(0.01)
    left = left_on_disk(tmp_path)
    assert (len(left["disks"]), left["engines"]) == (1, [])


def copying(disk: Path, enough: int) -> bool:
    try:
        return (disk / "l").exists() and len(list((disk / "u").iterdir())) >= enough
    except OSError:
        return False


WRITES = """
import sqlite3
db = sqlite3.connect("/db", isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, pad BLOB, half INTEGER)")
n = 0
while True:
    db.execute("BEGIN")
    for half in (0, 1):
        db.execute("INSERT INTO t (pad, half) VALUES (randomblob(700), ?)", (half,))
    db.execute("COMMIT")
    n += 1
    if n % 50 == 0:
        db.execute("DELETE FROM t WHERE n % 3 = 0 AND half = 2")
        open("/ready", "w").close()
"""
CHECKS = """
import sqlite3
db = sqlite3.connect("/db")
print(db.execute("PRAGMA integrity_check").fetchone()[0])
print(*db.execute("SELECT sum(half = 0) - sum(half = 1) FROM t").fetchone())
print(*db.execute("SELECT count(*) FROM t").fetchone())
"""


@pytest.mark.slow
async def test_a_database_being_written_to_survives_its_fork(local: LocalProvider) -> None:
    source = await local.create(SandboxSpec())
    await source.write("/writes.py", WRITES.encode())
    await sh(source, "python3 /writes.py >/errors 2>&1 & while ! test -e /ready; do :; done")
    rows = 0
    for _ in range(10):
        fork = await source.fork()
        done = await fork.run(["python3", "-c", CHECKS])
        verdict, torn, count = done.stdout.split()
        assert (verdict, torn) == ("ok", "0"), done.stderr
        assert int(count) > rows
        rows = int(count)
        await fork.close()
    assert await source.read("/errors") == b""
    await source.close()
