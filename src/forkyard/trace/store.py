"""Traces as a file of lines: one writer that appends, any number of readers.

A line is one strict JSON object in UTF-8. Lines end at "\\n" and nowhere else; blank lines and "\\r\\n" are read.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from forkyard.errors import ConfigError
from forkyard.trace.values import Status
from forkyard.values import strict_json

TRACES_FILE = "traces.jsonl"
ROLLOUTS_DIR = "rollouts"  # beside the traces: what rollouts left, under their ids
PLAN_FILE = "plan.json"  # beside the traces: what the run was asked for
DISK_PREFIX = "disk:"  # of the place of a run whose traces are on a named disk
RETRIED: frozenset[str] = frozenset({Status.INFRASTRUCTURE_ERROR, Status.CANCELLED})
SYNC_EVERY = 1.0  # seconds
_BLOCK = 1 << 16

Record = dict[str, Any]
TaskSample = tuple[str, int]
T = TypeVar("T")


def on_disk(place: Path) -> bool:
    """Whether a place is one on a named disk, `disk:NAME/RUN`."""
    return str(place).startswith(DISK_PREFIX)


class TraceStore:
    """The one writer of a run's lines.

    Opening takes the file for this process (ConfigError when another has it), mends a tail that a kill left behind
    and reads every line once (ConfigError naming the first bad one). `repairs` says in sentences what was mended,
    `records` how many lines were there.

    When `append` returns, the line is with the kernel: killing the process loses nothing. The disk is asked to keep
    it at most once in `SYNC_EVERY` seconds and at close, so a power cut can lose the lines since the last time.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._synced = time.monotonic()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _lock(self._fd, path)
            self.repairs = tuple(_mend(self._fd, path))
            self.records = sum(1 for _ in read_traces(path))
        except BaseException:
            self.close()
            raise

    def append(self, *records: Mapping[str, Any]) -> None:
        """Write the lines of one episode whole, or nothing and raise OSError (a full disk)."""
        if self._fd < 0:
            raise ValueError(f"{self.path} is closed")
        _write_whole(self._fd, lines_of(*records), self.path)
        if time.monotonic() - self._synced >= SYNC_EVERY:
            self._sync()

    def close(self) -> None:
        """Put the lines on the disk and let the file go. Closing twice is fine."""
        if self._fd < 0:
            return
        try:
            self._sync()
        finally:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _sync(self) -> None:
        os.fdatasync(self._fd)
        self._synced = time.monotonic()


def lines_of(*records: Mapping[str, Any]) -> bytes:
    """Records as the lines they are."""
    return b"".join(strict_json(record).encode("ascii") + b"\n" for record in records)


def read_traces(path: Path) -> Iterator[Record]:
    """Every record of a file in order, one in memory at a time; ConfigError naming a line that is not a record.

    An unfinished last line is left out: a writer may be at it (see `torn_tail`).
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            whole = line.endswith(b"\n")
            if line.strip() and (whole or not _torn(line)):
                try:
                    record = _parse(line)
                except ValueError as err:
                    raise ConfigError(f"{path}, line {number}: {err}. Mend or remove that line.") from err
                yield record
            if not whole:
                return  # what a writer adds by now is the rest of this line


def torn_tail(path: Path) -> int:
    """The size in bytes of an unfinished last line, 0 when the file ends in a whole one."""
    with path.open("rb") as file:
        tail = _tail(file.fileno())
    return len(tail) if _torn(tail) else 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a file says of a run's slots, each named by (task, sample)."""

    done: frozenset[TaskSample]
    again: Mapping[TaskSample, str]  # slots to run again, with the status that asks for it
    attempts: Mapping[TaskSample, int]  # how often each slot has been tried


def done(
    path: Path, retry: Collection[str] = RETRIED, again: Callable[[Record], bool | None] = lambda record: None
) -> Recorded:
    """Which slots need no further run: those whose last lines have no status in `retry`. No file is no slots.

    Where `again` has a word, it decides instead.
    """
    last: dict[TaskSample, tuple[Any, str | None]] = {}
    attempts: dict[TaskSample, int] = {}
    for record in read_traces(path) if path.exists() else ():
        slot = slot_of(record)
        if slot is None:
            continue
        play, status = _play(record), record.get("status")
        word = again(record)
        failed = status if isinstance(status, str) and (status in retry if word is None else word) else None
        held = last.get(slot)
        siblings = held is not None and play is not None and held[0] == play
        last[slot] = (play, (held[1] if held and siblings else None) or failed)
        tried = attempts.get(slot, 0)
        attempts[slot] = max(tried if siblings else tried + 1, _attempt(record) + 1)
    waiting = {slot: status for slot, (_, status) in last.items() if status}
    return Recorded(frozenset(last.keys() - waiting.keys()), waiting, attempts)


