"""docs/harnesses.md against what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from forkyard.harness import HARNESSES, make_harness

PAGE = (Path(__file__).parents[2] / "docs" / "harnesses.md").read_text()
INSIDE = {name: harness for name, harness in HARNESSES.items() if harness.needs_endpoint}


def test_every_agent_cli_is_in_the_table_with_its_dialect() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| `[^`]+` of \w+ \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert dict(rows) == {name: harness.dialect for name, harness in INSIDE.items()}


def test_the_harnesses_outside_are_named() -> None:
    assert [name for name in HARNESSES if f"`{name}`" not in PAGE] == []


def test_the_command_lines_name_harnesses_with_options_they_take() -> None:
    commands = [shlex.split(line) for line in PAGE.splitlines() if line.startswith("forkyard run ")]
    assert {words[words.index("-a") + 1] for words in commands} == set(INSIDE)
    for words in commands:
        options = [words[at + 1].partition("=") for at, word in enumerate(words) if word == "--ak"]
        make_harness(words[words.index("-a") + 1], {key: value for key, _, value in options})
