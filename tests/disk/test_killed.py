"""Nothing acknowledged is lost when a process is killed, and nothing unacknowledged appears half."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from forkyard.disk import DiskError, Disks

APPENDER = Path(__file__).with_name("appender.py")


async def killed_appenders(home: Path, appenders: int, records: int, kill_after: int) -> None:
    """Appenders that are killed when so many records are acknowledged, and begin again until all is written."""
    disks = Disks(home)
    disk, _ = await disks.create("log")
    await disk.put("all.jsonl", b"")
    await disks.close()
    begin, acknowledged, attempt = [0] * appenders, set(), 0
    while min(begin) < records:
        numbers = [str(number) for number in (appenders, records, attempt, kill_after)]
        command = [sys.executable, str(APPENDER), str(home), *numbers]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(begin).encode())
            process.stdin.close()
            for line in process.stdout:
                appender, number = map(int, line.split())
                acknowledged.add((appender, number, attempt))
                begin[appender] = number + 1
        assert process.returncode in (0, -signal.SIGKILL)
        attempt += 1
    assert attempt > appenders * records // kill_after
    await check(home, acknowledged, appenders * records)


async def check(home: Path, acknowledged: set[tuple[int, int, int]], planned: int) -> None:
    disks = Disks(home)
    disk = disks.find("log")
    assert disk is not None
    data = await (await disk.get("all.jsonl")).read()
    found: Counter[tuple[int, int, int]] = Counter()
    for line in data.splitlines():
        appender, number, attempt, filler, length = line.split(b":")
        assert len(filler) == int(length)
        found[(int(appender), int(number), int(attempt))] += 1
    assert data.endswith(b"\n")
    assert max(found.values()) == 1
    assert acknowledged <= set(found)
    assert len({each[:2] for each in acknowledged}) == planned
    assert (await disk.head("all.jsonl")).etag == hashlib.md5(data).hexdigest()
    await disks.close()


async def test_killed_appenders_lose_and_tear_nothing(tmp_path: Path) -> None:
    await killed_appenders(tmp_path, appenders=16, records=60, kill_after=250)


@pytest.mark.slow
async def test_64_killed_appenders_of_1000_records_lose_and_tear_nothing(tmp_path: Path) -> None:
    await killed_appenders(tmp_path, appenders=64, records=1000, kill_after=5000)


def run_and_die(home: Path, body: str) -> None:
    """A process that makes the disk "d" and dies of SIGKILL at the end of `body`."""
    lines = "\n        ".join(body.strip().splitlines())
    code = f"""if True:
    import asyncio, os, signal
    from pathlib import Path
    from forkyard.disk import Disks
    async def main():
        disks = Disks(Path({str(home)!r}))
        disk, _ = await disks.create("d")
        {lines}
        os.kill(os.getpid(), signal.SIGKILL)
    asyncio.run(main())
    """
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL


HALF_AN_APPEND = """
from forkyard.disk.directory.stripes import Note
await disk.put("log", b"whole\\n")
file = os.open(disk.directory() / "log", os.O_WRONLY | os.O_APPEND)
turn = disk._place.stripes.held("log")
stripe = turn.__enter__()
stripe.note(Note(b"log", os.fstat(file).st_ino, 6, 12))
os.write(file, b"hal")
"""


@pytest.mark.parametrize("call", ["get", "head", "append", "list", "put"])
async def test_half_an_append_is_taken_back_before_anybody_sees_it(tmp_path: Path, call: str) -> None:
    run_and_die(tmp_path, HALF_AN_APPEND)
    disks = Disks(tmp_path)
    disk = disks.find("d")
    assert disk is not None
    whole = hashlib.md5(b"whole\n").hexdigest()
    if call == "get":
        assert await (await disk.get("log")).read() == b"whole\n"
    elif call == "head":
        assert (await disk.head("log")).etag == whole
    elif call == "append":
        assert (await disk.append("log", b"more\n")).etag == hashlib.md5(b"whole\nmore\n").hexdigest()
    elif call == "list":
        assert [info.etag for info in (await disk.list()).objects] == [whole]
    else:
        await disk.put("log", b"new")
        assert (disk.directory() / "log").read_bytes() == b"new"
    await disks.close()


async def test_an_append_that_was_written_whole_stays_though_nobody_was_told(tmp_path: Path) -> None:
    run_and_die(tmp_path, HALF_AN_APPEND.replace('b"hal"', 'b"whole2"'))
    disks = Disks(tmp_path)
    disk = disks.find("d")
    assert disk is not None
    assert await (await disk.get("log")).read() == b"whole\nwhole2"
    await disks.close()


async def test_a_note_is_not_about_another_file_of_the_name(tmp_path: Path) -> None:
    run_and_die(tmp_path, HALF_AN_APPEND)
    disks = Disks(tmp_path)
    disk = disks.find("d")
    assert disk is not None
    new = disk.directory() / "new"
    new.write_bytes(b"a command's")
    new.rename(disk.directory() / "log")
    assert await (await disk.get("log")).read() == b"a command's"
    await disks.close()


async def test_what_was_in_the_making_is_gone_at_the_next_start(tmp_path: Path) -> None:
    body = """
    async def endless():
        for number in range(10):
            yield b"x" * 300_000
        os.kill(os.getpid(), signal.SIGKILL)
    await disk.put("old", b"old")
    upload = await disk.begin_upload("b")
    await disk.put_part("b", upload.id, 1, b"1")
    await disk.put("old", endless())
    """
    run_and_die(tmp_path, "\n".join(line[4:] for line in body.strip("\n").splitlines()))
    made = list(tmp_path.glob("named-disks/dsk-*/state/tmp/*"))
    assert len(made) == 1
    draft = tmp_path / "named-disks" / made[0].parts[-4] / "drafts" / made[0].name
    (draft / "objects").mkdir(parents=True)
    disks = Disks(tmp_path)
    assert not made[0].exists()
    assert not draft.exists()
    disk = disks.find("d")
    assert disk is not None
    assert await (await disk.get("old")).read() == b"old"
    assert [upload.key for upload in await disk.uploads()] == ["b"]
    await disks.close()
    assert list((tmp_path / "named-disks" / "owners").iterdir()) == []


async def test_what_a_living_process_has_in_the_making_stays(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    disk, _ = await disks.create("d")

    async def body() -> object:
        yield b"x" * 300_000
        other = Disks(tmp_path)
        await other.close()
        yield b"y"

    info = await disk.put("a", body())  # type: ignore[arg-type]
    assert info.size == 300_001
    await disks.close()


async def test_a_disk_that_was_deleted_by_another_process_is_gone(tmp_path: Path) -> None:
    one, other = Disks(tmp_path), Disks(tmp_path)
    disk, _ = await one.create("d")
    await disk.put("a", b"1")
    await other.delete(disk.info.id)
    for call in (disk.put("a", b"2"), disk.append("a", b"2"), disk.get("a"), disk.list(), disk.begin_upload("b")):
        with pytest.raises(DiskError) as caught:
            await call
        assert caught.value.code == "NoSuchBucket"
    await one.close()
    await other.close()
