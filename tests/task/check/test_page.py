"""What docs/tasks.md says of checks."""

from __future__ import annotations

from pathlib import Path

from tests.support.rules_table import tables

PAGE = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text()


def test_the_page_lists_the_rules_there_are() -> None:
    assert tables() in PAGE, "python -m tests.support.rules_table"
