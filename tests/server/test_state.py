"""Rows that survive the process, shared by several."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from forkyard.server.state import State, TakenError


class Thing(BaseModel):
    text: str


def test_rows_are_found_by_id_and_by_name_and_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    state = State(path)
    table = state.table("things", Thing)
    table.add("1", Thing(text="one"), name="first")
    table.add("2", Thing(text="two"))
    table.add("3", Thing(text="three"))
    assert table.set("2", Thing(text="zwei")) and not table.set("9", Thing(text="?"))
    state.close()
    again = State(path)
    table = again.table("things", Thing)
    assert table.named("first") == table.get("1") == Thing(text="one")
    assert [row.text for row in table.list()] == ["one", "zwei", "three"]
    assert [row.text for row in table.list("1", 1)] == ["zwei"]
    assert [row.text for row in table.list("3", newest_first=True)] == ["zwei", "one"]
    assert table.list("gone") == []
    assert table.delete("2") and not table.delete("2")
    again.close()


def test_ids_and_names_are_given_once(tmp_path: Path) -> None:
    state = State(tmp_path / "state.sqlite")
    table = state.table("things", Thing)
    table.add("1", Thing(text="one"), name="first")
    for id, name in (("1", "other"), ("2", "first")):
        with pytest.raises(TakenError):
            table.add(id, Thing(text="x"), name=name)
    assert [row.text for row in table.list()] == ["one"]
    state.close()


def test_a_transaction_is_whole_or_not_at_all(tmp_path: Path) -> None:
    state = State(tmp_path / "state.sqlite")
    table = state.table("things", Thing)
    with pytest.raises(TakenError), state.transaction():
        table.add("1", Thing(text="one"))
        table.add("1", Thing(text="again"))
    assert table.list() == []
    state.close()


def test_the_oldest_go_when_only_the_newest_are_kept(tmp_path: Path) -> None:
    state = State(tmp_path / "state.sqlite")
    table = state.table("things", Thing)
    for number in range(10):
        table.add(str(number), Thing(text=str(number)))
    table.keep_newest(3)
    assert [row.text for row in table.list()] == ["7", "8", "9"]
    state.close()
