"""A run that takes its rollouts from another one, which is not touched: it scores them again, or grades them.

What may be done with a run depends on how it came about: that is decided here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from forkyard.env import IsolatedVerifierEnv, SingleAgentEnv
from forkyard.errors import ConfigError
from forkyard.run.directory import place_problems
from forkyard.run.plan import Plan, plan_of, read_plan
from forkyard.trace import Trace
from forkyard.values import counted, first_names

Action = Literal["replay", "regrade"]
Deed = Literal["replay", "regrade", "resume"]
# All may be done with a run that was played. Disks and artifacts lie under the ids of its lines, which others have not.
_MAY_BE: Mapping[Action, frozenset[Deed]] = {
    "regrade": frozenset(("replay", "resume")),
    "replay": frozenset(("replay",)),
}
_CAME_BY: Mapping[Action, str] = {"replay": "holds scores of", "regrade": "was graded again from"}
_PLAYED_ALONE = (SingleAgentEnv.id, IsolatedVerifierEnv.id)
_DONE = {"replay": "replayed", "regrade": "graded again"}
_OF_THE_AGENT = frozenset({"harness", "model"})  # kinds of errors
_NAME_KEPT = 150  # characters of the source's name


def derived(action: Action, source: Path, run: str | None, out: Path, **others: Any) -> tuple[Plan, Plan]:
    """The plan of the run in `source`, and of the new one, without its tasks; `others` are fields of that.

    Raises ConfigError for a run that has no such successor, for fields that are not what they may be, and when the new
    run cannot have its directory.
    """
    before = read_plan(source)
    check_may(action, source, before)
    if not can_follow(before):
        raise ConfigError(
            f"run {before.run} was played by the env {before.env}, whose agents' traces are scored together: only runs "
            f"of {' and '.join(_PLAYED_ALONE)} can be {_DONE[action]}"
        )
    kept = before.model_dump(exclude={"created", "forkyard"})
    name = run if run is not None else f"{before.run[:_NAME_KEPT]}--{action}--{secrets.token_hex(4)}"
    fresh = {"run": name, "out": out, "directory": None, "disk": None, "tasks": {}}
    plan = plan_of(**{**kept, **fresh, "source": source.absolute(), "action": action, **others})
    if problems := place_problems(plan):
        raise ConfigError(*problems)
    return before, plan


def check_may(deed: Deed, place: Path, plan: Plan) -> None:
    """Raises ConfigError when the run in `place` is none that this may be done with, and says with which it may."""
    if plan.action is None or deed in _MAY_BE[plan.action]:
        return
    came = f"{place} {_CAME_BY[plan.action]} {plan.source}"
    if deed == "resume":
        raise ConfigError(f"{came}, not a run of its own: replay that again")
    raise ConfigError(f"{came}: grade {_played(plan)} again, where what its agents left is kept")


def _played(plan: Plan) -> Path | None:
    """Where the rollouts of a derived run were played, as far back as the runs between are still there."""
    place, seen = plan.source, set[Path]()
    with suppress(ConfigError):
        while place is not None and place not in seen and (source := read_plan(place).source):
            seen.add(place)
            place = source
    return place


def can_follow(plan: Plan) -> bool:
    """Whether a run may be taken for the source of another: one rollout is one episode in it."""
    return plan.env in _PLAYED_ALONE


def changes(plan: Plan, before: Plan) -> Iterator[str]:
    """Which tasks are no longer what they were, if any."""
    changed = [name for name, task in plan.tasks.items() if before.tasks[name].digest != task.digest]
    if changed:
        yield f"changed since run {before.run}: {counted(len(changed), 'task')}: {first_names(changed)}"


def leave_grading_out(trace: Trace) -> None:
    """Take from a trace what went wrong in its grading; what went wrong before stays."""
    trace.errors = [error for error in trace.errors if error["type"] in _OF_THE_AGENT]
    trace.is_timeout = trace.stop_condition in ("agent_timeout", "finalize_timeout")
