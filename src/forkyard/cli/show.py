"""`forkyard show`: the rollouts of a run, or one of them whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import forkyard.report as reports
from forkyard.cli.options import OfTask, option
from forkyard.cli.output import say
from forkyard.cli.report import at
from forkyard.trace import Status
from forkyard.values import strict_json


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, a file of lines, or disk:NAME/RUN.")],
    rollout: Annotated[
        str | None,
        typer.Argument(metavar="ROLLOUT", help="Its number, its id or the beginning of that, or TASK#SAMPLE."),
    ] = None,
    task: OfTask = None,
    status: Annotated[Status | None, option("--status", help="Only rollouts that ended like this.")] = None,
    failed: Annotated[bool, option("--failed", help="Only those that have no reward, or one below 1.")] = False,
    full: Annotated[bool, option("--full", help="Fold and cut nothing.")] = False,
    json: Annotated[bool, option("--json", help="Print the lines themselves.")] = False,
) -> None:
    """Print the rollouts of a run, a row for each, or one of them as a person reads it.

    ROLLOUT is the number of a row, an id or the beginning of one, or TASK#SAMPLE, which is all of that episode.
    Of one rollout there is the outcome, every message with the calls of tools and their results, what the verifier
    printed at its end, errors, and the files that are kept. What is long is folded to its beginning and end.
    """
    choice = reports.Choice(task=task, status=status, failed=failed)
    with at([run]) as places:
        (file,) = reports.files_of(places)
        found = reports.chosen(file, choice) if rollout is None else reports.named(file, rollout, choice)
        if json:
            for _, record in found:
                say(strict_json(record))
        elif rollout is None:
            say(reports.rollouts_text(file, choice, full=full))
        else:
            say("\n\n".join(reports.rollout_text(file, each, full=full) for each in found))
