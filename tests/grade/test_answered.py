"""Verdicts for which a judge was asked: they count only if each judge answered in the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from forkyard.errors import JudgeError, ModelError
from forkyard.grade import settle_failure
from forkyard.grade.answered import check_answered
from forkyard.trace import ModelCall, Status, Trace


def good(model: str = "j") -> ModelCall:
    return ModelCall(model=model, purpose="judge", status_code=200)


def down(model: str = "j", status: int | None = None) -> ModelCall:
    return ModelCall(model=model, purpose="judge", status_code=status, error="it is down", fault="provider")


def refused(model: str = "j") -> ModelCall:
    return ModelCall(model=model, purpose="judge", error="no price", refused="no_price", fault="run")


def malformed() -> ModelCall:
    return ModelCall(model="j", purpose="judge", status_code=400, error="no such member")


def graded(calls: Sequence[ModelCall], **verifier: object) -> Trace:
    """A rollout that its verifier gave a 0 after these calls, as it is once grading has ended."""
    trace = Trace(verifier={"mode": "separate", "code": "scored", **verifier})
    trace.record_reward("reward", 0.0)
    trace.settle(Status.SCORED)
    try:
        check_answered(trace, calls)
    except (JudgeError, ModelError) as err:
        settle_failure(trace, err, acted=True)
    return trace


@pytest.mark.parametrize(
    ("calls", "status"),
    [
        ([], Status.SCORED),
        ([good()], Status.SCORED),
        ([down()], Status.INFRASTRUCTURE_ERROR),
        ([good(), down(status=503)], Status.INFRASTRUCTURE_ERROR),
        ([down(), down(status=429), good()], Status.SCORED),
        ([down("j"), good("another")], Status.INFRASTRUCTURE_ERROR),
        ([malformed()], Status.SCORED),
        ([good(), malformed()], Status.SCORED),
        ([down(), malformed()], Status.INFRASTRUCTURE_ERROR),
        ([refused()], Status.SCORING_ERROR),
        ([down("k"), refused("j")], Status.SCORING_ERROR),
        ([refused("j"), good("k")], Status.SCORING_ERROR),
    ],
    ids=[
        "nobody was asked",
        "it answered",
        "it was not reached",
        "the last time it failed",
        "asked again it answered",
        "another judge makes nothing good",
        "the request was none",
        "the last request was none",
        "a request that was none after it had failed",
        "no price",
        "one failed and one has no price",
        "an answer of another does not help",
    ],
)
def test_a_verdict_counts_if_each_judge_answered_in_the_end(calls: list[ModelCall], status: Status) -> None:
    trace = graded(calls)
    assert trace.status is status, trace.reason
    assert trace.reward == (0.0 if status is Status.SCORED else None)
    assert trace.verifier["code"] == ("scored" if status is Status.SCORED else "judge_unanswered")


def test_the_agents_own_calls_decide_nothing() -> None:
    assert graded([ModelCall(error="it is down", fault="provider")]).status is Status.SCORED


@pytest.mark.parametrize(
    ("left", "status"),
    [
        ({"left_running": False}, Status.INFRASTRUCTURE_ERROR),
        ({"left_running": True, "apart": True}, Status.INFRASTRUCTURE_ERROR),
        ({"left_running": True, "apart": False}, Status.SCORING_ERROR),
        ({}, Status.SCORING_ERROR),
    ],
    ids=["nothing was left", "it stands apart", "it is in reach", "nobody knows"],
)
def test_what_was_left_running_in_reach_of_the_verifier_earns_no_second_try(
    left: dict[str, object], status: Status
) -> None:
    assert graded([down()], mode="shared", **left).status is status


def test_a_budget_that_is_out_stays_what_it_is() -> None:
    trace = Trace(status=Status.BUDGET, reason="budget of 5 USD for this judge")
    check_answered(trace, [refused()])
    assert trace.status is Status.BUDGET
