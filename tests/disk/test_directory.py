"""A disk's directory as commands in sandboxes see and change it."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import os
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from forkyard.disk import About, Condition, Disk, DiskError, Disks, Range

libc = ctypes.CDLL(None, use_errno=True)
EXCHANGE = 2
EMPTY = "d41d8cd98f00b204e9800998ecf8427e"


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


async def keys(disk: Disk, prefix: str = "") -> list[str]:
    return [info.key for info in (await disk.list(prefix)).objects]


async def contents(disk: Disk, key: str) -> bytes:
    return await (await disk.get(key)).read()


async def refused(code: str, disk: Disk, call: str, *args: object, **more: object) -> None:
    with pytest.raises(DiskError) as caught:
        await getattr(disk, call)(*args, **more)
    assert caught.value.code == code


def openings(path: Path) -> int:
    """How often this process has a file open."""
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += fd.readlink() == path
    return found


def shell(disk: Disk, command: str) -> None:
    subprocess.run(["bash", "-ec", command], cwd=disk.directory(), check=True)


async def test_an_object_is_a_plain_file_of_its_own_name(plain: Disk) -> None:
    await plain.put("a/b c\nd.txt", b"text")
    path = plain.directory() / "a" / "b c\nd.txt"
    assert path.read_bytes() == b"text"
    assert (path.stat().st_mode & 0o7777, path.parent.stat().st_mode & 0o7777) == (0o644, 0o755)
    await plain.append("a/b c\nd.txt", b"!")
    assert path.read_bytes() == b"text!"
    assert await keys(plain) == ["a/b c\nd.txt"]


async def test_what_a_command_wrote_is_an_object_with_the_right_etag(plain: Disk) -> None:
    shell(plain, "mkdir -p x/y && echo one > x/y/f && printf two > g")
    assert [(info.key, info.etag) for info in (await plain.list()).objects] == [
        ("g", md5(b"two")),
        ("x/y/f", md5(b"one\n")),
    ]
    shell(plain, "echo more >> x/y/f; printf owt > g")
    assert (await plain.head("x/y/f")).etag == md5(b"one\nmore\n")
    assert (await plain.head("g")).etag == md5(b"owt")
    assert (await plain.append("g", b"!")).etag == md5(b"owt!")


async def test_a_change_in_place_is_noticed_though_length_and_time_are_as_before(plain: Disk) -> None:
    await plain.put("f", b"aaaa")
    assert (await plain.head("f")).etag == md5(b"aaaa")
    for letter in "bcdefgh":
        shell(plain, f"touch -r f /proc/self/fd/9 9> ../stamp; printf {letter * 4} 1<> f; touch -r ../stamp f")
        assert (await plain.head("f")).etag == md5(letter.encode() * 4)


async def test_an_append_after_a_command_changed_the_object_is_told_the_right_etag(plain: Disk) -> None:
    await plain.append("log", b"1\n")
    await plain.append("log", b"2\n")
    shell(plain, "printf X 1<> log")
    assert (await plain.append("log", b"3\n")).etag == md5(b"X\n2\n3\n")
    shell(plain, "truncate -s 1 log; echo more >> log")
    assert (await plain.append("log", b"4\n")).etag == md5(b"Xmore\n4\n")


async def test_appends_and_commands_that_append_at_once_lose_nothing(plain: Disk) -> None:
    await plain.put("log", b"")
    command = ["bash", "-c", "for i in $(seq 300); do echo command $i >> log; done"]
    process = await asyncio.create_subprocess_exec(*command, cwd=plain.directory())
    for number in range(100):
        await plain.append("log", b"ours %d\n" % number)
    assert await process.wait() == 0
    lines = (await contents(plain, "log")).splitlines()
    assert [line for line in lines if line.startswith(b"ours")] == [b"ours %d" % number for number in range(100)]
    assert sum(line.startswith(b"command") for line in lines) == 300 == len(lines) - 100
    assert (await plain.head("log")).etag == md5(await contents(plain, "log"))


async def test_what_is_said_of_an_object_goes_with_its_file(plain: Disk) -> None:
    await plain.put("a", b"1", about=About("text/plain", {"x": "y"}))
    shell(plain, "mkdir d; mv a d/b; echo 2 >> d/b; cp --preserve=xattr d/b c")
    for key in ("d/b", "c"):
        head = await plain.head(key)
        assert (head.content_type, head.metadata, head.etag) == ("text/plain", {"x": "y"}, md5(b"12\n"))
    await plain.put("c", b"3")
    head = await plain.head("c")
    assert (head.content_type, head.metadata) == (None, {})


async def test_the_etag_of_parts_holds_for_as_long_as_the_bytes_do(plain: Disk) -> None:
    upload = await plain.begin_upload("a")
    info = await plain.complete_upload("a", upload.id, [await plain.put_part("a", upload.id, 1, b"bytes")])
    shell(plain, "mv a b; touch b")
    assert (await plain.head("b")).etag == info.etag != md5(b"bytes")
    shell(plain, "printf other > b")
    assert (await plain.head("b")).etag == md5(b"other")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{",
        b"[" * 2000,
        b"\xff",
        b'{"content_type": 7}',
        b'{"content_type": "a\\nb", "metadata": {}, "whole": "", "shown": "", "owner": null, "marked": false}',
        b'{"content_type": null, "metadata": {"a": "\\r"}, "whole": "", "shown": "", "owner": null, "marked": false}',
        b'{"content_type": null, "metadata": 3, "whole": "", "shown": "", "owner": null, "marked": false}',
        b'{"content_type": null, "metadata": {}, "whole": "", "shown": "", "owner": ["a"], "marked": false}',
        b'{"content_type": null, "metadata": {}, "whole": "%s", "shown": "\\"x", "owner": null, "marked": 1}'
        % md5(b"1").encode(),
    ],
)
async def test_attributes_of_a_strangers_making_mean_nothing(plain: Disk, said: bytes) -> None:
    await plain.put("a", b"1")
    await plain.put("d/", b"")
    os.setxattr(plain.directory() / "a", "user.forkyard", said)
    os.setxattr(plain.directory() / "d", "user.forkyard", said)
    head = await plain.head("a")
    assert (head.etag, head.content_type, head.metadata, head.mode, head.uid) == (md5(b"1"), None, {}, 0o644, 0)
    assert await keys(plain) == ["a"]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the host, in a directory, that no disk may reach."""
    (tmp_path / "outside").mkdir()
    path = tmp_path / "outside" / "secret"
    path.write_text("secret")
    return path


