"""`forkyard eval`: a taskset played by any env, told by dotted flags and files."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

import forkyard.run as runs
from forkyard.cli.dotted import Setting, fill, help_text, options_of, read_arguments
from forkyard.cli.dotted.help import Option
from forkyard.cli.eval_config import (
    ALIASES,
    SWITCHES,
    Choice,
    EvalConfig,
    choice_of,
    env_values,
    model_for,
    source_named,
    taskset_values,
)
from forkyard.cli.output import say
from forkyard.cli.playing import Telling, foretold, told
from forkyard.errors import ConfigError
from forkyard.harness import DEFAULT_HARNESS
from forkyard.run import Plan, Progress
from forkyard.run.tasksets import TaskSource
from forkyard.trace import SINGLE_AGENT
from forkyard.trace.store import PLAN_FILE

USAGE = "forkyard eval TASKSET [--env.id ENV] [FLAGS] [@ FILE]"
ABOUT = """Play a taskset with any env, grade what comes out, and write one line for each rollout.

TASKSET is a task directory, a directory or an archive of them, tasks.py[:NAME], a Python package, the id of a taskset
that is installed, or the address of a git repository; -d names a set of a registry in its place. Flags are the keys of
the configuration; lists and tables are JSON; `@ FILE` reads a .toml or .json of them, and flags go before files. Agents
of an env are told by --env.NAME.*, as in --env.agent.harness.id bash, --env.agent.runtime.type local or
--env.judge.model MODEL. `forkyard eval TASKSET --env.id ENV -h` shows the flags of what is chosen.

Exit codes: 0 done; 1 wrong usage or configuration; 2 some rollouts ended in an infrastructure failure or in an error of
the env's own code, the run stopped early, or nothing was scored; 3 the mean reward is below --fail-under; 130
interrupted (143 by SIGTERM)."""
_ID = ("env", "taskset", "id")
_TRANSIENT = {"run", "out", "directory", "created", "forkyard", "tasks"}
_FLAGS = {
    "samples": "num_rollouts",
    "concurrent": "max_concurrent",
    "paths": "TASKSET",
    "taskset": "TASKSET",
    "registered": "-d",
}


def evaluate(context: typer.Context) -> int:
    """Play a taskset with any env."""
    arguments = read_arguments(context.args, ALIASES, SWITCHES)
    if not context.args or arguments.help:
        say(_help(arguments.words, arguments.settings))
        return 0
    source = source_named(arguments.words, arguments.settings, *_ID)
    if source is None:
        raise ConfigError("name a taskset: a task directory, tasks.py, the id of one that is installed, or a set by -d")
    choice = choice_of(source, arguments.settings)
    config = fill(model_for(choice, arguments.settings), arguments.settings)
    return _play(_plan(choice, config), config)


def _play(plan: Plan, config: EvalConfig) -> int:
    telling = Telling(config.quiet, config.as_json, config.verbose, config.fail_under)
    if config.resume and (place := _to_resume(plan, config, telling.progress())) is not None:
        begun = partial(runs.resume, place)
        return foretold(runs.read_plan(place), config.as_json) if config.dry_run else told(begun, telling)
    if config.dry_run:
        return foretold(plan, config.as_json, clean=config.clean)
    return told(partial(runs.start, plan, clean=config.clean), telling)


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


def _plan(choice: Choice, config: EvalConfig) -> Plan:
    env = config.env  # type: ignore[attr-defined]  # the field that `model_for` adds
    agents = choice.env_type.config_type().agents
    return runs.plan_of(
        run=config.run.name or config.run.dir or _new_name(choice, config, agents),
        directory=config.run.dir,
        out=config.output_dir,
        **choice.source.planned,
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


def _new_name(choice: Choice, config: EvalConfig, agents: Sequence[str]) -> str:
    """`<env>+<taskset>--<model>--<harness>--<8 hex digits>`, of the first agent, the env unless it is the plain one."""
    first = getattr(config.env, agents[0])  # type: ignore[attr-defined]
    harness = first.harness.id if first.harness else choice.harness
    taskset = choice.source.name.rstrip("/").rpartition("/")[2].partition("@")[0].partition(":")[0].removesuffix(".py")
    env = taskset if choice.env == SINGLE_AGENT else f"{choice.env}+{taskset}"
    parts = [env, first.model or config.model, harness, secrets.token_hex(4)]
    return "--".join(_word(part) for part in parts if part)


def _word(text: str) -> str:
    return "".join(c if c.isalnum() or c in "+-._" else "-" for c in text)[:60]


def _help(words: Sequence[str], settings: Sequence[Setting]) -> str:
    source = source_named(words, settings, *_ID) or TaskSource()
    choice = choice_of(source, settings)
    shown = f"Flags with {source.name or 'a taskset'}, env {choice.env}:"
    return f"Usage: {USAGE}\n\n{ABOUT}\n\n{shown}\n\n{help_text(options_of(model_for(choice, settings), ALIASES))}"


def static_options() -> list[Option]:
    """The flags there are whatever is chosen: those of a single agent with the harness bash."""
    choice = Choice(TaskSource(), SINGLE_AGENT, DEFAULT_HARNESS)
    return list(options_of(model_for(choice, ()), ALIASES))
