"""What a user is told of a model that fails again and again."""

from forkyard.run.waiting import Waiting
from forkyard.trace import Trace

PLACE = "http://127.0.0.1:8000/v1/chat/completions answered 500"


class At:
    """Notes taken of failures at the times a test names."""

    def __init__(self) -> None:
        self.now = 0.0
        self.notes: list[str] = []
        self.waiting = Waiting(self.notes.append, lambda: self.now)

    def fails(self, now: float, trace: Trace, why: str = f"{PLACE}: oops", pause: float = 0.0) -> list[str]:
        self.now = now
        self.waiting.failed(trace, why, pause)
        return self.notes


def test_a_hiccup_is_not_told_and_ten_seconds_of_failing_are() -> None:
    at, trace = At(), Trace()
    assert at.fails(0, trace) == at.fails(3, trace) == []
    assert at.fails(12, trace) == [f"waiting for the model: {PLACE}: oops (tried 3 times in 12 s)"]


def test_the_same_is_told_once_a_minute_for_all_rollouts_and_another_reason_at_once() -> None:
    at, traces = At(), [Trace(), Trace()]
    for now in range(0, 71, 5):
        for number, trace in enumerate(traces):
            at.fails(now, trace, f"{PLACE}: request {now}-{number}")
    assert len(at.notes) == 2
    assert len(at.fails(71, traces[0], "it cannot be reached: refused")) == 3


def test_a_long_pause_the_provider_asks_for_is_told_when_it_begins() -> None:
    at = At()
    assert at.fails(0, Trace(), f"{PLACE}: later", 60.0) == [
        f"waiting for the model: {PLACE}: later (tried once; it asks to be left alone for 60 s)"
    ]


def test_a_reply_in_between_begins_the_count_again() -> None:
    at, trace = At(), Trace()
    at.fails(0, trace)
    trace.steps = 1
    assert at.fails(30, trace) == []
    at.waiting.forget(trace)
    assert at.fails(60, trace) == []


def test_what_the_gateway_and_its_client_both_tell_is_said_and_counted_once() -> None:
    at, trace = At(), Trace()
    for now in (0, 5, 12):
        at.fails(now, trace, "http://127.0.0.1:8000/v1 answered 500: oops")
        at.fails(now, trace)
    assert at.notes == ["waiting for the model: http://127.0.0.1:8000/v1 answered 500: oops (tried 3 times in 12 s)"]
