"""`forkyard replay`: the traces of a run scored again, without sandboxes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer
from pydantic import Field, create_model

import forkyard.run as runs
from forkyard.cli.dotted import fill, help_text, options_of, read_arguments
from forkyard.cli.dotted.help import Option
from forkyard.cli.eval_config import taskset_values
from forkyard.cli.output import say
from forkyard.cli.playing import Telling, told
from forkyard.env.config import Config
from forkyard.errors import ConfigError
from forkyard.run.tasksets import sources_of
from forkyard.task import TasksetConfig

USAGE = "forkyard replay RUN_DIR [FLAGS] [@ FILE]"
ABOUT = """Score the traces of a run again, by those rewards, metrics and judges that need no sandbox, as they are now.

The run is not touched: a new one is written, whose plan names it as its source. What needs a sandbox keeps its value,
and rollouts that were never graded go over as they are. --taskset.task.* changes what tasks are scored by."""
ALIASES = {"-o": "--output-dir", "-q": "--quiet"}


class ReplayConfig(Config):
    """Everything but `taskset`, whose keys depend on the run."""

    output_dir: Path = Field(Path("runs"), description="The directory that run directories go into.")
    name: str | None = Field(None, description="The new run's name. [RUN--replay--8 hex digits]")
    as_json: bool = Field(False, alias="json", description="Print the report as JSON and nothing else on stdout.")
    quiet: bool = Field(False, description="Print nothing but errors (and --json).")


def _model(taskset: type[TasksetConfig]) -> type[ReplayConfig]:
    return create_model("Replay", __base__=ReplayConfig, taskset=(taskset, Field(taskset())))


def replay(context: typer.Context) -> int:
    """Score the traces of a run again."""
    arguments = read_arguments(context.args, ALIASES, {("json",), ("quiet",)})
    if not context.args or arguments.help:
        say(f"Usage: {USAGE}\n\n{ABOUT}\n\n{help_text(static_options())}")
        return 0
    if len(arguments.words) != 1:
        raise ConfigError("name one run's directory to replay")
    source = Path(arguments.words[0])
    plan = runs.read_plan(source)
    config = fill(_model(_taskset(sources_of(plan))), arguments.settings)
    said = any(setting.key[0] == "taskset" for setting in arguments.settings)
    wanted = runs.Replay(
        source=source,
        out=config.output_dir,
        run=config.name,
        taskset_config=taskset_values(config.taskset) if said else None,  # type: ignore[attr-defined]
    )
    return told(partial(runs.replay, wanted), Telling(config.quiet, config.as_json, plain=True))


def _taskset(sources: Sequence[Any]) -> type[TasksetConfig]:
    found: type[TasksetConfig] = sources[0].config_type
    return found


def static_options() -> list[Option]:
    """The flags there are whatever the run is."""
    return list(options_of(_model(TasksetConfig), ALIASES))
