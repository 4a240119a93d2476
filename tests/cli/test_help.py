"""What the lists of commands say of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from forkyard.cli import app as program
from tests.cli.forkyard import Forkyard

LONGEST = 65  # what a line of 80 columns has left beside the longest name


def _groups(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if commands := getattr(command, "commands", None):
        yield path, dict(commands)
        for name, each in commands.items():
            yield from _groups((*path, name), each)


def test_no_list_of_commands_cuts_a_sentence(forkyard: Forkyard) -> None:
    groups = dict(_groups((), typer.main.get_command(program.app)))
    for path, commands in groups.items():
        listed = forkyard(*path, "--help").stdout.partition("Commands:\n")[2].splitlines()
        said = dict(line.split(maxsplit=1) for line in listed)
        assert list(said) == list(commands)
        assert [text for text in said.values() if not text.endswith(".") or text.endswith("...")] == []
        assert all(len(text) <= LONGEST for text in said.values())
    known = {" ".join((*path, name)) for path, commands in groups.items() for name in commands}
    assert program._LISTED.keys() <= known
