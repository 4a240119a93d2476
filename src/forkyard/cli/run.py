"""`forkyard run` and `forkyard resume`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import forkyard.run as runs
from forkyard.cli.dotted.beside import WithTable, said_beside
from forkyard.cli.options import (
    BaseUrl,
    BudgetUsd,
    Concurrent,
    FailUnder,
    KeyVariable,
    Prices,
    Provider,
    Quiet,
    ReportAsJson,
    Upstreams,
    VerifierEnv,
    flag_of,
    model_settings,
    option,
    pairs,
    positive,
)
from forkyard.cli.playing import Telling, foretold, told
from forkyard.env.config import SamplingConfig
from forkyard.errors import ConfigError
from forkyard.harness import DEFAULT_HARNESS, HARNESSES
from forkyard.model.place import API_KEY
from forkyard.sandbox.registry import DEFAULT_PROVIDER
from forkyard.task.registry import is_path
from forkyard.trace import SINGLE_AGENT

AGENTS = ", ".join(HARNESSES)


class WithSampling(WithTable):
    """A command that takes `--sampling.KEY VALUE`."""

    table = "sampling"


COMMANDS = {"run": WithSampling}
"""The commands here that are of another class than usual."""


def run(  # noqa: PLR0913 - one parameter for each option is how typer is told of them
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Task directories, directories and archives of them, or tasks.py[:NAME]."),
    ] = None,
    taskset: Annotated[
        list[str] | None,
        option("-d", "--taskset", metavar="SET", help="NAME@VERSION, URL@COMMIT[#FOLDER] of git, or PATH; repeatable."),
    ] = None,
    registry: Annotated[
        Path | None, option("--registry", metavar="DIR", help="Where NAME@VERSION lies. [FORKYARD_HOME/tasksets]")
    ] = None,
    include: Annotated[
        list[str] | None, option("-i", "--include", metavar="GLOB", help="Play only tasks of such names; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, option("-x", "--exclude", metavar="GLOB", help="Leave tasks of such names out; repeatable.")
    ] = None,
    agent: Annotated[
        str | None,
        option("-a", "--agent", metavar="HARNESS", help=f"{AGENTS}, or module:Class. [{DEFAULT_HARNESS} with -m]"),
    ] = None,
    model: Annotated[
        str | None, option("-m", "--model", metavar="MODEL", help="The model's name at its endpoint.")
    ] = None,
    samples: Annotated[int, option("-k", "--samples", metavar="N", min=1, help="Rollouts of each task.")] = 1,
    concurrent: Concurrent = 4,
    provider: Provider = DEFAULT_PROVIDER,
    verifier: Annotated[
        Literal["shared", "forked", "separate"] | None, option(help="Where to grade, in place of what the tasks say.")
    ] = None,
    ve: VerifierEnv = None,
    base: Annotated[
        str | None, option(metavar="IMAGE", help="Start from this image (host: this machine's /usr) instead.")
    ] = None,
    unbounded: Annotated[
        bool, option("--unbounded", help="Play tasks without those of their bounds that the provider cannot keep.")
    ] = False,
    out: Annotated[
        Path, option("-o", "--out", metavar="DIR", help="The directory that run directories go into, or disk:NAME.")
    ] = Path("runs"),
    name: Annotated[str | None, option("--run", metavar="NAME", help="The run's name. [run-<time>]")] = None,
    resume: Annotated[
        Path | None, option("--resume", metavar="RUN_DIR", help="Go on with a run, as `forkyard resume` does.")
    ] = None,
    json: ReportAsJson = False,
    ak: Annotated[
        list[str] | None, option("--ak", metavar="KEY=VALUE", help="An option of the harness; repeatable.")
    ] = None,
    base_url: BaseUrl = None,
    api_key_env: KeyVariable = API_KEY,
    upstreams: Upstreams = None,
    max_turns: Annotated[
        int | None, option("--max-turns", metavar="N", min=1, help="Replies an agent may take.")
    ] = None,
    agent_timeout: Annotated[
        float | None,
        option("--agent-timeout", metavar="SECONDS", callback=positive, help="In place of the tasks' own."),
    ] = None,
    retries: Annotated[
        int, option("-r", "--retries", metavar="N", min=0, max=10, help="New attempts after an infrastructure failure.")
    ] = 2,
    env: Annotated[
        str, option("--env", metavar="ENV", help="The env that plays: a name, or module:Class.")
    ] = SINGLE_AGENT,
    budget_usd: BudgetUsd = None,
    prices: Prices = None,
    limit: Annotated[int | None, option("-l", "--limit", metavar="N", min=1, help="Play only the first tasks.")] = None,
    fail_under: FailUnder = None,
    dry_run: Annotated[
        bool, option("--dry-run", help="Check everything and say what would be played; --json prints the plan.")
    ] = False,
    quiet: Quiet = False,
) -> int:
    """Play tasks, grade what comes out, and write one line for each rollout.

    Exit codes: 0 done; 1 wrong usage or configuration; 2 some rollouts ended in an infrastructure failure or in an
    error of the env's own code, the run stopped early, or nothing was scored; 3 the mean reward is below --fail-under;
    130 interrupted (143 by SIGTERM).

    How the model samples is said as in `forkyard eval`: --sampling.temperature 0.3, .top-p, .max-tokens, .seed,
    .reasoning-effort, and further keys of a request, as --sampling.return-token-ids true.

    Every option can be set by a variable as well: FORKYARD_RUN_SAMPLES=4 is --samples 4.
    """
    telling = Telling(quiet, json, fail_under=fail_under)
    if resume is not None:
        _refuse_beside_resume(context)
        return told(partial(runs.resume, resume, budget_usd=budget_usd, prices=prices), telling)
    sets = taskset or []
    if not paths and not sets:
        raise typer.BadParameter(
            "name a task directory, a directory of them, a tasks.py, or a set with -d", param_hint="PATH"
        )
    plan = runs.plan_of(
        run=name if name is not None else runs.new_run_name(),
        out=out,
        paths=(*(paths or ()), *(Path(each).expanduser() for each in sets if is_path(each))),
        registered=tuple(each for each in sets if not is_path(each)),
        registry=registry,
        select=_select(include, exclude),
        agent={
            "harness": _harness(agent, model, pairs(ak or (), "--ak")),
            "runtime": {"type": provider},
            "model": model,
            "sampling": said_beside(context, WithSampling.table, SamplingConfig),
            "max_turns": max_turns,
            "timeout": {"rollout": agent_timeout},
            "verifier": verifier,
        },
        samples=samples,
        concurrent=concurrent,
        base=base,
        unbounded=unbounded,
        retries=retries,
        limit=limit,
        env=env,
        **model_settings(
            base_url=base_url,
            api_key_env=api_key_env,
            upstreams=upstreams,
            prices=prices,
            budget_usd=budget_usd,
            ve=ve,
        ),
    )
    return foretold(plan, json) if dry_run else told(partial(runs.start, plan), telling)


def resume(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run that was begun.")],
    json: ReportAsJson = False,
    fail_under: FailUnder = None,
    budget_usd: Annotated[
        float | None,
        option("--budget-usd", metavar="USD", callback=positive, help="In place of the run's; what is spent counts."),
    ] = None,
    prices: Annotated[
        Path | None,
        option("--prices", metavar="FILE", help="In place of the run's; see `forkyard run`."),
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Go on with a run: play what has no line yet, and again what ended in an infrastructure failure.

    With more money than the run had, what its budget cut short is played again, too; with a price that was missing,
    what was refused a judge for it.
    """
    again = partial(runs.resume, run_dir, budget_usd=budget_usd, prices=prices)
    return told(again, Telling(quiet, json, fail_under=fail_under))


def _select(include: list[str] | None, exclude: list[str] | None) -> dict[str, Any]:
    """The choice by patterns of names; what is excluded is never played."""
    return {key: {"names": names} for key, names in (("include", include), ("exclude", exclude)) if names}


def _harness(agent: str | None, model: str | None, options: dict[str, str]) -> dict[str, str]:
    if "id" in options:
        raise ConfigError("--ak id: no harness has an option of that name; -a names the harness")
    if agent is None and model is None:
        raise ConfigError(
            f"nobody is there to play the tasks: name a model with -m (it plays with the harness {DEFAULT_HARNESS}), "
            f"or choose one of {AGENTS} with -a"
        )
    return {**options, "id": agent or DEFAULT_HARNESS}


def _refuse_beside_resume(context: typer.Context) -> None:
    """A run goes on as it was planned; an option that would be ignored is a mistake."""
    if context.meta.get(WithSampling.table):
        raise typer.BadParameter("leave --sampling out: the run goes on as it was planned", param_hint="--resume")
    may_change = {"resume", "json", "quiet", "fail_under", "budget_usd", "prices"}
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in may_change and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"leave {flag_of(name)} out: the run goes on as it was planned", param_hint="--resume"
            )
