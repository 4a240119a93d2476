"""The patterns of `${name#pattern}` and its like, matched in a time that no pattern can blow up.

A pattern is pieces of fixed length with `*` between them. The first place at which a piece can stand is as good as
any later one, since `*` takes whatever is left: so nothing is ever tried twice, as a regular expression would.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forkyard.image.problem import Problem

_LONGEST_PATTERN = 256


def without_prefix(value: str, pattern: str, *, longest: bool) -> str:
    """The value without the shortest or longest beginning that matches. Raises Problem."""
    end = _end(_pieces(pattern), value, longest)
    return value if end is None else value[end:]


def without_suffix(value: str, pattern: str, *, longest: bool) -> str:
    """The value without the shortest or longest end that matches. Raises Problem."""
    backwards = [piece[::-1] for piece in reversed(_pieces(pattern))]
    end = _end(backwards, value[::-1], longest)
    return value if end is None else value[: len(value) - end]


def replaced(value: str, pattern: str, new: str, *, every: bool, most: int) -> str:
    """The value with the first match, or every one, replaced. Raises Problem for a result longer than `most`."""
    done, length, at = [], 0, 0
    for start, end in _matches(_pieces(pattern), value):
        done += [value[at:start], new]
        length += start - at + len(new)
        at = end
        if length > most:
            raise Problem(f"${{...}} comes to more than {most} characters")
        if not every:
            break
    return "".join([*done, value[at:]])


_Piece = list[str]  # a regular expression for each character


def _pieces(pattern: str) -> list[_Piece]:
    """What stands between the `*` of a pattern; a backslash makes the next character an ordinary one."""
    if len(pattern) > _LONGEST_PATTERN:
        raise Problem(f"a pattern in ${{...}} may have {_LONGEST_PATTERN} characters, not {len(pattern)}")
    pieces: list[_Piece] = [[]]
    for escaped, char in re.findall(r"(\\?)(.)", pattern, re.DOTALL):
        if char == "*" and not escaped:
            pieces.append([])
        else:
            pieces[-1].append("." if char == "?" and not escaped else re.escape(char))
    return pieces


def _end(pieces: list[_Piece], value: str, longest: bool) -> int | None:
    """Where the shortest or longest match ends that begins with the value."""
    first = _compiled(pieces[0]).match(value)
    return None if first is None else _rest(pieces, value, first.end(), longest)


def _rest(pieces: list[_Piece], value: str, at: int, longest: bool) -> int | None:
    """Where a match ends whose first piece ends at `at`."""
    for number, piece in enumerate(pieces[1:], 2):
        if longest and number == len(pieces):
            found = _compiled([".*", *piece]).match(value, at)  # the last place of all
        else:
            found = _compiled(piece).search(value, at)
        if found is None:
            return None
        at = found.end()
    return at


def _compiled(piece: list[str]) -> re.Pattern[str]:
    return re.compile("".join(piece), re.DOTALL)


def _matches(pieces: list[_Piece], value: str) -> Iterator[tuple[int, int]]:
    """Every longest match from the left; none that is empty where another ended."""
    first, at, ended = _compiled(pieces[0]), 0, -1
    while at <= len(value) and (head := first.search(value, at)):
        end = _rest(pieces, value, head.end(), longest=True)
        if end is None:  # what does not follow here does not follow later
            return
        if (head.start(), end) != (ended, ended):
            yield head.start(), end
        at, ended = (end, end) if end > head.start() else (end + 1, -1)
