"""File name patterns of a build: those of COPY sources, and those of .dockerignore."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from forkyard.errors import ConfigError
from forkyard.image.problem import Problem

States = tuple[bool, ...]
"""For each pattern of an `Ignore`, whether it matches a name or a directory above it."""


def has_wildcard(text: str) -> bool:
    """Whether a pattern can match more than the one name it spells."""
    return re.search(r"[*?[]", re.sub(r"\\.", "", text)) is not None


def unescaped(text: str) -> str:
    """The one name that a pattern without wildcards spells."""
    return re.sub(r"\\(.)", r"\1", text)


def escaped(text: str) -> str:
    """The pattern that spells one name, whatever signs are in it."""
    return re.sub(r"([\\*?\[])", r"\\\1", text)


_MOST_WITHIN = 2


def pattern_regex(pattern: str, *, deep: bool) -> re.Pattern[str]:
    """The regular expression of a glob: `*`, `?` and `[...]` stop at a slash; `**` does not when `deep`.

    Raises Problem for a bracket that is never closed or empty, and for too many `**` that begin within a name.

    No pattern makes it slow. Between two stars, or two `**`, the first place where something can stand is as good as
    any later one: it is an atomic group, and nothing is tried twice. What ends at a `**` within a name is not so.
    """
    parts = _between_deep(pattern) if deep else [_names(pattern)]
    if (
        sum(not part.endswith("/") for part in parts[1:-1]) + (len(parts) > 1 and not _at_start(parts[0]))
        > _MOST_WITHIN
    ):
        raise Problem(f"{pattern!r} has more than {_MOST_WITHIN} '**' that begin within a name: write '/**/'")
    pieces = parts[:1]
    for part in parts[1:-1]:
        pieces.append(f"(?>(?:.*?/)??{part})" if _at_start(part) else f"(?:.*/)?{part}")
    if len(parts) > 1:
        pieces.append(f"(?:.*/)?{parts[-1]}" if parts[-1] else ".*")
    return re.compile("".join(pieces), re.DOTALL)


def _at_start(part: str) -> bool:
    """Whether what comes after this begins a name."""
    return not part or part.endswith("/")


def _between_deep(pattern: str) -> list[str]:
    """The regular expressions of what stands between the `**` of a pattern."""
    parts, start, position = [], 0, 0
    while position < len(pattern):
        if pattern.startswith("**", position):
            parts.append(_names(pattern[start:position]))
            position += 3 if pattern.startswith("**/", position) else 2
            start = position
        elif pattern[position] == "[":
            _, position = _bracket(pattern, position + 1)
        else:
            position += 2 if pattern[position] == "\\" else 1
    return [*parts, _names(pattern[start:])]


def _names(pattern: str) -> str:
    """The regular expression of a pattern without `**`."""
    done, last = "", [""]  # of the names before, and of what stands between the stars of this one
    position = 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "*":
            last.append("")
        elif char == "?":
            last[-1] += "[^/]"
        elif char == "[":
            bracket, position = _bracket(pattern, position)
            last[-1] += bracket
        else:
            if char == "\\" and position < len(pattern):
                char = pattern[position]
                position += 1
            last[-1] += re.escape(char)
            if char == "/":
                done, last = done + _name(last), [""]
    return done + _name(last)


def _name(pieces: list[str]) -> str:
    """One name, of pieces with stars between them."""
    first, *middle = pieces
    if not middle:
        return first
    return first + "".join(f"(?>[^/]*?{piece})" for piece in middle[:-1]) + f"[^/]*{middle[-1]}"


def _bracket(pattern: str, position: int) -> tuple[str, int]:
    """The character class whose `[` stands before `position`, and where the pattern goes on."""
    negated = pattern.startswith("^", position)
    position += negated
    members: list[str] = []
    while not pattern.startswith("]", position) or not members:
        first, position = _member(pattern, position)
        last = first
        if pattern.startswith("-", position):
            last, position = _member(pattern, position + 1)
        if last < first:
            raise Problem(f"the range {first}-{last} in {pattern!r} runs backwards")
        members.append(f"{re.escape(first)}-{re.escape(last)}")
    return f"(?!/)[{'^' if negated else ''}{''.join(members)}]", position + 1


def _member(pattern: str, position: int) -> tuple[str, int]:
    if pattern.startswith("\\", position):
        position += 1
    if position >= len(pattern) or pattern[position] == "]" and pattern[position - 1] != "\\":
        raise Problem(f"a [ in {pattern!r} is not closed or holds nothing: write \\[ for the character itself")
    return pattern[position], position + 1


@dataclass(frozen=True, slots=True)
class Ignore:
    """The patterns of a .dockerignore in order; of those that match a name, the last one decides.

    A pattern that matches a directory matches all below it, so names are asked for from the top down, each with the
    states of the directory it lies in.
    """

    patterns: tuple[re.Pattern[str], ...] = ()
    kept: tuple[bool, ...] = ()  # for each pattern, whether it began with "!"

    @property
    def top(self) -> States:
        """The states of the context directory itself."""
        return (False,) * len(self.patterns)

    def states(self, name: str, above: States) -> States:
        """The states of `name`, relative to the context, in a directory with the states `above`."""
        return tuple(
            seen or pattern.fullmatch(name) is not None for seen, pattern in zip(above, self.patterns, strict=True)
        )

    def excluded(self, states: States) -> bool:
        """Whether a name with these states is left out."""
        verdict = False
        for seen, kept in zip(states, self.kept, strict=True):
            if seen:
                verdict = not kept
        return verdict

    @property
    def prunes(self) -> bool:
        """Whether nothing below an excluded directory can be kept."""
        return not any(self.kept)

    def kept_of(self, names: Sequence[str]) -> set[str]:
        """Those of a tree's names that are not left out, with the directories on the way to them."""
        kept: set[str] = set()
        for name in names:
            if not self.patterns or not self.excludes(name):
                while name and name not in kept:
                    kept.add(name)
                    name = posixpath.dirname(name)
        return kept

    def excludes(self, name: str) -> bool:
        """Whether a name, relative to the context, is left out."""
        states = self.top
        above = ""
        for part in name.split("/"):
            above = f"{above}/{part}" if above else part
            states = self.states(above, states)
        return self.excluded(states)


def ignore_of(patterns: Sequence[str]) -> Ignore:
    """What leaves out the names that match these patterns. Raises Problem for one that is wrong."""
    found = [(pattern.removeprefix("!"), pattern.startswith("!")) for pattern in patterns]
    return Ignore(tuple(_ignored(pattern) for pattern, _ in found), tuple(kept for _, kept in found))


def _ignored(pattern: str) -> re.Pattern[str]:
    return pattern_regex(posixpath.normpath(pattern).lstrip("/"), deep=True)


def parse_ignore(data: bytes, path: str) -> Ignore:
    """Read a .dockerignore; `path` names it in messages. Raises ConfigError with every pattern that is wrong."""
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    patterns, kept, problems = [], [], []
    for number, line in enumerate(text.split("\n"), 1):
        pattern = "" if line.startswith("#") else line.strip()
        keep = pattern.startswith("!")
        if not pattern:
            continue
        if keep and not (pattern := pattern[1:].strip()):
            problems.append(f"{path}:{number}: a lone '!' keeps nothing: write !pattern or delete the line")
            continue
        try:
            patterns.append(_ignored(pattern))
            kept.append(keep)
        except Problem as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        raise ConfigError(*problems)
    return Ignore(tuple(patterns), tuple(kept))
