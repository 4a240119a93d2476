"""A comparison as plain text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from forkyard.report.compare import Comparison, Pair, Side
from forkyard.report.same import Same
from forkyard.report.stats import LEVEL, Difference
from forkyard.report.summary import Row
from forkyard.report.table import aligned, name_shown, shown, who_of
from forkyard.values import counted, first_names, one_line, strict_json

COMPARISON_SCHEMA = 1
_HEAD = ("task", "A", "B", "B - A", "scored A", "scored B", "solved A", "solved B")


def comparison_text(found: Comparison) -> str:
    """The table of the tasks in common, the differences and the notes, safe to print."""
    table = aligned([_HEAD, *map(_cells, found.pairs)])
    blocks = [
        "\n".join(_heads(found)),
        "\n".join([*table, *_differences(found)]),
        "\n".join(map(one_line, found.notes)),
    ]
    return "\n\n".join(filter(None, blocks))


def comparison_json(found: Comparison) -> str:
    """A comparison as one line of strict JSON."""
    return strict_json(
        {
            "schema": COMPARISON_SCHEMA,
            "a": _side_values(found.a),
            "b": _side_values(found.b),
            "tasks": [_pair_values(pair) for pair in found.pairs],
            "mean_reward": _difference_values(found.reward),
            "pass@1": _difference_values(found.pass_at_1),
            "unscored_as_failures": _difference_values(found.strict),
            "better": found.better,
            "worse": found.worse,
            "sign_test_p": found.sign_p,
            "solved_only_by_a": found.solved_by_a,
            "solved_only_by_b": found.solved_by_b,
            "same_rollouts": _same_values(found.same),
            "notes": found.notes,
        }
    )


def _heads(found: Comparison) -> Iterator[str]:
    for name, side in (("A", found.a), ("B", found.b)):
        setting = f", {name_shown(side.group.setting)}" if side.group.setting else ""
        runs = first_names([name_shown(run) for run in side.group.runs])
        yield f"{name}: {name_shown(str(side.place))} (run {runs}, {who_of(side.group)}{setting})"


def _cells(pair: Pair) -> list[str]:
    scored = [f"{row.scored} of {row.rollouts}" for row in (pair.a, pair.b)]
    rewards = [shown(pair.a.mean_reward), shown(pair.b.mean_reward), _signed(pair.difference)]
    return [name_shown(pair.task), *rewards, *scored, str(pair.a.solved), str(pair.b.solved)]


def _differences(found: Comparison) -> Iterator[str]:
    level = len(found.pairs) - found.better - found.worse - sum(pair.difference is None for pair in found.pairs)
    yield (
        f"{counted(len(found.pairs), 'task')} in common: B earns more in {found.better}, less in {found.worse}, "
        f"the same in {level}" + ("" if found.sign_p is None else f" (sign test: p {found.sign_p:.2g})")
    )
    yield from _difference("mean_reward", found.reward)
    if found.pass_at_1 != found.reward:  # where rewards say how well and not just whether
        yield from _difference("pass@1", found.pass_at_1)
    yield from _difference("mean_reward with every rollout that has no reward counted as a failure", found.strict)
    for name, tasks in (("A", found.solved_by_a), ("B", found.solved_by_b)):
        if tasks:
            yield f"solved only by {name}: {first_names([name_shown(task) for task in tasks])}"
    yield _verdict(found)


def _difference(what: str, found: Difference | None) -> Iterator[str]:
    if found is None:
        return
    said = f"{what}: A {shown(found.a)}, B {shown(found.b)}, B - A {_signed(found.value)}"
    if found.interval is None or found.error is None:
        why = "a single task" if found.tasks == 1 else "the same in every task"
        yield f"{said} ({why}: no interval)"
        return
    low, high = _signed(found.interval.low), _signed(found.interval.high)
    yield (
        f"{said}, standard error {found.error:.2g}, 95% interval {low} to {high} "
        f"({found.interval.method} of {counted(found.tasks, 'task')}), p {found.p:.2g}"
    )


def _verdict(comparison: Comparison) -> str:
    found, sign_p = comparison.reward, comparison.sign_p
    if found is None:
        return "no task has a reward in both, so nothing is known of the difference"
    if found.tasks == 1:
        return "of one task nothing follows for others like it"
    better = "B" if found.value > 0 else "A"
    if found.interval is None:
        return _verdict_of_signs(found, better, sign_p)
    if found.interval.low > 0 or found.interval.high < 0:
        return f"{better} earns more on tasks like these: the interval does not hold 0"
    seen = f"a difference of {found.detectable:.2g} shows four times in five" if found.detectable else ""
    enough = f", and this one with about {found.tasks_needed} tasks" if found.tasks_needed else ""
    return f"no difference is shown; with as many tasks of this kind {seen}{enough}"


def _verdict_of_signs(found: Difference, better: str, sign_p: float | None) -> str:
    """Where every task has the same difference, there is no spread to make an interval of."""
    if sign_p is None:
        return "A and B earn the same in every task"
    if sign_p <= 1 - LEVEL:
        return f"{better} earns more on tasks like these: it does in all {found.tasks}"
    return (
        f"no difference is shown: {better} earns more in all {found.tasks} tasks, but it takes six to rule out chance"
    )


def _signed(value: float | None) -> str:
    text = shown(value)
    return text if value is None or text.startswith("-") or text == "0" else f"+{text}"


def _same_values(same: Same | None) -> dict[str, Any] | None:
    if same is None:
        return None
    changed = [{"rollout": name, "a": a, "b": b} for name, a, b in same.changed]
    return {"rollouts": len(same.rollouts), "changed": changed}


def _side_values(side: Side) -> dict[str, Any]:
    group = side.group
    return {
        "place": str(side.place),
        "runs": group.runs,
        "harness": group.harness,
        "model": group.model,
        "env": group.env,
        "agent": group.agent,
        "setting": group.setting,
        "rollouts": group.overall.rollouts,
        "statuses": group.statuses,
    }


def _pair_values(pair: Pair) -> dict[str, Any]:
    return {
        "task": pair.task,
        "digest": pair.a.digest,
        "a": _row_values(pair.a),
        "b": _row_values(pair.b),
        "difference": pair.difference,
    }


def _row_values(row: Row) -> dict[str, Any]:
    return {
        "rollouts": row.rollouts,
        "scored": row.scored,
        "solved": row.solved,
        "pass@1": row.pass_at_1,
        "mean_reward": row.mean_reward,
        "graded": row.mode,
    }


def _difference_values(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return asdict(found) | {"value": found.value, "detectable": found.detectable}
