"""What a line has cost in all, and what is said of its reward and its status."""

from __future__ import annotations

from typing import Any

import pytest

from forkyard.trace import Status, is_full
from forkyard.trace.costs import total_cost
from forkyard.trace.store import was_graded


@pytest.mark.parametrize(
    ("record", "cost"),
    [
        ({"cost_usd": 1.0, "info": {"earlier_tries": [{"cost_usd": 5.0}]}}, 6.0),
        ({"cost_usd": 1.0, "info": {"earlier_attempts": [{"cost_usd": 2.0}], "earlier_tries": [{"cost_usd": 5}]}}, 8.0),
        ({"cost_usd": None, "info": {"earlier_tries": [{"cost_usd": 5.0}, {"cost_usd": None}]}}, 5.0),
        ({"cost_usd": None, "info": {}}, None),
        ({}, None),
        ({"cost_usd": "1", "info": {"earlier_tries": 3, "earlier_attempts": [7, {"cost_usd": 10**400}]}}, None),
    ],
)
def test_a_line_costs_what_the_tries_before_it_cost_too(record: dict[str, Any], cost: float | None) -> None:
    assert total_cost(record) == cost


def test_a_reward_is_full_that_misses_one_by_rounding_alone() -> None:
    assert [is_full(reward) for reward in (1.0, 0.1 * 3 + 0.7, 1 - 1e-10, 1.5)] == [True] * 4
    assert [is_full(reward) for reward in (None, 0.0, 0.999999)] == [False] * 3


def test_what_a_verifier_has_had_its_say_of_was_graded() -> None:
    graded = {Status.SCORED, Status.SCORING_ERROR, Status.INDETERMINATE}
    assert {status for status in Status if status.graded} == graded
    assert {status for status in Status if was_graded({"status": status.value})} == graded
    odd: tuple[Any, ...] = (None, "DONE", [])
    assert not any(was_graded({"status": status}) for status in odd) and not was_graded({})
