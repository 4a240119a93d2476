"""What `forkyard tasks check` does: reads task directories, plays them, and tells what it found."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkyard.cli.output import complain, say
from forkyard.errors import ConfigError
from forkyard.run.soundness import Conditions, play_task
from forkyard.task.check import Finding, chosen_rules
from forkyard.task.check.check import check_directory, in_order, named_directories
from forkyard.values import counted, one_line, strict_json

FOUND, UNCHECKED = 1, 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for: rules, as they were written, and where and how often to play, if at all.

    `asking` are the fields of a plan that say where and how verifiers ask models.
    """

    select: tuple[str, ...]
    ignore: tuple[str, ...]
    static: bool
    repeat: int
    provider: str
    base: str | None
    asking: Mapping[str, Any]


def check_tasks(paths: Sequence[Path], wanted: Wanted, as_json: bool) -> int:
    """Check the tasks at `paths` and say what was found; the exit code."""
    try:
        rules = chosen_rules(_names(wanted.select), _names(wanted.ignore))
        roots = [root for path in paths for root in named_directories(path)]
    except ConfigError as err:
        complain(*err.problems)
        return UNCHECKED
    findings = [found for root in roots for found in check_directory(root, rules)]
    problems: list[str] = []
    signal = None
    if not wanted.static and any(rule.look is None for rule in rules.values()):
        conditions = Conditions(wanted.provider, wanted.base, wanted.repeat, wanted.asking)
        played, problems, signal = asyncio.run(_play(roots, conditions))
        findings += [found for found in played if found.rule in rules]
    _tell(in_order(findings), len(roots), as_json)
    complain(*dict.fromkeys(problems))
    if signal is not None:
        return 128 + signal
    return UNCHECKED if problems else FOUND if any(found.counts for found in findings) else 0


async def _play(roots: Sequence[Path], conditions: Conditions) -> tuple[list[Finding], list[str], int | None]:
    """Play the tasks that can be loaded, one after the other."""
    findings: list[Finding] = []
    problems: list[str] = []
    unplayable = chosen_rules(
        ("invalid-task-config", "unknown-config-field", "invalid-task-files", "invalid-dockerfile")
    )
    for root in roots:
        if check_directory(root, unplayable):
            continue  # what keeps it from being loaded is a finding by itself
        found = await play_task(root, conditions)
        findings += found.findings
        problems += [problem if str(root) in problem else f"{root}: {problem}" for problem in found.problems]
        if found.signal is not None:
            return findings, problems, found.signal
    return findings, problems, None


def _names(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for text in given for name in text.split(",") if name.strip())


def _tell(findings: Sequence[Finding], tasks: int, as_json: bool) -> None:
    if as_json:
        say(strict_json([found.values() for found in findings]))
        return
    for found in findings:
        say(one_line(str(found)))
        if found.output:
            say(found.output)
    counts = [
        counted(number, noun)
        for noun in ("error", "warning", "note")
        if (number := sum(found.severity == noun for found in findings))
    ]
    say(f"{counted(tasks, 'task')}: {', '.join(counts) or 'nothing found'}")
