"""`forkyard regrade`: the rollouts of a run graded again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

import forkyard.run as runs
from forkyard.cli.options import option
from forkyard.cli.playing import Telling, told
from forkyard.trace import Status


def regrade(  # noqa: PLR0913 - one parameter for each option is how typer is told of them
    source: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of the run to grade again.")],
    task: Annotated[str | None, option("--task", metavar="NAME", help="Only the rollouts of this task.")] = None,
    tests: Annotated[
        Path | None, option("--tests", metavar="DIR", help="Grade by this directory in place of the task's tests/.")
    ] = None,
    status: Annotated[Status | None, option("--status", help="Only rollouts that ended like this.")] = None,
    verifier: Annotated[
        Literal["forked", "separate"] | None, option(help="Where to grade, in place of where it was done before.")
    ] = None,
    concurrent: Annotated[int, option("-n", "--concurrent", metavar="N", min=1, help="Rollouts at work at once.")] = 4,
    out: Annotated[
        Path, option("-o", "--out", metavar="DIR", help="The directory that run directories go into.")
    ] = Path("runs"),
    name: Annotated[
        str | None, option("--run", metavar="NAME", help="The new run's name. [RUN--regrade--8 hex digits]")
    ] = None,
    json: Annotated[
        bool, option("--json", help="Print the report as JSON and nothing else on standard output.")
    ] = False,
    quiet: Annotated[bool, option("-q", "--quiet", help="Print nothing but errors (and --json).")] = False,
) -> int:
    """Grade the rollouts of a run again, by its tasks as they are now. No agent is played.

    The run is not touched: a new one is written, whose plan names it as its source. What the agents did goes over as it
    is. Rollouts that cannot be graded again are listed with the reason; exit code 1 when none can.
    """
    wanted = runs.Regrade(
        source=source,
        out=out,
        run=name,
        task=task,
        tests=tests,
        status=status,
        verifier=verifier,
        concurrent=concurrent,
    )
    return told(partial(runs.regrade, wanted), Telling(quiet, json))
