"""`forkyard regrade`: the rollouts of a run graded again."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import forkyard.run as runs
from forkyard.cli.options import (
    BaseUrl,
    BudgetUsd,
    Concurrent,
    OfTask,
    Prices,
    Quiet,
    ReportAsJson,
    Upstreams,
    VerifierEnv,
    flag_of,
    model_settings,
    option,
)
from forkyard.cli.output import complain, say
from forkyard.cli.playing import Telling, print_foretold, told
from forkyard.trace import Status
from forkyard.values import counted, first_names


def regrade(  # noqa: PLR0913 - one parameter for each option is how typer is told of them
    source: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of the run to grade again.")],
    task: OfTask = None,
    tests: Annotated[
        Path | None, option("--tests", metavar="DIR", help="Grade by this directory in place of the task's tests/.")
    ] = None,
    status: Annotated[Status | None, option("--status", help="Only rollouts that ended like this.")] = None,
    verifier: Annotated[
        Literal["forked", "separate"] | None, option(help="Where to grade, in place of where it was done before.")
    ] = None,
    concurrent: Concurrent = 4,
    out: Annotated[
        Path, option("-o", "--out", metavar="DIR", help="The directory that run directories go into.")
    ] = Path("runs"),
    ask_judges: Annotated[
        bool, option("--ask-judges", help="Grade what judges graded, too: they are asked anew, and paid.")
    ] = False,
    base_url: BaseUrl = None,
    api_key_env: Annotated[
        str | None, option("--api-key-env", metavar="NAME", help="The variable that holds the model's key.")
    ] = None,
    upstreams: Upstreams = None,
    prices: Prices = None,
    budget_usd: BudgetUsd = None,
    ve: VerifierEnv = None,
    name: Annotated[
        str | None, option("--run", metavar="NAME", help="The new run's name. [RUN--regrade--8 hex digits]")
    ] = None,
    json: ReportAsJson = False,
    dry_run: Annotated[
        bool, option("--dry-run", help="Say what could be graded again, and why the rest could not; grade nothing.")
    ] = False,
    quiet: Quiet = False,
) -> int:
    """Grade the rollouts of a run again, by its tasks as they are now. No agent is played.

    The run is not touched: a new one is written, whose plan names it as its source. What the agents did goes over as it
    is. Rollouts that cannot be graded again are listed with the reason; exit code 1 when none can.

    Where and how models are asked is as in that run, unless it is said otherwise: --base-url, --api-key-env,
    --upstreams, --prices, --ve. The run's budget is a new one.
    """
    settings = model_settings(
        base_url=base_url,
        api_key_env=api_key_env,
        upstreams=upstreams,
        prices=prices,
        budget_usd=budget_usd,
        ve=ve,
    )
    wanted = runs.Regrade(
        source=source,
        out=out,
        run=name,
        task=task,
        tests=tests,
        status=status,
        verifier=verifier,
        concurrent=concurrent,
        model_settings=_for_judges(settings, ask_judges),
    )
    if dry_run:
        return _foretold(wanted, json)
    return told(partial(runs.regrade, wanted), Telling(quiet, json))


def _for_judges(settings: dict[str, Any], ask_judges: bool) -> dict[str, Any] | None:
    if settings and not ask_judges:
        said = ", ".join(map(flag_of, settings))
        raise typer.BadParameter("it says how judges are asked, and none is: add --ask-judges", param_hint=said)
    return settings if ask_judges else None


def _foretold(wanted: runs.Regrade, json: bool) -> int:
    """Say what would be graded again, and of what not why. Raises ConfigError when nothing would be."""
    plan, notes = asyncio.run(runs.check_regrade(wanted))
    if json:
        say(plan.model_dump_json(indent=2))
        complain(*(f"note: {note}" for note in notes))
        return 0
    rollouts = [f"{task} #{sample}" for task, samples in plan.regraded.items() for sample in samples]
    tasks = counted(len(plan.tasks), "task")
    rows = {
        "source": str(plan.source),
        "to grade": f"{counted(plan.planned, plan.unit)} of {tasks}: {first_names(rollouts)}",
    }
    return print_foretold(plan, rows, notes, "nothing was graded")
