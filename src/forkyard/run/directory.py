"""A run's directory on disk, held by one process at a time.

plan.json          what was asked for; there before anything starts
traces.jsonl       exactly one line for each rollout that was played
superseded.jsonl   the lines of rollouts that were played again
rollouts/<id>/     what each rollout's /logs held
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from forkyard.errors import ConfigError
from forkyard.run.plan import Plan, read_plan
from forkyard.trace.costs import total_cost
from forkyard.trace.store import (
    PLAN_FILE,
    RETRIED,
    TRACES_FILE,
    Record,
    Recorded,
    TaskSample,
    TraceStore,
    done,
    read_traces,
    slot_of,
)

if TYPE_CHECKING:
    from forkyard.run.ondisk import Mirror

SUPERSEDED_FILE = "superseded.jsonl"
LOCK_FILE = ".lock"
_ID = re.compile("[0-9a-f]{32}")
_NEW = ".new"  # the ending of a file that is being written


class RunDirectory:
    """Holds the directory until it is closed, so that no other process plays the same run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.traces = path / TRACES_FILE
        self.superseded = path / SUPERSEDED_FILE
        self.rollouts = path / "rollouts"
        self.mirror: Mirror | None = None  # where its lines go to as well
        self._lock = _locked(path)

    @classmethod
    def create(cls, plan: Plan) -> Self:
        """The directory of a new run, with its plan saved. Raises ConfigError when it holds anything already."""
        path = plan.place
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise ConfigError(f"{path} cannot be made: {err.strerror}; choose another place for the run") from None
        directory = cls(path)
        try:
            directory._refuse_others()
            replace_file(path / PLAN_FILE, [plan.model_dump_json(indent=2).encode() + b"\n"])
        except BaseException:
            directory.close()
            raise
        return directory

    @classmethod
    def open(cls, path: Path) -> tuple[Self, Plan]:
        """The directory of a run that was begun, and its plan."""
        plan = read_plan(path)
        return cls(path), plan

    @property
    def resume_command(self) -> str:
        """What a user types to go on."""
        return f"forkyard resume {shlex.quote(str(self.path))}"

    def _refuse_others(self) -> None:
        found = [entry.name for entry in self.path.iterdir() if entry.name not in (LOCK_FILE, PLAN_FILE + _NEW)]
        if PLAN_FILE in found:
            raise ConfigError(
                f"{self.path} holds a run already: go on with it by `{self.resume_command}`, "
                "or choose another name for the run"
            )
        if found:
            raise ConfigError(f"{self.path} is not empty: choose another name for the run")

    def close(self) -> None:
        """Let the directory go. Closing twice is fine."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def recorded(self, again: Callable[[Record], bool | None] = lambda record: None) -> Recorded:
        """What is on record of every slot; its attempts count those whose lines were withdrawn, too.

        `again` says of a line whether it asks to be played again, None to leave that to its status.
        """
        now, before = done(self.traces, RETRIED, again), done(self.superseded)
        attempts = {slot: max(count, before.attempts.get(slot, 0)) for slot, count in now.attempts.items()}
        return replace(now, attempts={**before.attempts, **attempts})

    def spent(self) -> float:
        """What the run has cost, in USD, what was played again included."""
        records = (record for path in (self.traces, self.superseded) for record in _records(path))
        return sum((total_cost(record) or 0.0 for record in records), 0.0)

    def withdraw(self, again: Container[TaskSample]) -> None:
        """Move the lines of slots in `again`, and lines that a later one replaced, out of the traces.

        They are on disk in the one file before they go from the other: a kill in between loses nothing, and the next
        call leaves nothing twice.
        """
        last = {slot: play for slot, play, _ in self._lines()}

        def stays(slot: TaskSample | None, play: Any) -> bool:
            return slot is None or (slot not in again and last[slot] == play)

        if all(stays(slot, play) for slot, play, _ in self._lines()):
            return
        with TraceStore(self.superseded) as store:
            known = {record.get("id") for record in read_traces(self.superseded)}
            for slot, play, line in self._lines():
                record = json.loads(line)
                if not stays(slot, play) and record.get("id") not in known:
                    store.append(record)
        replace_file(self.traces, (line for slot, play, line in self._lines() if stays(slot, play)))

    def known(self) -> set[Any]:
        """The ids of all its lines, withdrawn ones too."""
        return {record.get("id") for path in (self.traces, self.superseded) for record in _records(path)}

    def sweep(self) -> None:
        """Remove the logs of rollouts that left no line: their process was stopped while they were at work."""
        known = self.known()
        for logs in self.rollouts.iterdir() if self.rollouts.is_dir() else ():
            if logs.name not in known and _ID.fullmatch(logs.name):
                shutil.rmtree(logs)

    def _lines(self) -> Iterator[tuple[TaskSample | None, Any, bytes]]:
        """Every line as it stands, with its slot and with what tells its play from others of the slot."""
        with self.traces.open("rb") as lines:
            for number, line in enumerate(lines):
                if line.strip():
                    record = json.loads(line)
                    yield slot_of(record), record.get("episode") or number, line


def remove(path: Path) -> None:
    """Remove a run with everything in its directory. Raises ConfigError for what is no run, or one that is played."""
    read_plan(path)
    with RunDirectory(path):
        shutil.rmtree(path)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    return read_traces(path) if path.exists() else iter(())


def _locked(path: Path) -> int:
    try:
        fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as err:
        raise ConfigError(f"{path} cannot be written: {err.strerror}") from None
    return held(fd, path, fcntl.LOCK_EX)


def held(fd: int, run: Path, how: int) -> int:
    """The open lock file of a run, locked. Raises ConfigError, having closed it, while another process plays it."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ConfigError(f"{run} is being played by another process: wait until it has ended") from None
    return fd


def replace_file(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file whole or not at all: under another name, onto the disk, then into its place."""
    new = path.with_name(path.name + _NEW)
    with new.open("wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
