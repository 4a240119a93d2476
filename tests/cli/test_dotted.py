"""Dotted flags and files onto a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from forkyard.cli.dotted import fill, help_text, last_value, options_of, read_arguments
from forkyard.errors import ConfigError


class Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Harness(Table):
    model_config = ConfigDict(extra="allow")
    id: str = "bash"


class Seat(Table):
    harness: Harness = Harness()
    max_turns: int | None = Field(None, ge=1, description="Replies it may take.")
    temperature: float | None = None
    effort: str | None = None


class Choice(Table):
    idx: tuple[int | str, ...] = ()
    shuffle: bool = False
    weights: dict[str, float] = {}


class Settings(Table):
    model: str | None = None
    kind: Literal["one", "two"] = "one"
    rollouts: int = 1
    out: Path = Path("runs")
    select: Choice = Choice()
    agent: Seat = Seat(max_turns=9)
    judge: Seat | None = None
    free: Any = None
    resume: bool = False


ALIASES = {"-m": "--model", "-r": "--rollouts", "-s": "--select.shuffle", "--group-size": "--rollouts"}


def read(*words: str) -> Settings:
    arguments = read_arguments(words, ALIASES, {("select", "shuffle"), ("resume",)})
    return fill(Settings, arguments.settings)


def problems(*words: str) -> list[str]:
    with pytest.raises(ConfigError) as told:
        read(*words)
    return list(told.value.problems)


def test_flags_become_values_of_their_types() -> None:
    given = read("--agent.max-turns", "4", "--agent.temperature=0.5", "--kind", "two", "--out", "a/b", "-m", "x")
    assert given.agent == Seat(max_turns=4, temperature=0.5)
    assert (given.kind, given.out, given.model) == ("two", Path("a/b"), "x")


@pytest.mark.parametrize("words", [("-r", "3"), ("-r3",), ("-r=3",), ("--rollouts", "3"), ("--group-size=3",)])
def test_aliases_name_the_same_key(words: tuple[str, ...]) -> None:
    assert read(*words).rollouts == 3


def test_lists_and_tables_are_json() -> None:
    given = read("--select.idx", '[1, "2:9"]', "--select.weights", '{"a": 1}', "--agent", '{"max-turns": 3}')
    assert given.select.idx == (1, "2:9") and given.select.weights == {"a": 1.0} and given.agent.max_turns == 3


def test_a_key_below_a_mapping_is_kept_as_it_is() -> None:
    assert read("--select.weights.a_b", "2").select.weights == {"a_b": 2.0}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("-s",), True),
        (("--select.shuffle", "--rollouts", "2"), True),
        (("--select.shuffle", "true"), True),
        (("--select.shuffle", "false"), False),
        (("--select.shuffle=false",), False),
        (("-s", "--select.no-shuffle"), False),
        (("-s", "--no-select.shuffle"), False),
        (("--select.no-shuffle", "-s"), True),
    ],
)
def test_switches(words: tuple[str, ...], value: bool) -> None:
    assert read(*words).select.shuffle is value


def test_a_word_after_a_switch_is_a_word() -> None:
    arguments = read_arguments(["--resume", "tasks", "-r", "2"], ALIASES, {("resume",)})
    assert arguments.words == ("tasks",)
    assert fill(Settings, arguments.settings).resume


def test_null_is_nothing_where_nothing_is_allowed() -> None:
    assert read("--agent.max-turns", "null").agent.max_turns is None
    assert read("--agent.effort", "none").agent.effort == "none"
    assert "--rollouts" in problems("--rollouts", "null")[0]


def test_negative_numbers_are_values() -> None:
    assert read("--agent.temperature", "-0.5").agent.temperature == -0.5


def test_a_word_in_place_of_a_table_is_its_name() -> None:
    assert read("--agent.harness", "codex", "--agent.harness.model", "4").agent.harness.model_dump() == {
        "id": "codex",
        "model": 4,
    }


def test_null_is_a_name_where_a_word_stands_for_a_table_by_its_name() -> None:
    assert read("--agent.harness", "null").agent.harness.id == "null"
    assert read("--agent.harness=null", "--agent.harness.model", "4").agent.harness.model == 4  # type: ignore[attr-defined]
    assert read("--judge", "null").judge is None  # no word stands for this one
    assert problems("--agent.harness")[0] == "--agent.harness: a value is missing"


def test_what_takes_any_value_takes_json_or_text() -> None:
    assert read("--free", "[1]").free == [1]
    assert read("--free", "a b").free == "a b"


def test_files_are_below_flags_and_above_earlier_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.json"
    first.write_text('model = "x"\nrollouts = 2\n[agent]\nmax-turns = 5\n[agent.harness]\nid = "nop"\nfast = true\n')
    second.write_text(json.dumps({"rollouts": 3, "judge": {"max_turns": 1}}))
    given = read("--agent.max-turns", "6", "@", str(first), f"@{second}")
    assert (given.model, given.rollouts, given.agent.max_turns) == ("x", 3, 6)
    assert given.agent.harness.model_dump() == {"id": "nop", "fast": True}
    assert given.judge == Seat(max_turns=1)


def test_every_mistake_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text('rollouts = "many"\n\n[agent]\nmax_turn = 3\nmax_turns = 0\n')
    other = tmp_path / "e.json"
    other.write_text('{\n  "agent": {\n    "temperatur": 1\n  }\n}\n')
    said = problems(
        "--kind",
        "three",
        "--modle",
        "x",
        "--select.weights",
        "1,2",
        "--select.idx",
        "1",
        f"@{file}",
        f"@{other}",
        "--free",
    )
    assert said == [
        f"{file}, line 4: agent.max_turn: there is no such option; did you mean --agent.max-turns?",
        f"{other}, line 3: agent.temperatur: there is no such option; did you mean --agent.temperature?",
        "--modle: there is no such option; did you mean --model?",
        "--select.weights: '1,2' is to be JSON, and is not: Extra data: line 1 column 2 (char 1)",
        "--free: a value is missing",
        "--kind: input should be 'one' or 'two', not 'three'",
        f"{file}, line 1: rollouts: input should be a valid integer, unable to parse string as an integer, not 'many'",
        "--select.idx: should be a list, as '[\"a\", \"b\"]', not '1'",
        f"{file}, line 5: agent.max_turns: input should be greater than or equal to 1, not 0",
    ]


def test_an_option_at_the_wrong_place_is_pointed_to_its_own() -> None:
    assert problems("--max-turns", "3") == [
        "--max-turns: there is no such option; did you mean --agent.max-turns or --judge.max-turns?"
    ]
    assert problems("--rollouts.x", "3") == ["--rollouts.x: --rollouts is one value and has no x"]
    assert problems("--select.zzzz", "3") == [
        "--select.zzzz: there is no such option in --select; known are --select.idx, --select.shuffle, --select.weights"
    ]


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("a = \n")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "x.yaml").write_text("")
    said = problems("@", str(tmp_path / "no.toml"), *(f"@{tmp_path / name}" for name in ("bad.toml", "list.json")))
    assert len(said) == 3 and "cannot be read" in said[0] and "is not TOML" in said[1] and "object" in said[2]
    assert "is called .toml or .json" in problems(f"@{tmp_path / 'x.yaml'}")[0]
    assert problems("@") == ["@: name the file after it, as @ eval.toml"]


def test_the_last_value_of_a_key_is_found_before_there_is_a_model() -> None:
    settings = read_arguments(["--env.id", "a", "--env", '{"id": "b"}', "--env.agent.harness", "nop"]).settings
    assert last_value(settings, "env", "id") == "b"
    assert last_value(settings, "env", "agent", "harness", "id") == "nop"
    assert last_value(settings, "env", "judge", "id") is None


def test_help_is_made_from_the_types() -> None:
    text = help_text(options_of(Settings, ALIASES))
    assert "-m, --model TEXT" in text
    assert "--kind one|two" in text and "[one]" in text
    assert "--agent.max-turns N" in text and "Replies it may take. [9]" in text
    assert "--select.idx JSON" in text
    assert "-s, --select.shuffle\n" in text
