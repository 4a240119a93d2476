"""The outcome table of rewards, section by section: what a verifier leaves, and what becomes of it."""

from __future__ import annotations

import pytest

from forkyard.task.directory.reward import judge_reward
from forkyard.trace import Status

Row = tuple[bytes | None, bytes | None, Status, float | None]
SCORED, ERROR, UNKNOWN = Status.SCORED, Status.SCORING_ERROR, Status.INDETERMINATE
TEXTS: dict[bytes, Row] = {
    **{
        text: (text, None, SCORED, value)
        for text, value in ((b"1", 1.0), (b"0", 0.0), (b"0.5\n", 0.5), (b" 0.25 ", 0.25), (b"1e-3", 0.001))
    },
    **{
        text: (text, None, ERROR, None)
        for text in (
            b"1_000",
            "１".encode(),
            b"\n",
            b"abc",
            b"1 2",
            b"True",
            b"0x1",
            b"\xff1",
            b"\xef\xbb\xbf1",
            b"nan",
            b"inf",
            b"-1",
            b"2",
        )
    },
    b"": (b"", None, UNKNOWN, None),
}
OBJECTS: dict[bytes, Row] = {
    **{
        text: (None, text, SCORED, value)
        for text, value in (
            (b'{"reward": 1}', 1.0),
            (b'{"score": 0.5}', 0.5),
            (b'{"a":0.5,"b":1}', None),
            (b'{"reward":1,"tests_passed":12,"tests_total":12}', 1.0),
        )
    },
    **{
        text: (None, text, ERROR, None)
        for text in (
            b'{"reward": true}',
            b'{"reward": "1"}',
            b'{"reward": null}',
            b'{"reward": [1]}',
            b'{"reward": {"a": 1}}',
            b'{"reward":1,"log":"ok"}',
            b'{"reward": NaN}',
            b'{"reward": Infinity}',
            b'{"reward": 1e309}',
            b'{"reward": 1.5}',
            b'{"reward": -0.5}',
            b"{}",
            b"[]",
            b"[1]",
            b"null",
            b'"1"',
            b"0.7",
            b"true",
            b'{"reward":1,"reward":0}',
            b'{"reward":0.1}{"reward":1}',
            b"{bad",
            b" ",
            b'\xef\xbb\xbf{"reward": 1}',
            b'{"reward": ' + b"9" * 30 + b"}",
            b'{"reward": 1, "big": ' + b"9" * 400 + b"}",
        )
    },
}
BOTH: dict[str, Row] = {
    "an empty json gives way": (b"1", b"", SCORED, 1.0),
    "a blank json does not": (b"1", b" ", ERROR, None),
    "nor a broken one": (b"1", b"{bad", ERROR, None),
    "nor one without numbers": (b"1", b"{}", ERROR, None),
    "the json counts": (b"0", b'{"reward":1}', SCORED, 1.0),
    "neither": (None, None, UNKNOWN, None),
    "both empty": (b"", b"", UNKNOWN, None),
}
ROWS = {
    **{f"text {key!r:.40}": row for key, row in TEXTS.items()},
    **{f"json {key!r:.40}": row for key, row in OBJECTS.items()},
}


@pytest.mark.parametrize(("text", "json", "status", "reward"), [*ROWS.values(), *BOTH.values()], ids=[*ROWS, *BOTH])
def test_every_row_of_the_table_has_its_outcome(
    text: bytes | None, json: bytes | None, status: Status, reward: float | None
) -> None:
    verdict = judge_reward(text, json)
    assert (verdict.status, verdict.primary) == (status, reward), verdict.reason
