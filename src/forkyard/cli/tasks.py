"""`forkyard tasks`: write a task directory, and say what is wrong with some."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forkyard.cli.options import (
    BaseUrl,
    BudgetUsd,
    KeyVariable,
    Prices,
    Provider,
    Upstreams,
    VerifierEnv,
    model_settings,
    option,
)
from forkyard.cli.output import say
from forkyard.cli.task_files import write_task
from forkyard.model.place import API_KEY
from forkyard.sandbox.registry import DEFAULT_PROVIDER

app = typer.Typer(help="Write and check task directories.", no_args_is_help=True)


@app.command()
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The task's name, as my-task or org/my-task.")],
    place: Annotated[
        Path, option("--dir", metavar="DIR", help="The directory that the task's own is made in.")
    ] = Path(),
) -> None:
    """Write a new task directory: something that works and passes its checks, to be changed."""
    root = write_task(name, place)
    say(f"{root} is made; try: forkyard tasks check {root}")


@app.command()
def check(  # noqa: PLR0913 - one parameter for each option is how typer is told of them
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Task directories, or directories of them.")],
    static: Annotated[bool, option("--static", help="Read the files only, play nothing.")] = False,
    repeat: Annotated[
        int, option("--repeat", metavar="N", min=1, help="Rollouts of the solution, and of doing nothing.")
    ] = 3,
    as_json: Annotated[bool, option("--json", help="One JSON list on standard output.")] = False,
    select: Annotated[
        list[str] | None, option("--select", metavar="RULE", help="Only this rule; repeatable, or several with commas.")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        option("--ignore", metavar="RULE", help="All but this rule; repeatable, or several with commas."),
    ] = None,
    provider: Provider = DEFAULT_PROVIDER,
    base: Annotated[
        str | None, option(metavar="IMAGE", help="Start from this image (host: this machine's /usr) instead.")
    ] = None,
    base_url: BaseUrl = None,
    api_key_env: KeyVariable = API_KEY,
    upstreams: Upstreams = None,
    prices: Prices = None,
    budget_usd: BudgetUsd = None,
    ve: VerifierEnv = None,
) -> int:
    """Say what is wrong with task directories: first by reading their files, then by playing them.

    Played are the solution, which must earn 1, and an agent that does nothing, which must not, each several
    times in fresh sandboxes. Notes are shown and count for nothing. A verifier that asks a model asks it as in a run,
    and is paid for: --base-url, --upstreams, --prices, --budget-usd for each task.

    Exit codes: 0 nothing is wrong; 1 something is; 2 some task could not be checked; 130 interrupted.
    """
    from forkyard.cli.task_checks import (  # the rules take a while to load, and no other command asks
        Wanted,
        check_tasks,
    )

    settings = model_settings(
        base_url=base_url,
        api_key_env=api_key_env,
        upstreams=upstreams,
        prices=prices,
        budget_usd=budget_usd,
        ve=ve,
    )
    wanted = Wanted(tuple(select or ()), tuple(ignore or ()), static, repeat, provider, base, settings)
    return check_tasks(paths, wanted, as_json)
