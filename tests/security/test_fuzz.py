"""Random bytes for everything that reads what a sandbox, or somebody's archive, has written.

The same examples at each run; FORKYARD_FUZZ=10000 tries so many others. What was found is kept as an `example`.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import tarfile
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.archive import unpack_untrusted
from forkyard.sandbox.held.channel import Channel
from forkyard.sandbox.inside import wire
from forkyard.sandbox.local import LocalProvider

MORE = int(os.environ.get("FORKYARD_FUZZ", "0"))
LIMIT = 4096


def tries(count: int) -> settings:
    return settings(
        max_examples=MORE or count,
        derandomize=not MORE,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
answers = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from([0, 1, 2, 3, -1, True, "1", 1.0]) | anything,
        "event": st.sampled_from(["done", "opened", "exited", "failed"]) | anything,
        "fds": st.sampled_from([0, 1, 2, -1, 10**20]) | anything,
        "errno": st.sampled_from([None, 2, 13]) | anything,
        "message": anything,
        "path": anything,
        "what": st.sampled_from(["cwd", "user"]) | anything,
        "status": st.sampled_from([0, 1, -9]) | anything,
    },
)
frames = st.binary(max_size=60) | answers.map(wire.encode) | anything.map(lambda value: wire.encode(value))  # type: ignore[arg-type]


@tries(100)
@given(st.lists(frames, max_size=6), st.lists(st.integers(1, 40), max_size=20))
@example([wire._LENGTH.pack(4000) + b"[" * 4000], [])
def test_a_stream_is_cut_into_the_same_messages_however_it_arrives(pieces: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(pieces)
    whole, whole_error = split_all([stream])
    parts = []
    for cut in cuts:
        parts.append(stream[:cut])
        stream = stream[cut:]
    split, split_error = split_all([*parts, stream])
    assert all(isinstance(message, dict) for message in whole)
    assert repr(split[: len(whole)]) == repr(whole[: len(split)])
    assert whole_error == split_error


def split_all(parts: list[bytes]) -> tuple[list[dict[str, Any]], bool]:
    buffer, messages = bytearray(), []
    for part in parts:
        buffer += part
        try:
            messages += wire.split(buffer, LIMIT)
        except ValueError:
            return messages, True
    return messages, False


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def in_a_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end; an error that only an event loop hears of fails as well."""
    heard: list[dict[str, Any]] = []

    async def listening() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        await work

    asyncio.run(listening())
    assert heard == []


@tries(100)
@given(st.lists(st.tuples(frames, st.integers(0, 3)), max_size=6))
@example([(wire.encode({"id": 1, "event": "opened", "fds": 2}), 1)])
@example([(wire._LENGTH.pack(9000) + b"[" * 9000, 0)])
@example([(wire._LENGTH.pack(33) + b'{"id": Infinity, "event": "done"}', 0)])
def test_no_answer_breaks_the_host_or_costs_it_a_descriptor(said: list[tuple[bytes, int]]) -> None:
    before = open_files()
    in_a_loop(_answered(said))
    assert open_files() == before


async def _answered(said: list[tuple[bytes, int]]) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, lambda: None)
    asked = [asyncio.create_task(channel.request(op, path="/x")) for op in ("read", "ping", "listen")]
    await asyncio.sleep(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    with theirs:
        for data, count in said:
            with suppress(BrokenPipeError):
                theirs.sendmsg([data or b"\0"], wire.ancillary([nothing] * count))
    for task in asked:
        try:
            _, fds = await task
        except (OSError, ValueError, SandboxError):
            continue
        for fd in fds:
            os.close(fd)
    os.close(nothing)
    channel.end("the test is over")


OPS = ("run", "pull", "push", "read", "write", "listen", "connect", "kill", "ping", "boot", "terminal")
requests = st.tuples(
    st.sampled_from(OPS) | st.text(max_size=8).filter(lambda op: op not in ("halt", "clear")),
    st.fixed_dictionaries(
        {},
        optional={
            "path": st.sampled_from(["/", "/srv/x", "", "..", "/proc/1/mem", "a\0b", "\udc80", "/" + "x/" * 2000])
            | anything,
            "mode": st.integers() | anything,
            "port": st.integers(-2, 70_000) | anything,
            "target": st.integers(-2, 5) | anything,
            "argv": st.lists(st.text(max_size=5), max_size=3) | anything,
            "env": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2) | anything,
            "cwd": st.sampled_from(["/", "/nowhere"]) | anything,
            "user": st.sampled_from(["", "root", "nobody", "0:0"]) | anything,
            "exclude": anything,
            "disk": st.just("00000000") | anything,
            "stack": st.lists(st.text(max_size=5), max_size=2) | anything,
            "host": anything,
            "terminal": anything,
        },
    ),
)


