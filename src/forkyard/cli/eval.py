"""`forkyard eval`: a taskset played by any env, told by dotted flags and files."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

import forkyard.run as runs
from forkyard.cli.dotted import Setting, fill, help_text, last_value, options_of, read_arguments
from forkyard.cli.dotted.help import Option
from forkyard.cli.eval_config import (
    ALIASES,
    HARNESS,
    SINGLE,
    SWITCHES,
    Choice,
    EvalConfig,
    choice_of,
    env_values,
    model_for,
    taskset_values,
)
from forkyard.cli.output import say
from forkyard.cli.playing import ended, progress_for
from forkyard.errors import ConfigError
from forkyard.run import Plan, Progress
from forkyard.run.tasksets import TaskSource, find_source
from forkyard.trace.store import PLAN_FILE

USAGE = "forkyard eval TASKSET [--env.id ENV] [FLAGS] [@ FILE]"
ABOUT = """Play a taskset with any env, grade what comes out, and write one line for each rollout.

TASKSET is a task directory, a directory of them, tasks.py[:NAME], a Python package, or the id of a taskset that is
installed. Flags are the keys of the configuration; lists and tables are JSON; `@ FILE` reads a .toml or .json of them,
and flags go before files. Agents of an env are told by --env.NAME.*, as in --env.agent.harness.id bash,
--env.agent.runtime.type local or --env.judge.model MODEL. `forkyard eval TASKSET --env.id ENV -h` shows the flags of
what is chosen.

Exit codes: 0 done; 1 wrong usage or configuration; 2 some rollouts ended in an infrastructure failure, the run stopped
early, or nothing was scored; 3 the mean reward is below --fail-under; 130 interrupted (143 by SIGTERM)."""
_TRANSIENT = {"run", "out", "directory", "created", "forkyard", "tasks"}
_FLAGS = {"samples": "num_rollouts", "concurrent": "max_concurrent", "paths": "TASKSET", "taskset": "TASKSET"}


def evaluate(context: typer.Context) -> int:
    """Play a taskset with any env."""
    arguments = read_arguments(context.args, ALIASES, SWITCHES)
    if not context.args or arguments.help:
        say(_help(arguments.words, arguments.settings))
        return 0
    if len(arguments.words) > 1:
        raise ConfigError(f"one TASKSET is played at a time, not {', '.join(map(repr, arguments.words))}")
    name = _taskset(arguments.words, arguments.settings)
    if name is None:
        raise ConfigError("name a taskset: a task directory, tasks.py, or the id of one that is installed")
    choice = choice_of(find_source(name), arguments.settings)
    config = fill(model_for(choice, arguments.settings), arguments.settings)
    return _play(_plan(name, choice, config), config)


def _taskset(words: Sequence[str], settings: Sequence[Setting]) -> str | None:
    named = last_value(settings, "env", "taskset", "id")
    return words[0] if words else named and str(named)


def _play(plan: Plan, config: EvalConfig) -> int:
    progress = progress_for(config.quiet, config.as_json, plain=config.verbose)
    if config.dry_run:
        say(asyncio.run(runs.check(plan)).model_dump_json(indent=2))
        return 0
    if config.resume and (place := _to_resume(plan, config, progress)) is not None:
        outcome = asyncio.run(runs.resume(place, progress))
    else:
        _make_room(plan, config.clean)
        outcome = asyncio.run(runs.start(plan, progress))
    return ended(outcome, config.quiet, config.as_json, config.fail_under)


def _make_room(plan: Plan, clean: bool) -> None:
    """Raise ConfigError when a run has the directory, or remove that run."""
    runs.check_name(plan.directory or plan.run)
    if not runs.is_run(plan.place):
        return
    if not clean:
        raise ConfigError(
            f"run directory {plan.place} already contains results: append --resume to go on with them, overwrite them "
            "with --clean, or pick another --run.name"
        )
    runs.remove(plan.place)


def _to_resume(plan: Plan, config: EvalConfig, progress: Progress) -> Path | None:
    """The run to go on with: the one of that directory, or the last that was planned alike; None to begin it.

    Raises ConfigError when it was planned otherwise.
    """
    if config.run.name is None and config.run.dir is None:
        alike = [place for place, other in _runs_in(plan.out, progress) if not _differences(plan, other)]
        if not alike:
            raise ConfigError(
                f"no run in {plan.out} was planned like this: name it with --run.dir, or leave --resume out to begin"
            )
        return max(alike, key=lambda place: (place / PLAN_FILE).stat().st_mtime)
    if not runs.is_run(plan.place):
        return None
    if differing := _differences(plan, runs.read_plan(plan.place)):
        raise ConfigError(
            f"--resume goes on with a run as it was planned, and {plan.place} differs in {', '.join(differing)}: "
            f"repeat its own flags, or use `forkyard resume {plan.place}`"
        )
    return plan.place


def _runs_in(out: Path, progress: Progress) -> Iterator[tuple[Path, Plan]]:
    """The runs and their plans; a note says which cannot be read."""
    for place in filter(runs.is_run, out.glob("*")):
        try:
            plan = runs.read_plan(place)
        except ConfigError as err:
            progress.note(f"passed over: {err}")
            continue
        yield place, plan


def _differences(plan: Plan, other: Plan) -> list[str]:
    """The keys in which two plans differ, as a user writes them."""
    mine, theirs = (_flat(each.model_dump(mode="json", exclude=_TRANSIENT)) for each in (runs.resolved(plan), other))
    return [_FLAGS.get(key, key) for key in mine if mine[key] != theirs[key]]


def _flat(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan's fields, and those of what its agents inherit, by the names that flags have."""
    agent = plan.pop("agent")
    return {**agent, **plan}