def slot_of(record: Record) -> TaskSample | None:
    """Which slot of its run a line is of; None when it does not say."""
    task, sample = record.get("task"), record.get("sample")
    if isinstance(task, str) and isinstance(sample, int) and not isinstance(sample, bool):
        return task, sample
    return None


def was_graded(record: Record) -> bool:
    """Whether a verifier has had its say of a line's rollout."""
    return any(status.graded for status in Status if status == record.get("status"))


def latest(records: Iterable[Record], small: Callable[[Record], T]) -> tuple[list[T], int]:
    """What counts among `records`, each made `small` at once, and how many lines gave way to a later one.

    Running a slot again leaves a second line for it: of the lines with the same run, task, sample, harness and model
    the last counts. Several rollouts of one episode (best of n) share these too: they count together. A line that
    does not say which slot it is of counts by itself.
    """
    kept: dict[Any, tuple[Any, dict[Any, T]]] = {}
    lines = 0
    for record in records:
        lines += 1
        play = _play(record)
        key = _key(record) if slot_of(record) else lines
        held = kept.get(key)
        if held is None or play is None or held[0] != play:
            held = kept[key] = (play, {})
        held[1][_hashable(record.get("id")) or lines] = small(record)
    rows = [row for _, play_rows in kept.values() for row in play_rows.values()]
    return rows, lines - len(rows)


def _key(record: Record) -> tuple[Any, ...]:
    values = (_hashable(record.get(name)) for name in ("run", "task", "sample", "harness", "model"))
    # The same few names stand on every line: each is kept once.
    return tuple(sys.intern(value) if isinstance(value, str) else value for value in values)


def _play(record: Record) -> Any:
    """Which play of its slot a line is from; None when it does not say."""
    episode = record.get("episode")
    return (episode, _attempt(record)) if isinstance(episode, str) and episode else None


def _attempt(record: Record) -> int:
    attempt = record.get("attempt")
    return attempt if isinstance(attempt, int) else 0


def _hashable(value: Any) -> Any:
    return strict_json(value) if isinstance(value, dict | list) else value


def _parse(line: bytes) -> Record:
    """One record; ValueError saying why it is none."""
    try:
        record = _STRICT.decode(line.decode("utf-8"))
    except RecursionError as err:
        raise ValueError("nested too deeply") from err
    except UnicodeDecodeError as err:
        raise ValueError(f"not UTF-8 at byte {err.start + 1}") from err
    except json.JSONDecodeError as err:
        raise ValueError(f"not JSON: {err.msg} at column {err.colno}") from err
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"bare {constant}, which is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse)


def _torn(line: bytes) -> bool:
    """Whether a line without its newline is the beginning of a record; a whole but bad one is not torn."""
    if not line.strip():
        return False
    try:
        return not isinstance(json.loads(line.decode("utf-8")), dict)
    except (ValueError, RecursionError):
        return True


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        raise ConfigError(
            f"run {path.absolute().parent.name!r} is being written by another process, which holds {path}: "
            "wait until it has ended, or start a run of another name"
        ) from err


def _tail(fd: int) -> bytes:
    """What follows the last newline of a file."""
    start, pieces = os.fstat(fd).st_size, list[bytes]()
    while start:
        size = min(_BLOCK, start)
        start -= size
        block = os.pread(fd, size, start)
        pieces.append(block[block.rfind(b"\n") + 1 :])
        if len(pieces[-1]) < len(block):
            break
    return b"".join(reversed(pieces))


def _mend(fd: int, path: Path) -> Iterator[str]:
    """Make the file end with a newline; says in a sentence what was cut off or completed."""
    tail = _tail(fd)
    if _torn(tail):
        beside = _keep_beside(path, tail)
        os.ftruncate(fd, os.fstat(fd).st_size - len(tail))
        yield f"{path} ended in an unfinished line of {len(tail)} bytes: it was cut off and is kept in {beside}"
    elif tail:
        _write_whole(fd, b"\n", path)
        yield f"the last line of {path} had no newline: it was added"


def _keep_beside(path: Path, tail: bytes) -> Path:
    number = 1
    while (beside := path.with_name(f"{path.name}.torn-{number}")).exists():
        number += 1
    with beside.open("xb") as file:
        file.write(tail)
        file.flush()
        os.fsync(file.fileno())
    return beside


def _write_whole(fd: int, data: bytes, path: Path) -> None:
    start = os.fstat(fd).st_size
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except BaseException as err:
        # Half a line would swallow the next one.
        os.ftruncate(fd, start)
        if isinstance(err, OSError):
            raise OSError(err.errno, f"{err.strerror}; the line was not written", str(path)) from err
        raise