def test_no_request_ends_pid_1(home: Path) -> None:
    with asyncio.Runner() as runner:
        provider = LocalProvider(home)
        box = runner.run(provider.create(SandboxSpec()))

        @tries(60)
        @given(requests)
        def try_one(request: tuple[str, dict[str, Any]]) -> None:
            runner.run(_requested(box, *request))

        try:
            try_one()
            assert runner.run(box.run(["echo", "fine"])).stdout == "fine\n"
        finally:
            runner.run(provider.close())


async def _requested(box: Sandbox, op: str, fields: dict[str, Any]) -> None:
    channel: Channel = box._live.channel  # type: ignore[attr-defined]
    try:
        _, fds = await channel.request(op, **fields)
    except SandboxLost:
        raise
    except (OSError, ValueError, SandboxError):
        return
    for fd in fds:
        os.close(fd)


def seed_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, target in (
            ("d", tarfile.DIRTYPE, ""),
            ("d/f", tarfile.REGTYPE, ""),
            ("l", tarfile.SYMTYPE, "d"),
            ("up", tarfile.SYMTYPE, "../../etc"),
            ("h", tarfile.LNKTYPE, "d/f"),
            ("p", tarfile.FIFOTYPE, ""),
            ("c", tarfile.CHRTYPE, ""),
            ("é" * 60, tarfile.REGTYPE, ""),
            ("s", tarfile.GNUTYPE_SPARSE, ""),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, target, 5 if kind == tarfile.REGTYPE else 0
            archive.addfile(entry, io.BytesIO(b"hello"))
    return buffer.getvalue()


SEED = seed_archive()
NUMBERS = [
    b"../x",
    b"/etc/x",
    b"0000644\0",
    b"\xff" * 12,
    b"\x80" + b"\xff" * 11,
    b"7" * 12,
    b"-1",
    b"\0",
    b"d/../..",
    b"1",
]
FIELDS = [0, 100, 108, 116, 124, 136, 148, 156, 157, 257, 345, 386, 483]  # where the fields of a header begin
changes = st.lists(
    st.tuples(
        st.integers(0, len(SEED) // 512).map(lambda block: block * 512),
        st.sampled_from(FIELDS) | st.integers(0, 511),
        st.sampled_from(NUMBERS) | st.binary(min_size=1, max_size=12),
    ),
    max_size=4,
)
archives = st.builds(lambda made, end: _mutated(made)[:end], changes, st.integers(0, len(SEED)) | st.just(len(SEED)))


def _mutated(made: list[tuple[int, int, bytes]]) -> bytes:
    data = bytearray(SEED)
    for block, field, value in made:
        data[block + field : block + field + len(value)] = value
        header = data[block : block + 512]
        if field not in (148, 150) and len(header) == 512:  # a checksum that fits lets the reader look further
            header[148:156] = b" " * 8
            data[block + 148 : block + 156] = b"%06o\0 " % sum(header)
    return bytes(data[: len(SEED)])


@tries(100)
@given(data=archives | st.binary(max_size=2000))
def test_no_archive_of_a_sandbox_leaves_its_directory(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    top = tmp_path_factory.mktemp("unpacked")
    inside = top / "inside"
    inside.mkdir()
    unpack_untrusted(data, inside)
    assert list(top.iterdir()) == [inside]
    for path in inside.rglob("*"):
        assert path.is_dir() or path.is_file()
        assert not path.is_symlink()
        assert path.is_dir() or path.stat().st_size <= len(data)


def test_no_archive_leaves_the_directory_it_is_pushed_to(home: Path) -> None:
    with asyncio.Runner() as runner:
        provider = LocalProvider(home)
        box = runner.run(provider.create(SandboxSpec()))
        before = runner.run(_all_but(box, "/srv"))

        @tries(30)
        @given(archives | st.binary(max_size=2000))
        def try_one(data: bytes) -> None:
            with suppress(SandboxError):
                runner.run(box.push(data, "/srv/here"))

        try:
            try_one()
            assert runner.run(_all_but(box, "/srv")) == before
            assert runner.run(box.run("find /srv -not -path '/srv' -not -path '/srv/here*'")).stdout == ""
            assert runner.run(box.run("find /srv -type c -o -type b")).stdout == ""
        finally:
            runner.run(provider.close())


async def _all_but(box: Sandbox, path: str) -> str:
    listing = f"find / -xdev -path {path} -prune -o -path /tmp -prune -o -printf '%p %y %s %m %U %T@\\n' | sort"
    return (await box.run(listing, output_limit=1 << 24)).stdout
