"""What may be averaged with what: rollouts by one agent, under one setting, of tasks that were the same for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from forkyard.report.outcome import Outcome
from forkyard.values import first_names

Version = tuple[str | None, str | None]  # a task's digest and where it was graded
SHOWN = 5


@dataclass(slots=True)
class Alike:
    """Outcomes of which every task has one version. A rollout that ended before it was graded fits every mode."""

    setting: str
    versions: dict[str, Version] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)


def alike(outcomes: Iterable[Outcome], settings: Mapping[str, str], *, by_run: bool = False) -> list[Alike]:
    """The outcomes in sets, by harness, model, env and agent. A run stays whole: it joins the first set it fits into.

    `settings` says of a run under what conditions its agent worked. With `by_run` no two runs are in one set.
    """
    runs: dict[tuple[str, str, str, str, str], list[Alike]] = {}
    for item in outcomes:
        setting = settings.get(item.run, "")
        key = (item.env, item.agent, item.harness or "", item.model or "", item.run)
        parts = runs.setdefault(key, [])
        _join(parts, Alike(setting, {item.task: (item.digest, item.mode)}, [item]))
    found: dict[tuple[str, ...], list[Alike]] = {}
    for (*who, run), parts in runs.items():
        for part in parts:
            _join(found.setdefault((*who, run) if by_run else tuple(who), []), part)
    return [one for key in sorted(found) for one in found[key]]


def differences(sets: Sequence[Alike]) -> str | None:
    """Why there is more than one set, in a sentence; None when there is one."""
    if len(sets) < 2:
        return None
    of = [one.outcomes[0] for one in sets]
    settings = {one.setting or "the defaults" for one in sets}
    said = [_several("env", {item.env for item in of}), _several("agent", {item.agent for item in of})]
    said.append(_several("harness", {item.harness or "-" for item in of}))
    said.append(_several("model", {item.model or "-" for item in of}))
    said.append(f"setting ({' | '.join(sorted(settings)[:SHOWN])})" if len(settings) > 1 else "")
    versions: dict[str, set[Version]] = {}
    for one in sets:
        for task, version in one.versions.items():
            versions.setdefault(task, set()).add(version)
    changed = [task for task, seen in versions.items() if len({digest for digest, _ in seen}) > 1]
    said.append(f"the content of {first_names(sorted(changed))} (task_digest)" if changed else "")
    regraded = {task: modes for task, seen in versions.items() if len(modes := {mode for _, mode in seen if mode}) > 1}
    said.append(_several("grading mode", {mode for modes in regraded.values() for mode in modes if mode}))
    if not any(said):
        said.append(_several("run", {item.run for item in of}))
    return f"{len(sets)} tables, kept apart and never averaged: they differ in {'; in '.join(filter(None, said))}"


def _several(what: str, values: set[str]) -> str:
    return f"{what} ({first_names(sorted(values))})" if len(values) > 1 else ""


def _join(sets: list[Alike], part: Alike) -> None:
    """Add a part to the first of the sets that it fits into, or make it one more."""
    for one in sets:
        if one.setting == part.setting and _fits(one.versions, part.versions):
            for task, version in part.versions.items():
                held = one.versions.get(task)
                one.versions[task] = held if held and held[1] else version
            one.outcomes += part.outcomes
            return
    sets.append(part)


def _fits(versions: Mapping[str, Version], others: Mapping[str, Version]) -> bool:
    return all(_same(versions.get(task, version), version) for task, version in others.items())


def _same(one: Version, other: Version) -> bool:
    return one[0] == other[0] and (one[1] == other[1] or None in (one[1], other[1]))
