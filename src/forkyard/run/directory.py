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
import tempfile
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from forkyard.errors import ConfigError
from forkyard.files import NEW
from forkyard.files import replace as replace_file
from forkyard.locks import locked
from forkyard.run.plan import Plan, check_name, is_run, read_plan
from forkyard.trace.costs import new_cost
from forkyard.trace.store import (
    PLAN_FILE,
    RETRIED,
    ROLLOUTS_DIR,
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
_TRIAL = ".forkyard-"  # how the name of a directory begins that is made to see whether one can be
_HARMLESS = (LOCK_FILE, PLAN_FILE + NEW)  # what others at the same directory may have made


class RunDirectory:
    """Holds the directory until it is closed, so that no other process plays the same run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.traces = path / TRACES_FILE
        self.superseded = path / SUPERSEDED_FILE
        self.rollouts = path / ROLLOUTS_DIR
        self.mirror: Mirror | None = None  # where its lines go to as well
        self._lock = _locked(path)

    @classmethod
    def create(cls, plan: Plan, *, clean: bool = False) -> Self:
        """The directory of a new run, with its plan saved; with `clean` a run that has it is removed.

        Raises ConfigError when it holds anything else already.
        """
        path = plan.place
        if clean and is_run(path):
            remove(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise ConfigError(_unmade(path, err)) from None
        directory = cls(path)
        try:
            if taken := _taken(path):
                raise ConfigError(taken)
            _save(path / PLAN_FILE, plan)
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
        return _resume_command(self.path)

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
        return sum((new_cost(record) for path in (self.traces, self.superseded) for record in _records(path)), 0.0)

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


def place_problems(plan: Plan, *, clean: bool = False) -> list[str]:
    """Why a new run cannot have its directory, if it cannot; nothing is left there. See `RunDirectory.create`."""
    problems: list[str] = []
    for name in dict.fromkeys((plan.run, plan.directory or plan.run)):
        try:
            check_name(name)
        except ConfigError as err:
            problems += err.problems
    path = plan.place
    if problems or (clean and is_run(path)):
        return problems
    above = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    try:
        tempfile.TemporaryDirectory(prefix=_TRIAL, dir=above).cleanup()
        taken = _taken(path) if path == above else None
    except OSError as err:
        return [_unmade(path, err)]
    return [taken] if taken else []


def _taken(path: Path) -> str | None:
    """Why the directory at `path` cannot be a new run's, None when it can."""
    found = [
        entry.name for entry in path.iterdir() if entry.name not in _HARMLESS and not entry.name.startswith(_TRIAL)
    ]
    if PLAN_FILE in found:
        return (
            f"run directory {path} already contains results: go on with them by `{_resume_command(path)}`, or choose "
            "another name for the run (`forkyard eval` also takes --resume, and --clean to overwrite them)"
        )
    return f"{path} is not empty: choose another name for the run" if found else None


def _unmade(path: Path, err: OSError) -> str:
    return f"{path} cannot be made: {err.strerror}; choose another place for the run"


def _save(file: Path, plan: Plan) -> None:
    try:
        replace_file(file, [plan.model_dump_json(indent=2).encode() + b"\n"])
    except OSError as err:
        why = f"{file} cannot be written: {err.strerror}"
        raise ConfigError(f"{why}; make room there, or choose another place for the run with -o") from None


def _resume_command(path: Path) -> str:
    return f"forkyard resume {shlex.quote(str(path))}"


def remove(path: Path) -> None:
    """Remove a run with everything in its directory. Raises ConfigError for what is no run, or one that is played."""
    read_plan(path)
    with RunDirectory(path):
        shutil.rmtree(path)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    return read_traces(path) if path.exists() else iter(())


def _locked(path: Path) -> int:
    try:
        return locked(path / LOCK_FILE, fcntl.LOCK_EX | fcntl.LOCK_NB, 0o644)
    except BlockingIOError:
        raise ConfigError(_played(path)) from None
    except OSError as err:
        raise ConfigError(f"{path} cannot be written: {err.strerror}") from None


def held(fd: int, run: Path, how: int) -> int:
    """The open lock file of a run, locked. Raises ConfigError, having closed it, while another process plays it."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ConfigError(_played(run)) from None
    return fd


def _played(run: Path) -> str:
    return f"{run} is being played by another process: wait until it has ended"
