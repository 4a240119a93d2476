"""docs/commands.md, made from the commands themselves: `python -m tests.support.commands_page > docs/commands.md`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import typer

from forkyard.cli import eval as evals
from forkyard.cli import replay, validate
from forkyard.cli.app import app

HEAD = """# Commands

Made from the commands themselves. Every command takes `-h`. Exit codes of `run`, `eval` and `resume`: 0 done, 1 usage
or configuration, 2 some rollouts ended in an infrastructure failure or in an error of
the env's own code, or nothing was scored, 3 a threshold was missed, 130 interrupted. What
`eval`, `validate` and `replay` take depends on what they are given; `-h` behind it shows all of it.
"""
DOTTED: dict[str, Any] = {"eval": evals, "replay": replay, "validate": validate}
"""The commands whose flags are the keys of a model."""


def page() -> str:
    """The whole page."""
    os.environ.pop("COLUMNS", None)
    return HEAD + "".join(_section("forkyard", typer.main.get_command(app)))


def _section(path: str, command: Any) -> list[str]:
    children = getattr(command, "commands", None)
    if children:
        return [part for name, child in children.items() for part in _section(f"{path} {name}", child)]
    if (dotted := DOTTED.get(command.name)) and path == f"forkyard {command.name}":
        rows = [(", ".join(one.flags), _about(one.about, one.default)) for one in dotted.static_options()]
        return _entry(path, dotted.USAGE, command.help, rows)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"]
    usage = " ".join([path, *(a.metavar or a.name.upper() for a in arguments), *(["[OPTIONS]"] if options else [])])
    return _entry(path, usage, command.help, [(", ".join(option.opts), option.help or "") for option in options])


def _entry(path: str, usage: str, about: str | None, rows: Sequence[tuple[str, str]]) -> list[str]:
    lines = [f"\n## {path}\n\n```\n{usage}\n```\n\n{_paragraphs(about)}\n"]
    if rows:
        lines.append("\n| option | meaning |\n|---|---|\n")
        lines += [f"| `{flags}` | {meaning.replace('|', chr(92) + '|')} |\n" for flags, meaning in rows]
    return lines


def _about(text: str, default: str) -> str:
    return f"{text} [{default}]".strip() if default else text


def _paragraphs(text: str | None) -> str:
    paragraphs = [" ".join(part.split()) for part in (text or "").split("\n\n")]
    return "\n\n".join(paragraphs)


if __name__ == "__main__":
    print(page(), end="")
