"""The reward law: what the files that a verifier left behind say, decided input by input.

The files are bytes chosen by whoever could write them. Nothing here raises, whatever they hold.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from forkyard.trace import Status
from forkyard.values import MIB

SIZE_LIMIT = 1 * MIB
KEY_LIMIT = 256  # metrics in one file
KEY_LENGTH_LIMIT = 256
SHOWN = 60  # characters of a file's content that a reason quotes

_BLANKS = b" \t\r\n\v\f"
_DECIMAL = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

_KINDS = {str: "text", bool: "true or false", type(None): "null", list: "a list", dict: "an object"}

Code = Literal[
    "scored",
    "scored_without_primary",
    "no_reward_file",
    "empty_reward_file",
    "refused_file",
    "not_utf8",
    "not_json",
    "duplicate_key",
    "not_an_object",
    "no_metrics",
    "bad_key",
    "not_a_number",
    "not_finite",
    "out_of_range",
    "rewritten_reward",
    "verifier_timeout",
    "verifier_not_run",
    "unusable_sandbox",
    "stage_not_scored",
]
"""Why a verdict is what it is, in one word; the last four are said before any file is read."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A reward file that is there and is not read: a link, a directory, a device, too large."""

    reason: str


RewardFile = bytes | Refused
"""What lies at the place of a reward file."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of the reward. `primary` is in [0, 1], or None; `metrics` are the other numbers."""

    status: Status
    code: Code
    reason: str | None = None
    primary: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class _Invalid(Exception):
    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def judge_reward(txt: RewardFile | None, json: RewardFile | None) -> Verdict:
    """The verdict on `reward.txt` and `reward.json`, each None when there is no such file."""
    if txt is None and json is None:
        return Verdict(Status.INDETERMINATE, "no_reward_file", "the verifier left neither reward.txt nor reward.json")
    if txt in (None, b"") and json in (None, b""):
        names = " and ".join(name for name, file in (("reward.txt", txt), ("reward.json", json)) if file is not None)
        return Verdict(Status.INDETERMINATE, "empty_reward_file", f"{names} holds 0 bytes: no reward was written")
    try:
        return (
            _from_text(_content("reward.txt", txt))
            if json in (None, b"")
            else _from_json(_content("reward.json", json))
        )
    except _Invalid as err:
        return Verdict(Status.SCORING_ERROR, err.code, str(err))


def _content(name: str, file: RewardFile | None) -> bytes:
    if isinstance(file, Refused):
        raise _Invalid("refused_file", f"{name} {file.reason}")
    if file is None or len(file) > SIZE_LIMIT:
        raise _Invalid("refused_file", f"{name} is larger than {SIZE_LIMIT} bytes")
    return file


def _from_text(data: bytes) -> Verdict:
    text = data.strip(_BLANKS)
    if not _DECIMAL.fullmatch(text):
        raise _Invalid("not_a_number", f"reward.txt holds {_shown(data)}, not one decimal number")
    return Verdict(Status.SCORED, "scored", primary=_primary("reward.txt", float(text)))


def _from_json(data: bytes) -> Verdict:
    metrics = {name: _number(name, value) for name, value in _object(data).items()}
    name = "reward" if "reward" in metrics else next(iter(metrics))
    if name != "reward" and len(metrics) > 1:
        reason = "reward.json holds several metrics and none is called reward: there is no primary reward"
        return Verdict(Status.SCORED, "scored_without_primary", reason, metrics=metrics)
    primary = _primary(f"{name!r} of reward.json", metrics.pop(name))
    return Verdict(Status.SCORED, "scored", primary=primary, metrics=metrics)


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_int=float, parse_constant=_constant)
    except UnicodeDecodeError:
        raise _Invalid("not_utf8", f"reward.json holds {_shown(data)}, which is not UTF-8") from None
    except (ValueError, RecursionError) as err:
        raise _Invalid("not_json", f"reward.json holds {_shown(data)}, which is not JSON: {err}") from None
    if not isinstance(value, dict):
        raise _Invalid("not_an_object", f"reward.json holds {_shown(data)}, not an object of named numbers")
    if not value:
        raise _Invalid("no_metrics", "reward.json holds an object without a number")
    if len(value) > KEY_LIMIT:
        raise _Invalid("bad_key", f"reward.json holds {len(value)} metrics, more than {KEY_LIMIT}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if not key or len(key) > KEY_LENGTH_LIMIT or not key.isprintable():
            raise _Invalid("bad_key", f"reward.json has the key {_shown(key.encode('utf-8', 'replace'))}, not a name")
        if key in seen:
            raise _Invalid("duplicate_key", f"reward.json holds the key {key!r} twice")
        seen[key] = value
    return seen


def _constant(word: str) -> float:
    raise _Invalid("not_finite", f"reward.json holds {word}, not a finite number")


def _number(name: str, value: Any) -> float:
    if not isinstance(value, float):  # integers were read as floats; True would pass for an int
        raise _Invalid("not_a_number", f"{name!r} of reward.json is {_KINDS[type(value)]}, not a number")
    if not math.isfinite(value):
        raise _Invalid("not_finite", f"{name!r} of reward.json does not fit into a finite number")
    return value


def _primary(what: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise _Invalid("out_of_range", f"{what} is {value}, outside [0, 1]")
    return abs(value)  # -0.0 is 0


def _shown(data: bytes) -> str:
    return repr(data[:SHOWN].decode("utf-8", "replace")) + ("..." if len(data) > SHOWN else "")
