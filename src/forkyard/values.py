"""Small values and pure functions every room may use."""

from __future__ import annotations

import difflib
import json
import math
import random
import re
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

MIB = 1 << 20
LARGEST = 1e12  # a number past this is damage, not a measurement; below it, sums and squares cannot overflow
_NAMES_SHOWN = 3
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_TERM = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(ns|us|µs|ms|s|m|h)")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds


def new_id() -> str:
    """A fresh identifier: 32 lower-case hex digits."""
    return uuid.uuid4().hex


def tail(text: str, limit: int) -> str:
    """The last `limit` characters of `text`."""
    return text if len(text) <= limit else text[-limit:]


def shown_end(text: str, lines: int = 12, chars: int = 1200) -> str:
    """The end of what a command printed as it is shown below a sentence: its last lines, indented, safe to print."""
    kept = printable(tail(text.strip(), chars)).expandtabs(4).splitlines()[-lines:]
    return "\n".join(f"    {line}".rstrip() for line in kept)


def number(value: Any) -> float | None:
    """A finite number of a sane size, or None: what a file of any origin holds may be anything."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return None
    return float(value)


def finite_or_none(value: Any) -> Any:
    """`value` with every NaN and infinity inside it replaced by None, so that it is strict JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite_or_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(item) for item in value]
    return value


def strict_json(value: Any) -> str:
    """One line of strict JSON: no NaN, no raw control characters, no lone surrogates, ASCII only."""
    return json.dumps(_whole_text(finite_or_none(value)), ensure_ascii=True, allow_nan=False, default=str)


def _whole_text(value: Any) -> Any:
    """`value` with half surrogate pairs (undecodable bytes, as Python carries them) replaced in every string."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_whole_text(key): _whole_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_text(item) for item in value]
    return value


def printable(text: str) -> str:
    """`text` with control characters escaped, safe to show on a terminal (newline and tab are kept)."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """`text` with everything escaped that could move a terminal's cursor, line ends and tabs too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def validation_problems(error: ValidationError, what: str = "") -> list[str]:
    """What pydantic found wrong, a sentence for each mistake: `what` was read, the place in it, and why."""
    problems = []
    for each in error.errors(include_url=False):
        place = what + ".".join(map(str, each["loc"]))
        said = each["msg"].removeprefix("Value error, ")
        problems.append(printable(f"{place.rstrip(': ')}: {said}" if place else said))
    return problems


def decimal(value: float) -> str:
    """A number with two decimals, halves going up whatever its nearest fraction of two is: "1.13" for 1.125."""
    cents = math.floor(abs(value) * 100 + 0.5)
    return f"{'-' if value < 0 and cents else ''}{cents / 100:.2f}"


def counted(number: int, noun: str) -> str:
    """ "1 rollout", "2 rollouts"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def first_names(names: Sequence[str]) -> str:
    """ "a, b, c and 4 more"."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The one of `known` that `name` was likely meant to be: as like as that at least, of 1."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


def duration(text: str, units: Sequence[str] = ("h", "m", "s")) -> float | None:
    """The seconds of "90s", "1.5h" or "1h30m", in those of the units ns, us, ms, s, m and h; None for else."""
    found = _TERM.findall(text)
    if not found or "".join(number + unit for number, unit in found) != text:
        return None
    if any(unit not in units for _, unit in found):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in found)


def backoff(failures: int) -> float:
    """Seconds to pause after so many failures in a row, from 1: doubled each time, to a bound, and spread by chance.

    Callers that failed together so do not return together.
    """
    return min(_FIRST_PAUSE * 2.0 ** min(failures - 1, 16), _LONGEST_PAUSE) * random.uniform(0.5, 1.5)
