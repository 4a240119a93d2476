from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError, model_validator

from forkyard.values import backoff, counted, duration, first_names, nearest, number, one_line, validation_problems


def test_one_line_escapes_line_ends() -> None:
    assert one_line("a\nb\tc\x1b") == "a\\nb\\tc\\x1b"


def test_nouns_follow_their_number() -> None:
    assert [counted(number, "line") for number in (0, 1, 2)] == ["0 lines", "1 line", "2 lines"]


def test_of_many_names_three_are_said() -> None:
    assert first_names(["a", "b", "c"]) == "a, b, c"
    assert first_names(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


def test_the_nearest_name_is_one_that_was_likely_meant() -> None:
    assert nearest("orcle", ["nop", "oracle"]) == "oracle"
    assert nearest("xyz", ["nop", "oracle"]) is None


def test_pauses_double_up_to_half_a_minute_and_are_spread() -> None:
    for failures, middle in [(1, 0.5), (2, 1), (3, 2), (6, 16), (7, 30), (10, 30), (10_000, 30)]:
        pauses = [backoff(failures) for _ in range(50)]
        assert all(0.5 * middle <= pause <= 1.5 * middle for pause in pauses) and len(set(pauses)) > 1


class Pair(BaseModel):
    low: int = 0
    high: int = 9

    @model_validator(mode="after")
    def _ordered(self) -> Pair:
        if self.low > self.high:
            raise ValueError("low \x1b[2J is above high")
        return self


@pytest.mark.parametrize(
    ("given", "what", "said"),
    [
        ({"low": "x"}, "pair ", "pair low: Input should be a valid integer, unable to parse string as an integer"),
        ({"low": 5, "high": 1}, "pair: ", "pair: low \\x1b[2J is above high"),
        ({"low": 5, "high": 1}, "", "low \\x1b[2J is above high"),
    ],
)
def test_what_a_model_refuses_is_a_sentence_also_of_the_whole(given: dict[str, object], what: str, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Pair.model_validate(given)
    assert validation_problems(caught.value, what) == [said]


def test_a_number_is_finite_and_of_a_sane_size() -> None:
    assert [number(value) for value in (3, -0.5)] == [3.0, -0.5]
    assert [number(value) for value in (True, "3", None, float("nan"), float("inf"), 10**400)] == [None] * 6


def test_a_duration_is_numbers_with_units_and_nothing_else() -> None:
    known = {"90s": 90, "30m": 1800, "1h30m": 5400, "1.5h": 5400, ".5m": 30, "0s": 0}
    assert {text: duration(text) for text in known} == known
    assert [duration(text) for text in ("", "1", "h", "-1h", "1h 2m", "1e9h", "1d", "500ms", "1h\n")] == [None] * 9
    assert duration("1s500ms", ("s", "ms")) == 1.5 and duration("10000000000ns", ("ns",)) == 10
