"""The files of lines that are meant by what a user names, and the lines in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.report.planned import PlannedRun
from forkyard.trace.store import TRACES_FILE, Record, read_traces, torn_tail


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The files of runs, given as directories or files of lines; each once. ConfigError for a path that is no run."""
    files: dict[Path, Path] = {}
    problems: list[str] = []
    for path in paths:
        file = path / TRACES_FILE if path.is_dir() else path
        if file.is_file():
            files.setdefault(file.resolve(), file)
        elif path.is_dir():
            runs = any(path.glob(f"*/{TRACES_FILE}"))
            mend = f"name those in it, as {path}/*" if runs else f"it holds no {TRACES_FILE}"
            problems.append(f"{path} is no run: {mend}")
        else:
            default = Path("runs") / path
            mean = f"did you mean {default}? " if (default / TRACES_FILE).is_file() else ""
            problems.append(f"{path} does not exist: {mean}name a run's directory or a file of lines")
    if problems or not files:
        raise ConfigError(*(problems or ["nothing to report on: name a run's directory or a file of lines"]))
    return list(files.values())


def records_of(file: Path, run: PlannedRun | None) -> Iterator[Record]:
    """The lines of a file, under names that tell the runs apart; those of `run`, when it is given, are counted there.

    Raises ConfigError for a line that is no record.
    """
    for record in read_traces(file):
        if run is not None and record.get("run") == run.run:
            run.add(record)
            record["run"] = run.name
        elif not record.get("run"):
            record["run"] = str(file)  # lines that name no run are told apart by their file
        yield record


def torn_notes(files: Iterable[Path]) -> Iterator[str]:
    """What a reader has to know of files that end in the middle of a line."""
    for file in files:
        torn = torn_tail(file)
        if torn:
            yield f"{file} ends in an unfinished line of {torn} bytes, not counted: its run is at work or was killed"