def _plan(name: str, choice: Choice, config: EvalConfig) -> Plan:
    env = config.env  # type: ignore[attr-defined]  # the field that `model_for` adds
    agents = choice.env_type.config_type().agents
    path = choice.source.path
    return runs.plan_of(
        run=config.run.name or config.run.dir or _new_name(name, choice, config, agents),
        directory=config.run.dir,
        out=config.output_dir,
        paths=() if path is None else (path,),
        taskset=name if path is None else None,
        taskset_config=taskset_values(env.taskset),
        select=config.select.model_dump(mode="json", exclude_defaults=True),
        env=choice.env,
        env_config=env_values(env, agents),
        agent={"harness": choice.harness, "model": config.model, "sampling": config.sampling},
        base_url=config.client.base_url,
        api_key_env=config.client.api_key_var,
        upstreams=config.client.upstreams,
        prices=config.prices,
        budget_usd=config.budget.usd,
        samples=config.num_rollouts,
        base=config.base,
        unbounded=config.unbounded,
        concurrent=config.max_concurrent,
        retries=config.retries,
    )


def _new_name(name: str, choice: Choice, config: EvalConfig, agents: Sequence[str]) -> str:
    """`<env>+<taskset>--<model>--<harness>--<8 hex digits>`, of the first agent, the env unless it is the plain one."""
    first = getattr(config.env, agents[0])  # type: ignore[attr-defined]
    harness = first.harness.id if first.harness else choice.harness
    taskset = name.rstrip("/").rpartition("/")[2].partition("@")[0].partition(":")[0].removesuffix(".py")
    env = taskset if choice.env == SINGLE else f"{choice.env}+{taskset}"
    parts = [env, first.model or config.model, harness, secrets.token_hex(4)]
    return "--".join(_word(part) for part in parts if part)


def _word(text: str) -> str:
    return "".join(c if c.isalnum() or c in "+-._" else "-" for c in text)[:60]


def _help(words: Sequence[str], settings: Sequence[Setting]) -> str:
    name = _taskset(words, settings)
    choice = choice_of(find_source(name) if name else TaskSource(), settings)
    shown = f"Flags with {name or 'a taskset'}, env {choice.env}:"
    return f"Usage: {USAGE}\n\n{ABOUT}\n\n{shown}\n\n{help_text(options_of(model_for(choice, settings), ALIASES))}"


def static_options() -> list[Option]:
    """The flags there are whatever is chosen: those of a single agent with the harness bash."""
    choice = Choice(TaskSource(), SINGLE, HARNESS)
    return list(options_of(model_for(choice, ()), ALIASES))