async def test_links_lead_nowhere(plain: Disk, secret: Path) -> None:
    shell(plain, f"ln -s {secret} link; ln -s {secret.parent} away; ln -s . here; echo 1 > f; ln -s f inside")
    for key in ("link", "away/secret", "inside", "here/f"):
        await refused("NoSuchKey", plain, "get", key)
        await refused("NoSuchKey", plain, "head", key)
        assert await plain.delete(key) is False
    assert await keys(plain) == ["f"]
    assert (await plain.list(delimiter="/")).prefixes == ()
    assert (await plain.list("away/")).objects == ()
    for key in ("away/secret", "away/new", "here/new"):
        await refused("KeyConflict", plain, "put", key, b"x")
        await refused("KeyConflict", plain, "append", key, b"x")
    await refused("KeyConflict", plain, "append", "link", b"x")
    await refused("KeyConflict", plain, "put", "away/", b"")
    await refused("NoSuchKey", plain, "head", "away/")
    with pytest.raises(DiskError, match="no directory"):
        plain.directory("away")
    upload = await plain.begin_upload("away/secret")
    part = await plain.put_part("away/secret", upload.id, 1, b"x")
    await refused("KeyConflict", plain, "complete_upload", "away/secret", upload.id, [part])
    await plain.put("link", b"in the place of the link")
    assert await contents(plain, "link") == b"in the place of the link"
    assert secret.read_text() == "secret"
    assert list(secret.parent.iterdir()) == [secret]


