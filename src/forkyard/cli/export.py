"""`forkyard export`: samples to train on, made of runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import typer

import forkyard.report as reports
from forkyard.cli.options import OfTask, option
from forkyard.cli.output import complain
from forkyard.cli.report import at
from forkyard.errors import ConfigError
from forkyard.files import replace
from forkyard.report.export import Tally, samples
from forkyard.report.files import torn_notes
from forkyard.trace import Status

PARTLY = 2


def export(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run directories, files of lines, or disk:NAME/RUN.")
    ],
    to: Annotated[Literal["messages", "tokens"], option("--to", help="What a sample is made of.")],
    out: Annotated[
        Path | None, option("-o", "--out", metavar="FILE", help="Write to this file. [standard output]")
    ] = None,
    task: OfTask = None,
    status: Annotated[Status, option("--status", help="Only rollouts that ended like this.")] = Status.SCORED,
    min_reward: Annotated[
        float | None, option("--min-reward", metavar="REWARD", help="Only rollouts that earned at least this.")
    ] = None,
) -> int:
    """Write samples to train on as JSON lines: of each history of a rollout one.

    `messages` are conversations in the form of chat completions, with the tools that were offered. `tokens` are the
    token ids that the provider told, with a mask of what is to be learned from, and their log probabilities.

    What was left out, and what cannot be exported, is counted on standard error. Exit codes: 0 done; 1 there is nothing
    to export; 2 some of what was chosen cannot be exported.
    """
    choice = reports.Choice(task=task, status=status, min_reward=min_reward)
    tally = Tally()
    with at(paths) as places:
        files = reports.files_of(places)
        if out is not None and out.resolve() in [file.resolve() for file in files]:
            raise ConfigError(f"{out} is the record itself: name another file")
        torn = list(torn_notes(files))
        found = samples(files, to, choice, tally)
        if (first := next(found, None)) is not None:
            _write(chain([first], found), out)
    complain(*tally.notes, *torn)
    if first is None:
        raise ConfigError("there is nothing to export")
    return PARTLY if tally.unfit else 0


def _write(lines: Iterator[bytes], out: Path | None) -> None:
    if out is not None:
        replace(out, lines)
        return
    for line in lines:
        sys.stdout.write(line.decode("ascii"))
    sys.stdout.flush()
