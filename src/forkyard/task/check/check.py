"""Looking at a task directory with every rule that is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.task.check.finding import Finding
from forkyard.task.check.registry import RULES, Rule
from forkyard.task.check.subject import Subject
from forkyard.task.directory.load import require_directory, task_directories
from forkyard.values import nearest


def chosen_rules(select: Sequence[str] = (), ignore: Sequence[str] = ()) -> dict[str, Rule]:
    """The rules in `select`, all when it is empty, without those in `ignore`. Raises ConfigError for an unknown one."""
    for name in (*select, *ignore):
        if name not in RULES:
            near = nearest(name, RULES)
            raise ConfigError(
                f"{name!r} is not a rule; " + (f"did you mean {near}?" if near else f"they are {', '.join(RULES)}")
            )
    return {name: rule for name, rule in RULES.items() if (not select or name in select) and name not in ignore}


def named_directories(path: Path) -> list[Path]:
    """The task directory at `path`, or those in the directory at `path`. Raises ConfigError when there is none."""
    require_directory(path, "a task directory or a directory of them")
    found = task_directories(path)
    if not found:
        raise ConfigError(f"{path} holds no task: no directory in it has a task.toml")
    return found


def check_directory(root: Path, rules: Mapping[str, Rule] = RULES) -> list[Finding]:
    """What the rules find in the files of the task at `root`, by place."""
    subject = Subject(root)
    found = [
        rule.finding(str(root), spot) for rule in rules.values() if rule.look is not None for spot in rule.look(subject)
    ]
    return in_order(found)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Findings by place, each once."""
    return sorted(dict.fromkeys(findings), key=lambda each: (each.path, each.line or 0, each.column or 0, each.rule))
