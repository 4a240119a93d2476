"""The tables of rules on docs/tasks.md, made from the rules themselves: `python -m tests.support.rules_table`."""

from __future__ import annotations

from collections.abc import Callable

from forkyard.task.check import RULES, Rule


def tables() -> str:
    """Both: of what files show, and of what playing shows."""
    return (
        _table("found by reading", lambda rule: rule.look is not None)
        + "\n"
        + _table("found by playing", lambda rule: rule.look is None)
    )


def _table(head: str, wanted: Callable[[Rule], bool]) -> str:
    rows = [f"| `{rule.name}` | {rule.severity} | {_about(rule)} |\n" for rule in RULES.values() if wanted(rule)]
    return f"| {head} | severity | says |\n|---|---|---|\n" + "".join(sorted(rows))


def _about(rule: Rule) -> str:
    return " ".join(rule.about.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(tables(), end="")
