"""A run that another one takes its rollouts from: read, held against those who would go on with it, never written."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from forkyard.errors import ConfigError
from forkyard.grade.logs import COLLECTED
from forkyard.run.directory import LOCK_FILE, held
from forkyard.run.plan import Plan, read_plan
from forkyard.trace.store import ROLLOUTS_DIR, TRACES_FILE, Record, TaskSample, read_traces, slot_of


class SourceRun:
    """The last line of every slot, found by where it stands. Raises ConfigError when it is no run, or is at work."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan: Plan = read_plan(path)
        self._lock = _shared(path / LOCK_FILE)
        try:
            self._traces = (path / TRACES_FILE).open("rb")
        except FileNotFoundError:
            self._release()
            raise ConfigError(f"{path} holds no {TRACES_FILE}: nothing of it was played") from None
        try:
            self._places = dict(self._lines())
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> Iterator[TaskSample]:
        """The slots it has a line of."""
        return iter(self._places)

    def record(self, slot: TaskSample) -> Record | None:
        """The last line of a slot, None when it has none."""
        place = self._places.get(slot)
        if place is None:
            return None
        self._traces.seek(place)
        found: Record = json.loads(self._traces.readline())
        return found

    def collected(self, record: Record) -> Path:
        """Where what was collected for a separate verifier lies, if anything does."""
        return self.path / ROLLOUTS_DIR / str(record["id"]) / COLLECTED

    def close(self) -> None:
        """Let the run go."""
        self._traces.close()
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _lines(self) -> Iterator[tuple[TaskSample, int]]:
        for _ in read_traces(self.path / TRACES_FILE):  # names the first line that is none
            pass
        place = 0
        for line in self._traces:
            if line.strip() and line.endswith(b"\n") and (slot := slot_of(json.loads(line))):
                yield slot, place
            place += len(line)


def _shared(path: Path) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    return held(fd, path.parent, fcntl.LOCK_SH)
