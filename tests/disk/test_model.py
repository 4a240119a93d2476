"""A disk behaves as a dictionary of bytes would, whatever is done to it in whatever order."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forkyard.disk import Condition, Disk, DiskError, Disks, Part, Range

T = TypeVar("T")
SEGMENTS = st.sampled_from(["a", "b", "a-", "a.", "é", "0"])
KEYS = st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join)
DATA = st.binary(max_size=40)


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


class DiskMachine(RuleBasedStateMachine):
    """Runs every operation on a disk and on a model of it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.home = tempfile.TemporaryDirectory()
        self.open()
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}

    def open(self) -> None:
        self.disks = Disks(Path(self.home.name))
        self.disk: Disk = self.run(self.disks.create("d"))[0]

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def outcome(self, call: Coroutine[Any, Any, Any]) -> str:
        try:
            self.run(call)
        except DiskError as err:
            return err.code
        return "done"

    def teardown(self) -> None:
        self.run(self.disks.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.home.cleanup()

    def in_the_way(self, key: str) -> bool:
        """Another object makes this one impossible: on a disk, a name is a file or a directory."""
        return any(other.startswith(f"{key}/") or key.startswith(f"{other}/") for other in self.objects)

    def expected(self, key: str, when: Condition | None) -> str:
        etag = self.objects[key][1] if key in self.objects else None
        if when is not None:
            if when.if_match is not None and etag is None:
                return "NoSuchKey"
            if when.if_match not in (None, "*", etag):
                return "PreconditionFailed"
            if etag is not None and when.if_none_match in ("*", etag):
                return "PreconditionFailed"
        return "KeyConflict" if self.in_the_way(key) else "done"

    def condition(self, key: str, kind: str) -> Condition | None:
        etag = self.objects[key][1] if key in self.objects else md5(b"")
        kinds = {
            "any": Condition(if_match="*"),
            "new": Condition(if_none_match="*"),
            "same": Condition(if_match=etag),
            "other": Condition(if_none_match=etag),
            "wrong": Condition(if_match=md5(b"nothing has this")),
        }
        return kinds.get(kind)

    conditions = st.sampled_from(["none", "none", "none", "any", "new", "same", "other", "wrong"])

    @rule(key=KEYS, data=DATA, kind=conditions)
    def put(self, key: str, data: bytes, kind: str) -> None:
        when = self.condition(key, kind)
        expected = self.expected(key, when)
        assert self.outcome(self.disk.put(key, data, when=when)) == expected
        if expected == "done":
            self.objects[key] = (data, md5(data))

    @rule(key=KEYS, data=DATA)
    def append(self, key: str, data: bytes) -> None:
        expected = self.expected(key, None)
        assert self.outcome(self.disk.append(key, data)) == expected
        if expected == "done":
            whole = self.objects.get(key, (b"", ""))[0] + data
            self.objects[key] = (whole, md5(whole))

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.run(self.disk.delete(key)) == (self.objects.pop(key, None) is not None)

    @rule(key=KEYS, first=st.integers(0, 50), last=st.none() | st.integers(0, 50))
    def read_a_range(self, key: str, first: int, last: int | None) -> None:
        if key not in self.objects:
            assert self.outcome(self.disk.get(key, Range(first, last))) == "NoSuchKey"
            return
        data = self.objects[key][0]
        wanted = data[first : None if last is None else last + 1]
        if not wanted:
            assert self.outcome(self.disk.get(key, Range(first, last))) == "InvalidRange"
            return
        reading = self.run(self.disk.get(key, Range(first, last)))
        assert self.run(reading.read()) == wanted

    @rule(key=KEYS)
    def begin(self, key: str) -> None:
        upload = self.run(self.disk.begin_upload(key))
        self.uploads[upload.id] = (key, {})

    @precondition(lambda self: self.uploads)
    @rule(which=st.integers(0), number=st.integers(1, 3), data=DATA)
    def put_part(self, which: int, number: int, data: bytes) -> None:
        upload_id = sorted(self.uploads)[which % len(self.uploads)]
        key, parts = self.uploads[upload_id]
        assert self.run(self.disk.put_part(key, upload_id, number, data)).etag == md5(data)
        parts[number] = data

    @precondition(lambda self: self.uploads)
    @rule(which=st.integers(0), number=st.integers(1, 3), kind=conditions)
    def complete(self, which: int, number: int, kind: str) -> None:
        upload_id = sorted(self.uploads)[which % len(self.uploads)]
        key, parts = self.uploads[upload_id]
        when = self.condition(key, kind)
        expected = self.expected(key, when) if number in parts else "InvalidPart"
        data = parts.get(number, b"")
        call = self.disk.complete_upload(key, upload_id, [Part(number, md5(data))], when=when)
        assert self.outcome(call) == expected
        if expected == "done":
            del self.uploads[upload_id]
            self.objects[key] = (data, f"{md5(bytes.fromhex(md5(data)))}-1")

    @precondition(lambda self: self.uploads)
    @rule(which=st.integers(0))
    def abort(self, which: int) -> None:
        upload_id = sorted(self.uploads)[which % len(self.uploads)]
        key, _ = self.uploads.pop(upload_id)
        self.run(self.disk.abort_upload(key, upload_id))

    @rule(
        prefix=st.just("") | KEYS | KEYS.map(lambda key: f"{key}/"), after=st.just("") | KEYS, limit=st.integers(1, 4)
    )
    def list_all(self, prefix: str, after: str, limit: int) -> None:
        found: list[tuple[str, str]] = []
        at: str | None = after
        while at is not None:
            page = self.run(self.disk.list(prefix, after=at, limit=limit))
            assert len(page.objects) <= limit
            found += [(info.key, info.etag) for info in page.objects]
            at = page.next
        keys = [key for key in self.objects if key.startswith(prefix) and key.encode() > after.encode()]
        assert found == [(key, self.objects[key][1]) for key in sorted(keys, key=str.encode)]

    @rule(prefix=st.just("") | KEYS | KEYS.map(lambda key: f"{key}/"), limit=st.integers(1, 4))
    def list_folded(self, prefix: str, limit: int) -> None:
        found: list[str] = []
        at: str | None = ""
        while at is not None:
            page = self.run(self.disk.list(prefix, "/", at, limit))
            found += sorted([*(info.key for info in page.objects), *page.prefixes], key=str.encode)
            at = page.next
        names = set()
        for key in self.objects:
            if key.startswith(prefix):
                first, slash, _ = key[len(prefix) :].partition("/")
                names.add(prefix + first + slash)
        assert found == sorted(names, key=str.encode)

    @rule()
    def restart(self) -> None:
        self.run(self.disks.close())
        self.open()

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        found = self.run(self.disk.list()).objects
        assert {info.key: (info.size, info.etag) for info in found} == {
            key: (len(data), etag) for key, (data, etag) in self.objects.items()
        }
        for key, (data, _) in self.objects.items():
            assert (self.disk.directory() / key).read_bytes() == data
        assert {upload.id for upload in self.run(self.disk.uploads())} == set(self.uploads)


DiskMachine.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestDisk = DiskMachine.TestCase
