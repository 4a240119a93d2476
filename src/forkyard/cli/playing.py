"""What follows once it is said what to play: the run is told of as it goes on, then how it ended; or only foretold."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

import forkyard.report as reports
import forkyard.run as runs
from forkyard.cli.output import complain, say
from forkyard.env import AgentConfig
from forkyard.run import Outcome, Plan, Progress
from forkyard.run.check import grouped
from forkyard.run.prepare import env_of
from forkyard.run.seats import agent_configs
from forkyard.sandbox.registry import DEFAULT_PROVIDER
from forkyard.values import counted, first_names, one_line, strict_json

ERRORED, BELOW = 2, 3


@dataclass(frozen=True, slots=True)
class Telling:
    """How a run is told of: not at all, by its report as JSON alone, in lines in place of the live view."""

    quiet: bool = False
    json: bool = False
    plain: bool = False
    fail_under: float | None = None

    def progress(self) -> Progress:
        """What tells how a run goes: nothing, a live view on a terminal, or lines."""
        stream = sys.stderr if self.json else sys.stdout
        if self.quiet:
            return Progress()
        if stream.isatty() and not self.plain:
            return runs.Live(Console(file=stream, highlight=False))
        return runs.Lines(stream)


def told(work: Callable[[Progress], Coroutine[Any, Any, Outcome]], telling: Telling) -> int:
    """Do the work and tell of it; the exit code."""
    outcome = asyncio.run(work(telling.progress()))
    if outcome.signal is not None:
        complain(f"interrupted{_left(outcome)}")
        return 128 + outcome.signal
    return 0 if outcome.directory is None else _reported(outcome, telling)


def foretold(plan: Plan, json: bool, *, clean: bool = False) -> int:
    """Check a plan and say what would be played. Raises ConfigError with every reason why it cannot be."""
    plan = asyncio.run(runs.check(plan, clean=clean))
    if json:
        say(plan.model_dump_json(indent=2))
        return 0
    env = env_of(plan)
    options = {key: value for key, value in plan.env_config.items() if key not in env.agents}
    at_once = plan.planned if plan.concurrent is None else min(plan.concurrent, plan.planned)
    rows = {
        "tasks": f"{len(plan.tasks)}: {first_names(list(plan.tasks))}",
        "env": f"{plan.env} {_written(options)}".rstrip(),
        **{name: _agent(config) for name, config in agent_configs(plan, env).items()},
        "to play": f"{counted(plan.planned, plan.unit)}, {plan.samples} of each task, {at_once} at once",
    }
    notes = grouped((note, name) for name, task in plan.tasks.items() for note in task.notes)
    return print_foretold(plan, rows, notes, "nothing is wrong, and nothing was played")


def print_foretold(plan: Plan, rows: Mapping[str, str], notes: Sequence[str], nothing: str) -> int:
    """Print what a plan would do: its run, these rows, its budget, the notes, and that `nothing` was done."""
    budget = {} if plan.budget_usd is None else {"budget": f"{plan.budget_usd:g} USD"}
    for name, value in {"run": f"{plan.run}, to be kept in {plan.place}", **rows, **budget}.items():
        say(f"{name:<10} {one_line(value)}")
    for note in notes:
        say(f"note: {note}")
    say(f"{nothing}; --json prints the whole plan")
    return 0


def _agent(config: AgentConfig) -> str:
    """`bash MODEL on local`, and what else is said of it."""
    assert config.harness is not None  # it inherits one
    who = f"{config.harness.id} {config.model or ''}".rstrip()
    said = config.model_dump(mode="json", exclude_defaults=True, exclude={"model": True, "harness": {"id"}})
    said.get("runtime", {}).pop("type", None)
    return f"{who} on {config.runtime.type or DEFAULT_PROVIDER} {_written(said)}".rstrip()


def _written(values: Mapping[str, Any]) -> str:
    said = {key: value for key, value in values.items() if value not in (None, {})}
    return strict_json(said) if said else ""


def _reported(outcome: Outcome, telling: Telling) -> int:
    assert outcome.directory is not None
    if outcome.stopped is not None:
        complain(f"stopped early, because every other rollout would fail as well: {outcome.stopped}{_left(outcome)}")
    elif not outcome.played and not telling.quiet and not telling.json:
        say(f"nothing to do: all {outcome.planned} {outcome.unit}s of {outcome.directory} are done")
    found = reports.report([outcome.directory])
    if telling.json:
        say(reports.to_json(found))
    elif not telling.quiet:
        say(reports.to_text(found))
    if outcome.stopped is not None or outcome.errored:
        return ERRORED
    if not any(group.overall.scored for group in _rewarded(found)):
        complain(f"nothing was scored ({counted(outcome.planned, outcome.unit)}); the reasons are in {found.files[0]}")
        return ERRORED
    return BELOW if telling.fail_under is not None and _below(found, telling.fail_under) else 0


def _rewarded(found: reports.Report) -> list[reports.Group]:
    """The groups of agents that earn rewards; judges and users beside them do not count."""
    return [group for group in found.groups if group.rewarded]


def _left(outcome: Outcome) -> str:
    """How much is on record and how to play the rest."""
    if outcome.directory is None:
        return " before anything started"
    left = outcome.planned - outcome.recorded
    command = outcome.resume_command + (" --budget-usd USD" if outcome.spent else "")
    if left:
        recorded = f"{outcome.recorded} of {outcome.planned} {outcome.unit}s are on record, {left} are not"
        return f"; {recorded}. Play the rest with: {command}"
    again = f". Play again what failed with: {command}" if outcome.spent or outcome.errored else ""
    return f"; all {outcome.planned} {outcome.unit}s are on record{again}"


def _below(found: reports.Report, threshold: float) -> bool:
    rows = [group.strict or group.overall for group in _rewarded(found)]  # what earned no reward earned 0 here
    means = [row.mean_reward for row in rows]
    below = not means or any(mean is None or mean < threshold for mean in means)
    if below:
        shown = ", ".join(reports.shown(mean) for mean in means) or "nothing was scored"
        complain(f"the mean reward is below --fail-under {threshold:g}: {shown}")
    return below