async def test_what_is_no_plain_file_is_no_object(plain: Disk) -> None:
    top = plain.directory()
    os.mkfifo(top / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(top, os.O_PATH)
        listener.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    names = ["fifo", "socket"]
    if os.getuid() == 0:
        os.mknod(top / "device", 0o020666, os.makedev(1, 5))
        names.append("device")
    for name in names:
        await refused("NoSuchKey", plain, "get", name)
        await refused("NoSuchKey", plain, "head", name)
        await refused("KeyConflict", plain, "append", name, b"x")
        assert await plain.delete(name) is False
    assert await keys(plain) == []
    for name in names:
        await plain.put(name, b"x", when=Condition(if_none_match="*"))
        assert await contents(plain, name) == b"x"


async def test_a_directory_that_turns_into_a_link_again_and_again_leads_nowhere(plain: Disk, secret: Path) -> None:
    top = plain.directory()
    (top / "d").mkdir()
    (top / "d" / "secret").write_text("harmless")
    (top / "link").symlink_to(secret.parent)
    done = threading.Event()

    def swap() -> None:
        names = os.fsencode(top / "d"), os.fsencode(top / "link")
        while not done.is_set():
            assert libc.renameat2(-1, names[0], -1, names[1], EXCHANGE) == 0

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(300):
            try:
                data = await contents(plain, "d/secret")
                assert data.startswith(b"harmless")
            except DiskError as err:
                assert err.code == "NoSuchKey"
            try:
                await plain.append("d/secret", b"!")
                await plain.put("d/new", b"x")
            except DiskError as err:
                assert err.code in ("KeyConflict", "OperationAborted")
            listed = await plain.list()
            assert {info.key for info in listed.objects} <= {"d/secret", "link/secret", "d/new", "link/new"}
    finally:
        done.set()
        swapping.join()
    assert secret.read_text() == "secret"
    assert list(secret.parent.iterdir()) == [secret]


async def test_a_name_is_a_file_or_a_directory(plain: Disk) -> None:
    await plain.put("a/b", b"1")
    await refused("KeyConflict", plain, "put", "a", b"2")
    await refused("KeyConflict", plain, "append", "a", b"2")
    await refused("KeyConflict", plain, "put", "a/b/c", b"2")
    await refused("KeyConflict", plain, "append", "a/b/c", b"2")
    await refused("KeyConflict", plain, "put", "a/b/", b"")
    await refused("NoSuchKey", plain, "get", "a")
    await refused("NoSuchKey", plain, "get", "a/")
    await refused("NoSuchKey", plain, "get", "a/b/")
    assert await keys(plain) == ["a/b"]


async def test_directories_without_objects_are_in_nobodys_way(plain: Disk) -> None:
    await plain.put("a/b/c", b"1")
    await plain.delete("a/b/c")
    assert (plain.directory() / "a" / "b").is_dir()
    assert await keys(plain) == []
    assert (await plain.list(delimiter="/")).prefixes == ()
    await plain.put("a", b"now a file")
    await plain.delete("a")
    await plain.put("a/b/c", b"1")
    await plain.delete("a/b/c")
    await plain.append("a/b", b"now a file")
    assert await keys(plain) == ["a/b"]


async def test_an_existing_directory_is_not_changed(plain: Disk) -> None:
    shell(plain, "mkdir -m 0711 d")
    await plain.put("d/", b"", about=About(mode=0o700))
    assert (await plain.head("d/")).mode == 0o711
    made = await plain.put("e/f/", b"", about=About(mode=0o700))
    assert (made.mode, (plain.directory() / "e").stat().st_mode & 0o7777) == (0o700, 0o755)
    shell(plain, "rmdir e/f")
    await refused("NoSuchKey", plain, "head", "e/f/")


async def test_terabytes_of_holes_are_no_trouble(plain: Disk, disks: Disks) -> None:
    with (plain.directory() / "holes").open("wb") as file:
        file.write(b"begin")
        file.truncate(1 << 42)
    first = await plain.head("holes")
    assert (first.size, first.etag[-2:]) == (1 << 42, "-1")
    assert [info.etag for info in (await plain.list()).objects] == [first.etag] == [(await plain.head("holes")).etag]
    reading = await plain.get("holes", Range(0, 9))
    assert await reading.read() == b"begin" + bytes(5)
    longer = await plain.append("holes", b"end")
    assert longer.size == (1 << 42) + 3
    assert longer.etag == (await plain.head("holes")).etag != first.etag
    await disks.create_branch(plain.info.id, "b")
    copy = disks.get(plain.info.id, "b")
    stat = (copy.directory() / "holes").stat()
    assert (stat.st_size, stat.st_blocks < 1000) == (longer.size, True)
    assert await (await copy.get("holes", Range(None, 4))).read() == b"\0end"


async def test_names_that_no_key_has_are_left_out(plain: Disk) -> None:
    top = os.fsencode(plain.directory())
    Path(os.fsdecode(top + b"/\xff\xfe")).write_text("x")
    deep = "/".join(["x" * 100] * 12)
    (plain.directory() / deep).mkdir(parents=True)
    (plain.directory() / deep / "f").write_text("x")
    await plain.put("ok", b"")
    assert await keys(plain) == ["ok"]
    assert (await plain.list(delimiter="/")).prefixes == ()


async def test_a_thousand_directories_in_each_other_are_no_trouble(plain: Disk, disks: Disks) -> None:
    at = os.open(plain.directory(), os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("deep" * 4, dir_fd=at)
        deeper = os.open("deep" * 4, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    assert await keys(plain) == []
    assert (await plain.list(delimiter="/")).prefixes == ()
    await plain.put("e", b"")
    assert await keys(plain) == ["e"]
    await refused("KeyConflict", plain, "put", "deep" * 4, b"")
    await disks.delete(plain.info.id)
    home = plain.directory().parent.parent
    assert list((home / "trash").iterdir()) == list(home.glob("dsk-*")) == []


async def test_a_large_directory_is_listed_in_order_page_by_page(plain: Disk) -> None:
    top = plain.directory()
    names = [f"{number:x}" for number in range(4200)]
    for name in names:
        (top / name).touch()
    found, after = [], ""
    while True:
        page = await plain.list(after=after)
        found += [info.key for info in page.objects]
        if page.next is None:
            break
        after = page.next
    assert found == sorted(names)


async def test_owners_and_modes_are_those_of_the_files(plain: Disk) -> None:
    await plain.put("a/b", b"", about=About(mode=0o4755, uid=12, gid=34))
    head = await plain.head("a/b")
    assert (head.mode, head.uid, head.gid) == (0o4755, 12, 34)
    stat = (plain.directory() / "a" / "b").stat()
    assert (plain.directory() / "a").stat().st_mode & 0o7777 == 0o755
    if os.getuid() == 0:
        assert (stat.st_uid, stat.st_gid) == (12, 34)
        assert (plain.directory() / "a").stat().st_uid == 12
    await plain.append("a/b", b"more")
    assert (await plain.head("a/b")).mode & 0o777 == 0o755


async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    disk, _ = await disks.create("d")
    about = About("text/plain", {"x": "y"}, 0o600, 3, 4)
    put = await disk.put("a", b"1", about=about)
    appended = await disk.append("b", b"2", about=about)
    upload = await disk.begin_upload("c", about=about)
    part = await disk.put_part("c", upload.id, 1, b"3")
    await disk.put("d/", b"")
    await disks.close()
    disks = Disks(tmp_path)
    disk = disks.get(disk.info.id)
    assert [await disk.head("a"), await disk.head("b")] == [put, appended]
    assert [each.key for each in await disk.uploads()] == ["c"]
    whole = await disk.complete_upload("c", upload.id, [part])
    assert (whole.content_type, whole.metadata, whole.mode, whole.uid) == ("text/plain", {"x": "y"}, 0o600, 3)
    assert await keys(disk) == ["a", "b", "c", "d/"]
    assert (await disk.append("b", b"!")).etag == md5(b"2!")
    await disks.close()


async def test_two_processes_serve_one_disk(tmp_path: Path) -> None:
    one, other = Disks(tmp_path), Disks(tmp_path)
    here, _ = await one.create("d")
    there, new = await other.create("d")
    assert (new, there.info) == (False, here.info)
    await here.put("log", b"")
    appends = [disk.append("log", f"{number}\n".encode()) for number in range(100) for disk in (here, there)]
    await asyncio.gather(*appends)
    data = await contents(there, "log")
    assert sorted(data.split()) == sorted(f"{number}".encode() for number in range(100) for _ in range(2))
    assert (await here.head("log")).etag == md5(data) == (await there.head("log")).etag
    only_first = Condition(if_none_match="*")
    done = await asyncio.gather(
        *[disk.put("x", b"", when=only_first) for disk in (here, there) * 5], return_exceptions=True
    )
    assert sum(not isinstance(each, DiskError) for each in done) == 1
    await one.close()
    await other.close()


async def test_a_cancelled_put_leaves_nothing(plain: Disk, disks: Disks) -> None:
    for after in range(12):
        putting = asyncio.create_task(plain.put("a", b"x" * 3_000_000))
        for _ in range(after):
            await asyncio.sleep(0)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
    assert list((plain.directory().parent / "state" / "tmp").iterdir()) == []


async def test_a_reading_that_is_given_up_lets_go_of_its_file(plain: Disk) -> None:
    await plain.put("a", b"x" * 1_000_000)
    readings = [await plain.get("a") for _ in range(5)]
    async for _ in readings[0]:
        break
    file = plain.directory() / "a"
    assert openings(file) in (4, 5)
    for reading in readings:
        await reading.close()
        await reading.close()
    assert openings(file) == 0
    readings = [await plain.get("a") for _ in range(5)]
    del reading
    readings.clear()
    while openings(file):  # the thread that opened the last one lets go of it in a moment
        await asyncio.sleep(0)


async def test_names_that_are_no_keys_are_in_a_branch_too(disks: Disks, plain: Disk) -> None:
    shell(plain, r"printf bytes > $'\xff.txt'")
    await plain.put("a", b"text")
    await disks.create_branch(plain.info.id, "with-odd-names")
    branch = disks.get(plain.info.id, "with-odd-names")
    assert await keys(branch) == ["a"]
    assert (branch.directory() / os.fsdecode(b"\xff.txt")).read_bytes() == b"bytes"
