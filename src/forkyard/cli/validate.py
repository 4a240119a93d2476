"""`forkyard validate`: are the tasks of a taskset sound?"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import Field, create_model

import forkyard.run as runs
from forkyard.cli.dotted import Setting, fill, help_text, last_value, options_of, read_arguments
from forkyard.cli.dotted.help import Option
from forkyard.cli.eval_config import FROM_SET, REGISTRY, runtime_with_options, source_named, taskset_values
from forkyard.cli.output import complain, say
from forkyard.env.config import Config, RuntimeChoice
from forkyard.errors import ConfigError
from forkyard.run import Check, Plan, Row
from forkyard.run.tasksets import TaskSource
from forkyard.run.validate import Reason
from forkyard.task import SelectConfig
from forkyard.values import counted, one_line, strict_json

USAGE = "forkyard validate TASKSET [FLAGS] [@ FILE]"
ABOUT = """Check the tasks of a taskset themselves, without a model.

gold: the task is set up and solved as its author means it to be (a task directory by its solution, which must earn the
full reward; a Python task by its own `validate`, which says so itself). noop: it is set up, left alone and graded, and
must not earn the full reward. A task that is neither has nothing to check.

Exit codes: 0 every task is valid, or has nothing to check; 1 wrong usage or configuration; 2 some are not valid."""
ALIASES = {
    "-d": "--set",
    "-n": "--select.limit",
    "-s": "--select.shuffle",
    "-c": "--max-concurrent",
    "-o": "--output-dir",
    "-q": "--quiet",
}
INVALID = 2


class Deadlines(Config):
    """In seconds, for each check."""

    setup: float | None = Field(None, gt=0, description="Seconds for the setup of a task.")
    total: float | None = Field(None, gt=0, description="Seconds for one check of a task.")


class ValidateConfig(Config):
    """Everything but `taskset` and `runtime`, whose keys depend on what is chosen."""

    from_set: str | None = FROM_SET
    registry: Path | None = REGISTRY
    select: SelectConfig = SelectConfig()
    timeout: Deadlines = Deadlines()
    max_concurrent: int | None = Field(128, ge=1, description="Tasks at work at once; null is no bound.")
    only_setup: bool = Field(False, description="Only set the tasks up.")
    only_gold: bool = Field(False, description="Only solve them.")
    only_noop: bool = Field(False, description="Only leave them alone.")
    base: str | None = Field(None, description="Start from this image (host: this machine's /usr) instead.")
    unbounded: bool = Field(
        False, description="Play tasks without those of their bounds that the provider cannot keep."
    )
    output_dir: Path | None = Field(None, description="Write results.jsonl and summary.json there.")
    as_json: bool = Field(False, alias="json", description="Print the summary as JSON and nothing else on stdout.")
    quiet: bool = Field(False, description="Print nothing but errors (and --json).")


SWITCHES = frozenset((name,) for name in ("only_setup", "only_gold", "only_noop", "unbounded", "json", "quiet")) | {
    ("select", "shuffle")
}


def validate(context: typer.Context) -> int:
    """Check the tasks of a taskset."""
    arguments = read_arguments(context.args, ALIASES, SWITCHES)
    source = source_named(arguments.words, arguments.settings)
    if not context.args or arguments.help:
        model = _model(source or TaskSource(), arguments.settings)
        say(f"Usage: {USAGE}\n\n{ABOUT}\n\n{help_text(options_of(model, ALIASES))}")
        return 0
    if source is None:
        raise ConfigError("name one TASKSET: a task directory, a directory of them, tasks.py, its id, or a set by -d")
    config = fill(_model(source, arguments.settings), arguments.settings)
    mode, checks = _mode(config)
    if config.output_dir is not None and config.output_dir.exists() and any(config.output_dir.iterdir()):
        raise ConfigError(f"{config.output_dir} is not empty: choose another --output-dir")
    work = runs.validate(
        _plan(source, config),
        checks,
        setup_seconds=config.timeout.setup,
        total_seconds=config.timeout.total,
        on_row=(lambda _: None) if config.quiet or config.as_json else (lambda row: say(_line(row))),
    )
    return _told(asyncio.run(work), mode, checks, config)


def _model(source: TaskSource, settings: Sequence[Setting]) -> type[ValidateConfig]:
    runtime = runtime_with_options(RuntimeChoice(), last_value(settings, "runtime", "type"))
    return create_model(
        "Validate",
        __base__=ValidateConfig,
        taskset=(source.config_type, Field(source.config_type())),
        runtime=(runtime, Field(runtime())),
    )


def _mode(config: ValidateConfig) -> tuple[str, tuple[Check, ...]]:
    only: list[Check] = []
    if config.only_setup:
        only.append("setup")
    if config.only_gold:
        only.append("gold")
    if config.only_noop:
        only.append("noop")
    if len(only) > 1:
        raise ConfigError(f"choose one of {', '.join(f'--only-{each}' for each in only)}, or none for gold and noop")
    return (only[0], (only[0],)) if only else ("full", ("gold", "noop"))


def _plan(source: TaskSource, config: Any) -> Plan:
    return runs.plan_of(
        run="validate",
        **source.planned,
        taskset_config=taskset_values(config.taskset),
        select=config.select.model_dump(mode="json", exclude_defaults=True),
        agent={"harness": "nop", "runtime": config.runtime.model_dump(exclude_unset=True)},
        base=config.base,
        unbounded=config.unbounded,
        concurrent=config.max_concurrent,
    )


def _told(rows: Sequence[Row], mode: str, checks: Sequence[Check], config: ValidateConfig) -> int:
    summary = _summary(rows, mode, checks)
    if config.output_dir is not None:
        config.output_dir.mkdir(parents=True, exist_ok=True)
        lines = "".join(strict_json(row.values(mode)) + "\n" for row in rows)
        (config.output_dir / "results.jsonl").write_text(lines)
        (config.output_dir / "summary.json").write_text(strict_json(summary) + "\n")
    if config.as_json:
        say(strict_json(summary))
    elif not config.quiet:
        outcomes = ", ".join(f"{count} {reason}" for reason, count in summary["outcomes"].items())
        say(f"{counted(len(rows), 'task')}: {outcomes}")
    bad = [row.name for row in rows if row.reason not in ("valid", "unchecked")]
    if bad and config.quiet:
        complain(f"not valid: {', '.join(bad)}")
    return INVALID if bad else 0


def _summary(rows: Sequence[Row], mode: str, checks: Sequence[Check]) -> dict[str, Any]:
    outcomes = Counter(row.reason for row in rows)
    return {
        "mode": mode,
        "total": len(rows),
        "recorded": len(rows),
        "terminal": len(rows),
        "owed": 0,
        "outcomes": _in_order(outcomes),
        "valid_rate": outcomes["valid"] / len(rows),
        "checks": {check: _in_order(Counter(row.checks[check].reason for row in rows)) for check in checks},
    }


def _in_order(reasons: Counter[Reason]) -> dict[Reason, int]:
    return {reason: reasons[reason] for reason in get_args(Reason) if reasons[reason]}


def _line(row: Row) -> str:
    worst = next(check for check in row.checks.values() if check.reason == row.reason)
    return f"{row.reason:<9}  {one_line(row.name)}" + (f": {one_line(worst.error)}" if worst.error else "")


def static_options() -> list[Option]:
    """The flags there are whatever is chosen."""
    return list(options_of(_model(TaskSource(), ()), ALIASES))
