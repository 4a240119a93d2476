"""`forkyard run` and `forkyard resume`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError
from rich.console import Console

import forkyard.report as reports
import forkyard.run as runs
from forkyard.cli.options import option, pairs, share
from forkyard.cli.output import complain, say
from forkyard.errors import ConfigError
from forkyard.harness import HARNESSES
from forkyard.run import Outcome, Plan, Progress
from forkyard.values import counted

ERRORED, BELOW = 2, 3

Json = Annotated[bool, option("--json", help="Print the report as JSON and nothing else on standard output.")]
FAIL_UNDER = "Exit 3 when the mean reward is below; a rollout without one counts as 0."
QuietFlag = Annotated[bool, option("-q", "--quiet", help="Print nothing but errors (and --json).")]


def run(  # noqa: PLR0913 - one parameter for each option is how typer is told of them
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Task directories, directories of them, or tasks.py[:NAME]."),
    ] = None,
    agent: Annotated[
        str | None,
        option("-a", "--agent", metavar="HARNESS", help=f"{', '.join(HARNESSES)}, or module:Class. [bash with -m]"),
    ] = None,
    model: Annotated[
        str | None, option("-m", "--model", metavar="MODEL", help="The model's name at its endpoint.")
    ] = None,
    samples: Annotated[int, option("-k", "--samples", metavar="N", min=1, help="Rollouts of each task.")] = 1,
    concurrent: Annotated[int, option("-n", "--concurrent", metavar="N", min=1, help="Rollouts at work at once.")] = 4,
    provider: Annotated[str, option("-e", "--provider", metavar="PROVIDER", help="Where sandboxes run.")] = "local",
    verifier: Annotated[
        Literal["shared", "forked"] | None, option(help="Where to grade, in place of what the tasks say.")
    ] = None,
    base: Annotated[
        str | None, option(metavar="IMAGE", help="Start from this image (host: this machine's /usr) instead.")
    ] = None,
    unbounded: Annotated[
        bool, option("--unbounded", help="Play tasks without those of their bounds that the provider cannot keep.")
    ] = False,
    out: Annotated[
        Path, option("-o", "--out", metavar="DIR", help="The directory that run directories go into.")
    ] = Path("runs"),
    name: Annotated[str | None, option("--run", metavar="NAME", help="The run's name. [run-<time>]")] = None,
    resume: Annotated[
        Path | None, option("--resume", metavar="RUN_DIR", help="Go on with a run, as `forkyard resume` does.")
    ] = None,
    json: Json = False,
    ak: Annotated[
        list[str] | None, option("--ak", metavar="KEY=VALUE", help="An option of the harness; repeatable.")
    ] = None,
    base_url: Annotated[
        str | None, option("--base-url", metavar="URL", help="The model's endpoint. [$OPENAI_BASE_URL]")
    ] = None,
    api_key_env: Annotated[
        str, option("--api-key-env", metavar="NAME", help="The variable that holds the model's key.")
    ] = runs.KEY_VARIABLE,
    max_turns: Annotated[
        int | None, option("--max-turns", metavar="N", min=1, help="Replies an agent may take.")
    ] = None,
    agent_timeout: Annotated[
        float | None, option("--agent-timeout", metavar="SECONDS", min=0.001, help="In place of the tasks' own.")
    ] = None,
    retries: Annotated[
        int, option("-r", "--retries", metavar="N", min=0, max=10, help="New attempts after an infrastructure failure.")
    ] = 2,
    limit: Annotated[int | None, option("-l", "--limit", metavar="N", min=1, help="Play only the first tasks.")] = None,
    fail_under: Annotated[
        float | None,
        option("--fail-under", metavar="X", callback=share, help=FAIL_UNDER),
    ] = None,
    quiet: QuietFlag = False,
) -> int:
    """Play tasks, grade what comes out, and write one line for each rollout.

    Exit codes: 0 done; 1 wrong usage or configuration; 2 some rollouts ended in an infrastructure failure, the run
    stopped early, or nothing was scored; 3 the mean reward is below --fail-under; 130 interrupted (143 by SIGTERM).

    Every option can be set by a variable as well: FORKYARD_RUN_SAMPLES=4 is --samples 4.
    """
    progress = _progress(quiet, json)
    if resume is not None:
        _refuse_beside_resume(context)
        return _ended(asyncio.run(runs.resume(resume, progress)), quiet, json, fail_under)
    if not paths:
        raise typer.BadParameter("name a task directory, a directory of them, or a tasks.py", param_hint="PATH")
    plan = _plan(
        run=name if name is not None else runs.new_run_name(),
        out=out,
        paths=tuple(paths),
        harness=_harness(agent, model),
        options=pairs(ak or (), "--ak"),
        model=model,
        base_url=(base_url or os.environ.get("OPENAI_BASE_URL")) if model else None,
        api_key_env=api_key_env,
        samples=samples,
        concurrent=concurrent,
        provider=provider,
        verifier=verifier,
        base=base,
        unbounded=unbounded,
        max_turns=max_turns,
        agent_timeout=agent_timeout,
        retries=retries,
        limit=limit,
    )
    return _ended(asyncio.run(runs.start(plan, progress)), quiet, json, fail_under)


def resume(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run that was begun.")],
    json: Json = False,
    fail_under: Annotated[
        float | None,
        option("--fail-under", metavar="X", callback=share, help=FAIL_UNDER),
    ] = None,
    quiet: QuietFlag = False,
) -> int:
    """Go on with a run: play what has no line yet, and again what ended in an infrastructure failure."""
    return _ended(asyncio.run(runs.resume(run_dir, _progress(quiet, json))), quiet, json, fail_under)


def _plan(**options: Any) -> Plan:
    try:
        return Plan(**options)
    except ValidationError as err:
        raise ConfigError(*(f"{error['loc'][0]}: {error['msg']}" for error in err.errors())) from None


def _harness(agent: str | None, model: str | None) -> str:
    if agent is None and model is None:
        raise ConfigError(
            "nobody is there to play the tasks: name a model with -m (it plays with the harness bash), or choose "
            f"one of {', '.join(HARNESSES)} with -a"
        )
    return agent or "bash"


def _refuse_beside_resume(context: typer.Context) -> None:
    """A run goes on as it was planned; an option that would be ignored is a mistake."""
    may_change = {"resume", "json", "quiet", "fail_under"}
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in may_change and source is not None and source.name == "COMMANDLINE":
            what = {"paths": "PATH", "name": "--run"}.get(name, f"--{name.replace('_', '-')}")
            raise typer.BadParameter(f"leave {what} out: the run goes on as it was planned", param_hint="--resume")


def _progress(quiet: bool, json: bool) -> Progress:
    stream = sys.stderr if json else sys.stdout
    if quiet:
        return Progress()
    if stream.isatty():
        return runs.Live(Console(file=stream, highlight=False))
    return runs.Lines(stream)


def _ended(outcome: Outcome, quiet: bool, json: bool, fail_under: float | None) -> int:
    """Say how it ended; the exit code."""
    if outcome.signal is not None:
        complain(f"interrupted{_left(outcome)}")
        return 128 + outcome.signal
    if outcome.directory is None:
        return 0
    if outcome.stopped is not None:
        complain(f"stopped early, because every other rollout would fail as well: {outcome.stopped}{_left(outcome)}")
    elif not outcome.played and not quiet and not json:
        say(f"nothing to do: all {outcome.planned} rollouts of {outcome.directory} are done")
    found = reports.report([outcome.directory])
    if json:
        say(reports.to_json(found))
    elif not quiet:
        say(reports.to_text(found))
    if outcome.stopped is not None or outcome.errored:
        return ERRORED
    if not any(group.overall.scored for group in found.groups):
        complain(f"nothing was scored ({counted(outcome.planned, 'rollout')}); the reasons are in {found.files[0]}")
        return ERRORED
    return BELOW if fail_under is not None and _below(found, fail_under) else 0


def _left(outcome: Outcome) -> str:
    """How much is on record and how to play the rest."""
    if outcome.directory is None:
        return " before anything started"
    left = outcome.planned - outcome.recorded
    return (
        f"; {outcome.recorded} of {outcome.planned} rollouts are on record, {left} are not. "
        f"Play the rest with: {outcome.resume_command}"
    )


def _below(found: reports.Report, threshold: float) -> bool:
    rows = [group.strict or group.overall for group in found.groups]  # what earned no reward earned 0 here
    means = [row.mean_reward for row in rows]
    below = not means or any(mean is None or mean < threshold for mean in means)
    if below:
        shown = ", ".join(reports.shown(mean) for mean in means) or "nothing was scored"
        complain(f"the mean reward is below --fail-under {threshold:g}: {shown}")
    return below
