"""The modes of `COPY --chmod`: octal digits, or the symbols of chmod(1)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forkyard.image.problem import Problem
from forkyard.image.scalars import parse_mode

_CLAUSE = re.compile(r"([ugoa]*)((?:[-+=](?:[ugo]|[rwxXst]*))+)")
_CHANGE = re.compile(r"([-+=])([ugo]|[rwxXst]*)")
_SHIFTS = {"u": 6, "g": 3, "o": 0}


@dataclass(frozen=True, slots=True)
class Chmod:
    """What is done to a mode: `octal` takes its place, or the `clauses` change it in order."""

    octal: int | None = None
    clauses: tuple[tuple[str, str, str], ...] = ()  # who, operator, what

    def apply(self, mode: int, directory: bool) -> int:
        """The mode a file or directory of this mode gets."""
        if self.octal is not None:
            return self.octal
        for who, operator, what in self.clauses:
            mode = _changed(mode, who, operator, what, directory)
        return mode


def parse_chmod(text: str) -> Chmod | None:
    """Read a mode; an empty text is None. Raises Problem."""
    if not text:
        return None
    if (octal := parse_mode(text)) is not None:
        return Chmod(octal)
    if text.isascii() and text.isdigit():
        raise Problem(f"--chmod={text[:40]} is not possible: write the mode in octal digits, for example 755")
    clauses: list[tuple[str, str, str]] = []
    for clause in text.split(","):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            raise Problem(f"--chmod={text[:40]} is not possible: write it as 755 or as u=rwX,go=rX")
        who = match[1].replace("a", "ugo") or "ugo"
        clauses += [(who, operator, what) for operator, what in _CHANGE.findall(match[2])]
    return Chmod(clauses=tuple(clauses))


def _changed(mode: int, who: str, operator: str, what: str, directory: bool) -> int:
    mask = 0
    bits = 0
    for one in who:
        shift = _SHIFTS[one]
        mask |= 0o7 << shift
        bits |= _permissions(mode, what, directory) << shift
        if one == "u":
            mask |= 0o4000
            bits |= 0o4000 if "s" in what else 0
        if one == "g":
            mask |= 0o2000
            bits |= 0o2000 if "s" in what else 0
    bits |= 0o1000 if "t" in what else 0
    if operator == "+":
        return mode | bits
    if operator == "-":
        return mode & ~bits
    return mode & ~mask & ~(0o1000 if "o" in who else 0) | bits


def _permissions(mode: int, what: str, directory: bool) -> int:
    if what in _SHIFTS:
        return mode >> _SHIFTS[what] & 0o7
    found = 0
    for letter in what:
        found |= {"r": 4, "w": 2, "x": 1}.get(letter, 0)
        found |= 1 if letter == "X" and (directory or mode & 0o111) else 0
    return found
