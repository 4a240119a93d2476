"""`forkyard report` and `forkyard compare`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import forkyard.report as reports
from forkyard.cli.options import option
from forkyard.cli.output import say
from forkyard.trace.store import on_disk


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run directories, files of lines, or disk:NAME/RUN.")
    ],
    by_run: Annotated[bool, option("--by-run", help="Keep runs apart that are alike.")] = False,
    json: Annotated[bool, option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print what runs came to, a row for each task; samples of several runs add up where they are alike."""
    with at(paths) as places:
        found = reports.report(places, by_run=by_run)
    say(reports.to_json(found) if json else reports.to_text(found))


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run directory, a file of lines, or disk:NAME/RUN.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The run that is held against it.")],
    json: Annotated[bool, option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print how two runs differ, by the tasks that both played.

    Each task is one value, the difference of its means in B and in A, so the interval says whether B is better than A
    on tasks like these. Tasks that changed in between, or have no reward in one of the runs, are left out and named.
    Of a run that was graded again from the other, each rollout is held against itself, whatever became of its task.
    """
    with at([a, b]) as (one, other):
        found = reports.compare(one, other)
    say(reports.comparison_json(found) if json else reports.comparison_text(found))


@contextmanager
def at(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """Where the runs are to be read."""
    if not any(map(on_disk, paths)):
        yield paths
        return
    from forkyard.run.ondisk import readable  # a report alone takes none of what runs and disks do

    with readable(paths) as places:
        yield places
