"""What every disk promises, wherever it is kept."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from forkyard.disk import (
    APPEND_LIMIT,
    PART_FLOOR,
    About,
    Condition,
    Disk,
    DiskError,
    Part,
    Range,
    copy,
)

EMPTY = "d41d8cd98f00b204e9800998ecf8427e"


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


async def contents(disk: Disk, key: str, range: Range | None = None) -> bytes:
    return await (await disk.get(key, range)).read()


async def refused(code: str, disk: Disk, call: str, *args: object, **more: object) -> None:
    with pytest.raises(DiskError) as caught:
        await getattr(disk, call)(*args, **more)
    assert caught.value.code == code


async def in_pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_what_was_put_is_read_with_its_md5(disk: Disk) -> None:
    put = await disk.put("a/b.txt", b"hello", about=About("text/plain", {"Colour": "green, blüe"}, 0o600, 7, 8))
    head = await disk.head("a/b.txt")
    assert (head.key, head.size, head.etag) == ("a/b.txt", 5, md5(b"hello")) == (put.key, put.size, put.etag)
    assert (head.content_type, dict(head.metadata)) == ("text/plain", {"colour": "green, blüe"})
    assert (head.mode, head.uid, head.gid) == (0o600, 7, 8)
    reading = await disk.get("a/b.txt")
    assert (reading.info, reading.start, reading.stop, await reading.read()) == (head, 0, 5, b"hello")


async def test_an_object_may_be_empty_and_may_come_in_pieces(disk: Disk) -> None:
    assert (await disk.put("empty", b"")).etag == EMPTY
    assert await contents(disk, "empty") == b""
    pieces = [bytes([number]) * 100_000 for number in range(30)]
    whole = b"".join(pieces)
    assert (await disk.put("large", in_pieces(*pieces))).etag == md5(whole)
    reading = await disk.get("large")
    assert b"".join([piece async for piece in reading]) == whole


async def test_a_put_that_fails_on_its_way_changes_nothing(disk: Disk) -> None:
    await disk.put("a", b"old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 300_000
        raise ConnectionError("the client is gone")

    with pytest.raises(ConnectionError):
        await disk.put("a", broken())
    assert await contents(disk, "a") == b"old"


async def test_readers_see_the_old_object_or_the_new_one(disk: Disk) -> None:
    versions = [bytes([letter]) * 400_000 for letter in b"abcdefgh"]
    await disk.put("a", versions[0])

    async def write() -> None:
        for version in versions:
            await disk.put("a", version)

    writing = asyncio.create_task(write())
    while not writing.done():
        reading = await disk.get("a")
        data = await reading.read()
        assert data in versions
        assert reading.info.etag == md5(data)
    await writing


async def test_what_is_not_there_is_told_as_such(disk: Disk) -> None:
    await refused("NoSuchKey", disk, "get", "a")
    await refused("NoSuchKey", disk, "head", "a/b")
    assert await disk.delete("a") is False
    await disk.put("a", b"1")
    assert await disk.delete("a") is True
    await refused("NoSuchKey", disk, "head", "a")


@pytest.mark.parametrize(
    ("wanted", "data"),
    [
        (Range(0, 0), b"0"),
        (Range(2, 4), b"234"),
        (Range(7), b"789"),
        (Range(5, 1000), b"56789"),
        (Range(None, 3), b"789"),
        (Range(None, 50), b"0123456789"),
    ],
)
async def test_ranges_are_those_of_http(disk: Disk, wanted: Range, data: bytes) -> None:
    await disk.put("a", b"0123456789")
    reading = await disk.get("a", wanted)
    assert await reading.read() == data
    assert reading.stop - reading.start == len(data)
    assert (reading.info.size, reading.info.etag) == (10, md5(b"0123456789"))


async def test_a_range_without_a_byte_is_refused(disk: Disk) -> None:
    await disk.put("a", b"0123456789")
    await disk.put("empty", b"")
    for wanted in (Range(10), Range(4, 3), Range(None, 0)):
        await refused("InvalidRange", disk, "get", "a", wanted)
    await refused("InvalidRange", disk, "get", "empty", Range(0, 0))
    await refused("NoSuchKey", disk, "get", "b", Range(0, 0))


async def test_writes_happen_when_their_condition_holds(disk: Disk) -> None:
    await refused("NoSuchKey", disk, "put", "a", b"1", when=Condition(if_match="*"))
    one = await disk.put("a", b"1", when=Condition(if_none_match="*"))
    await refused("PreconditionFailed", disk, "put", "a", b"2", when=Condition(if_none_match="*"))
    await refused("PreconditionFailed", disk, "put", "a", b"2", when=Condition(if_none_match=f'"{one.etag}"'))
    await refused("PreconditionFailed", disk, "put", "a", b"2", when=Condition(if_match=EMPTY))
    await disk.put("a", b"2", when=Condition(if_match=f'"{one.etag}"'))
    await disk.put("a", b"3", when=Condition(if_match="*", if_none_match=one.etag))
    assert await contents(disk, "a") == b"3"
    await refused("PreconditionFailed", disk, "delete", "a", Condition(if_match=one.etag))
    await refused("PreconditionFailed", disk, "delete", "b", Condition(if_match="*"))
    assert await disk.delete("a", Condition(if_match=md5(b"3")))


async def test_of_many_that_want_to_be_first_one_is(disk: Disk) -> None:
    only_first = Condition(if_none_match="*")
    puts = [disk.put("a", str(number).encode(), when=only_first) for number in range(8)]
    done = await asyncio.gather(*puts, return_exceptions=True)
    assert sum(not isinstance(each, DiskError) for each in done) == 1
    assert {each.code for each in done if isinstance(each, DiskError)} <= {"PreconditionFailed", "OperationAborted"}


async def test_an_append_makes_an_object_and_lengthens_it(disk: Disk) -> None:
    about = About("application/jsonl", {"run": "1"}, 0o640)
    await disk.append("a/log", b"one\n", about=about)
    told = await disk.append("a/log", b"two\n", about=About("other/type"))
    assert (told.size, told.etag) == (8, md5(b"one\ntwo\n"))
    head = await disk.head("a/log")
    assert (head.etag, head.content_type, head.metadata, head.mode) == (
        told.etag,
        "application/jsonl",
        {"run": "1"},
        0o640,
    )
    await disk.append("a/log", b"")
    assert await contents(disk, "a/log") == b"one\ntwo\n"


async def test_an_append_goes_on_after_whatever_was_put(disk: Disk) -> None:
    await disk.put("a", b"0" * 100_000)
    await disk.append("a", b"1")
    await disk.put("a", b"2")
    assert (await disk.append("a", b"3")).etag == md5(b"23")
    assert await contents(disk, "a") == b"23"


async def test_concurrent_appends_are_each_whole_and_told_their_own_etag(disk: Disk) -> None:
    await disk.put("log", b"")
    records = [f"{number} ".encode() * (number % 7 + 1) + b"\n" for number in range(60)]
    told = await asyncio.gather(*[disk.append("log", record) for record in records])
    data = await contents(disk, "log")
    assert sorted(data.splitlines(keepends=True)) == sorted(records)
    assert {(info.size, info.etag) for info in told} == {
        (end, md5(data[:end])) for end in range(1, len(data) + 1) if data[end - 1 : end] == b"\n"
    }


async def test_of_concurrent_appends_that_find_no_object_one_makes_it(disk: Disk) -> None:
    records = [f"{number}\n".encode() for number in range(6)]
    done = await asyncio.gather(*[disk.append("log", record) for record in records], return_exceptions=True)
    lost = [each for each in done if isinstance(each, BaseException)]
    assert all(isinstance(each, DiskError) and each.code == "OperationAborted" for each in lost)
    whole = (await contents(disk, "log")).splitlines(keepends=True)
    assert sorted(whole) == sorted(
        record for record, each in zip(records, done, strict=True) if not isinstance(each, BaseException)
    )
    assert whole


async def test_an_append_has_at_most_a_mebibyte(disk: Disk) -> None:
    await disk.append("a", b"x" * APPEND_LIMIT)
    await refused("EntityTooLarge", disk, "append", "a", b"x" * (APPEND_LIMIT + 1))
    await refused("EntityTooLarge", disk, "append", "b", b"x" * (APPEND_LIMIT + 1))
    assert (await disk.head("a")).size == APPEND_LIMIT
    await refused("NoSuchKey", disk, "head", "b")


async def test_listings_are_in_the_byte_order_of_keys(disk: Disk) -> None:
    keys = ["a", "a-b", "a.b/x", "b/c/d", "b/c-d", "B", "é", "e\u0301", "z z", "\U0001f600", "b0", "ab/1", "ab/2"]
    for key in keys:
        if key != "a":
            await disk.put(key, key.encode())
    await disk.put("a", b"a")
    listed = (await disk.list()).objects
    assert [info.key for info in listed] == sorted(keys, key=str.encode)
    assert [(info.size, info.etag) for info in listed] == [
        (len(key.encode()), md5(key.encode())) for key in sorted(keys, key=str.encode)
    ]


async def test_listings_fold_prefix_and_go_on(disk: Disk) -> None:
    for key in ("a/1", "a/2", "a/b/3", "a/b/c/4", "a0", "b/5"):
        await disk.put(key, b"")

    async def page(*args: object, **more: object) -> tuple[list[str], list[str], str | None]:
        listing = await disk.list(*args, **more)  # type: ignore[arg-type]
        return [info.key for info in listing.objects], [*listing.prefixes], listing.next

    assert await page(delimiter="/") == (["a0"], ["a/", "b/"], None)
    assert await page("a/", "/") == (["a/1", "a/2"], ["a/b/"], None)
    assert await page("a/b", "/") == ([], ["a/b/"], None)
    assert await page("a/b/") == (["a/b/3", "a/b/c/4"], [], None)
    assert await page("a") == (["a/1", "a/2", "a/b/3", "a/b/c/4", "a0"], [], None)
    assert await page(after="a/2") == (["a/b/3", "a/b/c/4", "a0", "b/5"], [], None)
    assert await page(delimiter="/", after="a/") == (["a0"], ["b/"], None)
    assert await page("nothing/", "/") == ([], [], None)


@pytest.mark.parametrize("delimiter", ["", "/"])
@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
async def test_pages_join_to_the_whole(disk: Disk, delimiter: str, limit: int) -> None:
    for key in ("a/1", "a/2", "a/b/3", "a0", "b/5", "c"):
        await disk.put(key, b"")
    whole = await disk.list(delimiter=delimiter)
    objects: list[str] = []
    prefixes: list[str] = []
    after = ""
    for _ in range(20):
        page = await disk.list(delimiter=delimiter, after=after, limit=limit)
        assert len(page.objects) + len(page.prefixes) <= limit
        objects += [info.key for info in page.objects]
        prefixes += page.prefixes
        if page.next is None:
            break
        after = page.next
    assert (objects, prefixes) == ([info.key for info in whole.objects], [*whole.prefixes])


async def test_a_listing_that_makes_no_sense_is_refused(disk: Disk) -> None:
    await refused("InvalidArgument", disk, "list", delimiter=",")
    await refused("InvalidArgument", disk, "list", limit=0)
    await refused("InvalidArgument", disk, "list", limit=1001)
    await refused("InvalidArgument", disk, "list", prefix="\ud800")


async def test_a_key_with_a_slash_at_its_end_is_a_directory(disk: Disk) -> None:
    made = await disk.put("d/e/", b"")
    assert (made.key, made.size, made.etag, made.mode) == ("d/e/", 0, EMPTY, 0o755)
    assert [info.key for info in (await disk.list()).objects] == ["d/e/"]
    assert (await disk.list(delimiter="/")).prefixes == ("d/",)
    assert await contents(disk, "d/e/") == b""
    await disk.put("d/e/f", b"1")
    assert [info.key for info in (await disk.list("d/")).objects] == ["d/e/", "d/e/f"]
    await disk.put("d/e/", b"")
    assert await disk.delete("d/e/")
    await refused("NoSuchKey", disk, "head", "d/e/")
    assert await contents(disk, "d/e/f") == b"1"
    await refused("InvalidKey", disk, "put", "d/", b"bytes")
    await refused("InvalidKey", disk, "append", "d/", b"bytes")
    await refused("InvalidKey", disk, "begin_upload", "d/")


ODD_KEYS = [" ", "a b", "...", "a/..b", "~", "-rf", "%2e%2e", "é/e\u0301", "\u202e", "💾" * 60, "a\\b", "\x7f", "*"]
WRONG_KEYS = ["", "/", "/a", "a//b", "a//", ".", "..", "a/../b", "../a", "a/.", "./a", "a/..", "../", "a\0b", "\ud800"]
LONG_KEYS = ["x" * 256, "é" * 128, "/".join(["x" * 200] * 6)]


@pytest.mark.parametrize("key", ODD_KEYS)
async def test_odd_keys_are_kept_byte_for_byte(disk: Disk, key: str) -> None:
    await disk.put(key, key.encode())
    assert await contents(disk, key) == key.encode()
    assert [info.key for info in (await disk.list()).objects] == [key]


@pytest.mark.parametrize("key", WRONG_KEYS + LONG_KEYS)
async def test_other_keys_are_refused_before_anything_happens(disk: Disk, key: str) -> None:
    code = "KeyTooLongError" if key in LONG_KEYS else "InvalidKey"
    for call, arguments in (
        ("put", (b"1",)),
        ("append", (b"1",)),
        ("get", ()),
        ("head", ()),
        ("delete", ()),
        ("begin_upload", ()),
        ("put_part", ("0" * 32, 1, b"1")),
        ("complete_upload", ("0" * 32, [Part(1, EMPTY)])),
        ("abort_upload", ("0" * 32,)),
        ("parts", ("0" * 32,)),
    ):
        with pytest.raises(DiskError) as caught:
            await getattr(disk, call)(key, *arguments)
        assert caught.value.code == code
    assert (await disk.list()).objects == ()


@pytest.mark.parametrize(
    ("about", "code"),
    [
        (About(mode=0o10000), "InvalidArgument"),
        (About(uid=-1), "InvalidArgument"),
        (About(gid=1 << 31), "InvalidArgument"),
        (About("text/plain\r\nSet-Cookie: a"), "InvalidArgument"),
        (About(metadata={"a": "\n"}), "InvalidArgument"),
        (About(metadata={"a: b": "c"}), "InvalidArgument"),
        (About(metadata={"a": "x" * 2048}), "MetadataTooLarge"),
    ],
)
async def test_what_cannot_be_said_of_an_object_is_refused(disk: Disk, about: About, code: str) -> None:
    await refused(code, disk, "put", "a", b"", about=about)
    await refused(code, disk, "append", "a", b"", about=about)
    await refused(code, disk, "begin_upload", "a", about=about)
    assert (await disk.list()).objects == ()


async def test_an_object_comes_in_parts(disk: Disk) -> None:
    about = About("video/mp4", {"x": "y"}, 0o604)
    upload = await disk.begin_upload("a/b", about=about)
    first, last = b"1" * PART_FLOOR, b"2" * 100
    parts = [
        await disk.put_part("a/b", upload.id, 7, last),
        await disk.put_part("a/b", upload.id, 2, in_pieces(first[:1000], first[1000:])),
    ][::-1]
    await disk.put_part("a/b", upload.id, 9, b"not wanted in the end")
    assert [part.number for part in await disk.parts("a/b", upload.id)] == [2, 7, 9]
    assert [(each.id, each.key) for each in await disk.uploads()] == [(upload.id, "a/b")]
    assert (await disk.list()).objects == ()
    info = await disk.complete_upload("a/b", upload.id, parts)
    digests = bytes.fromhex(md5(first)) + bytes.fromhex(md5(last))
    assert (info.size, info.etag) == (PART_FLOOR + 100, f"{md5(digests)}-2")
    head = await disk.head("a/b")
    assert (head.etag, head.content_type, head.metadata, head.mode) == (info.etag, "video/mp4", {"x": "y"}, 0o604)
    assert [each.etag for each in (await disk.list()).objects] == [info.etag]
    assert await contents(disk, "a/b") == first + last
    assert await disk.uploads() == ()
    await refused("NoSuchUpload", disk, "parts", "a/b", upload.id)
    assert (await disk.append("a/b", b"3")).etag == md5(first + last + b"3")


async def test_a_part_replaces_one_of_its_number(disk: Disk) -> None:
    upload = await disk.begin_upload("a")
    old = await disk.put_part("a", upload.id, 1, b"old")
    new = await disk.put_part("a", upload.id, 1, b"new")
    await refused("InvalidPart", disk, "complete_upload", "a", upload.id, [old])
    await disk.complete_upload("a", upload.id, [new])
    assert await contents(disk, "a") == b"new"


async def test_parts_that_make_no_object_are_refused(disk: Disk) -> None:
    upload = await disk.begin_upload("a")
    one, two = [await disk.put_part("a", upload.id, number, b"small") for number in (1, 2)]
    await refused("InvalidRequest", disk, "complete_upload", "a", upload.id, [])
    await refused("InvalidPartOrder", disk, "complete_upload", "a", upload.id, [two, one])
    await refused("InvalidPartOrder", disk, "complete_upload", "a", upload.id, [one, one])
    await refused("InvalidPart", disk, "complete_upload", "a", upload.id, [one, Part(3, one.etag)])
    await refused("InvalidPart", disk, "complete_upload", "a", upload.id, [Part(1, "../../etc/passwd")])
    await refused("EntityTooSmall", disk, "complete_upload", "a", upload.id, [one, two])
    await refused("InvalidArgument", disk, "put_part", "a", upload.id, 0, b"")
    await refused("InvalidArgument", disk, "put_part", "a", upload.id, 10_001, b"")
    assert (await disk.list()).objects == ()
    await disk.complete_upload("a", upload.id, [two])
    assert await contents(disk, "a") == b"small"


async def test_an_upload_keeps_to_its_condition(disk: Disk) -> None:
    upload = await disk.begin_upload("a")
    part = await disk.put_part("a", upload.id, 1, b"late")
    await disk.put("a", b"early")
    only_first = Condition(if_none_match="*")
    await refused("PreconditionFailed", disk, "complete_upload", "a", upload.id, [part], when=only_first)
    assert await contents(disk, "a") == b"early"
    await disk.complete_upload("a", upload.id, [part], when=Condition(if_match=md5(b"early")))
    assert await contents(disk, "a") == b"late"


async def test_an_upload_that_is_given_up_is_gone(disk: Disk) -> None:
    upload = await disk.begin_upload("a")
    part = await disk.put_part("a", upload.id, 1, b"1")
    await disk.abort_upload("a", upload.id)
    assert await disk.uploads() == ()
    await refused("NoSuchUpload", disk, "put_part", "a", upload.id, 1, b"1")
    await refused("NoSuchUpload", disk, "complete_upload", "a", upload.id, [part])
    await refused("NoSuchUpload", disk, "abort_upload", "a", upload.id)


@pytest.mark.parametrize("wrong", ["", "../../objects", "a" * 32, "\0", "x" * 5000, "\ud800"])
async def test_an_upload_nobody_began_is_told_as_such(disk: Disk, wrong: str) -> None:
    await refused("NoSuchUpload", disk, "put_part", "a", wrong, 1, b"1")
    await refused("NoSuchUpload", disk, "parts", "a", wrong)
    await refused("NoSuchUpload", disk, "complete_upload", "a", wrong, [Part(1, EMPTY)])
    await refused("NoSuchUpload", disk, "abort_upload", "a", wrong)


async def test_uploads_are_told_by_key(disk: Disk) -> None:
    begun = [await disk.begin_upload(key) for key in ("b", "a/2", "a/1")]
    assert [each.key for each in await disk.uploads()] == ["a/1", "a/2", "b"]
    assert [each.id for each in await disk.uploads("a/")] == [begun[2].id, begun[1].id]


async def test_objects_are_copied_with_what_is_said_of_them(disk: Disk) -> None:
    await disk.put("a", b"data" * 100_000, about=About("text/plain", {"x": "y"}, 0o611))
    await copy(disk, "a", disk, "b/c")
    head = await disk.head("b/c")
    assert (head.etag, head.content_type, head.metadata, head.mode) == (
        md5(b"data" * 100_000),
        "text/plain",
        {"x": "y"},
        0o611,
    )
    await copy(disk, "a", disk, "a", about=About("text/html"))
    head = await disk.head("a")
    assert (head.etag, head.content_type, head.metadata) == (md5(b"data" * 100_000), "text/html", {})
    with pytest.raises(DiskError, match="PreconditionFailed|If-None-Match"):
        await copy(disk, "a", disk, "b/c", when=Condition(if_none_match="*"))
