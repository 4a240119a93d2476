"""Dotted flags of one table beside the options of a command: `forkyard run PATH --sampling.temperature 0.3`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import typer.core
from pydantic import BaseModel, Field, create_model

from forkyard.cli.dotted.arguments import Setting, read_arguments
from forkyard.cli.dotted.fill import fill

M = TypeVar("M", bound=BaseModel)
_NUMBER = re.compile(r"-(\d|\.\d)")


class WithTable(typer.core.TyperCommand):
    """A command that takes `--NAME.KEY VALUE` and `--NAME TABLE` as well, NAME being `table`; see `said_beside`."""

    table = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the table's flags out, and read the others as ever."""
        rest, own = split(args, self.table)
        ctx.meta[self.table] = own
        found: list[str] = super().parse_args(ctx, rest)
        return found


def said_beside(context: typer.Context, table: str, model: type[M]) -> M:
    """The table as it was told. Raises ConfigError with every mistake."""
    root = create_model("Beside", **{table: (model, Field(model()))})  # type: ignore[call-overload]
    found: M = getattr(fill(root, settings_beside(context, table)), table)
    return found


def settings_beside(context: typer.Context, table: str) -> tuple[Setting, ...]:
    """What was said of the table. Raises ConfigError for what cannot be read."""
    return read_arguments(context.meta.get(table, ())).settings


def split(words: Sequence[str], table: str) -> tuple[list[str], list[str]]:
    """The words that are not of the table, and those that are, each flag with its value."""
    rest: list[str] = []
    own: list[str] = []
    left = list(reversed(words))
    while left:
        word = left.pop()
        if word == "--":
            rest += [word, *reversed(left)]
            break
        name, equals, _ = word.partition("=")
        if name != f"--{table}" and not name.startswith(f"--{table}."):
            rest.append(word)
            continue
        own.append(word)
        if not equals and left and (not left[-1].startswith("-") or _NUMBER.match(left[-1])):
            own.append(left.pop())
    return rest, own
