"""The physical lines of a Dockerfile made into instructions' lines: directives, comments, continuations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from forkyard.image.words import split_words

_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+?)\s*")
_HEREDOC = re.compile(r"(\d*)<<(-?)([^<]+)")
_HEREDOC_NAMES = frozenset({"RUN", "COPY", "ADD"})


@dataclass(frozen=True, slots=True)
class Heredoc:
    """The text an instruction carries between `<<name` and a line that holds `name`; `chomp` is that of `<<-`.

    `text` ends with a line end unless it is empty, and has the tabs at the start of its lines. `expand` is False for
    a quoted name, whose text is taken as it stands.
    """

    name: str
    text: str
    chomp: bool
    expand: bool

    @property
    def content(self) -> str:
        """The text as it is used: without the leading tabs, where they are not part of it."""
        return re.sub(r"(?m)^\t+", "", self.text) if self.chomp else self.text


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction with its continuations joined; `number` is its first line, counted from 1."""

    number: int
    text: str
    heredocs: tuple[Heredoc, ...] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """A file's instructions, the escape character they use, and what is wrong with directives and heredocs."""

    escape: str
    lines: tuple[Line, ...]
    problems: tuple[tuple[int, str], ...]


def logical_lines(text: str) -> Lines:
    """Cut a Dockerfile into instructions. Never raises: what is wrong is in `problems`."""
    rows = text.removeprefix("\ufeff").split("\n")
    escape, problems = _directives(rows)
    return Lines(escape, tuple(_joined_lines(rows, escape, problems)), tuple(problems))


def _directives(rows: list[str]) -> tuple[str, list[tuple[int, str]]]:
    """The escape character, from the `# name=value` lines at the very top (anything else ends them)."""
    escape = "\\"
    seen: set[str] = set()
    problems = []
    for number, row in enumerate(rows, 1):
        match = _DIRECTIVE.fullmatch(row.strip())
        name = match[1].lower() if match else ""
        if match is None or name not in ("syntax", "escape", "check"):
            break
        if name in seen:
            problems.append((number, f"the directive '# {name}=' is given twice: keep one"))
        elif name == "escape" and match[2] not in ("\\", "`"):
            problems.append((number, f"'# escape={match[2]}' is not possible: the escape is a backslash or a backtick"))
        elif name == "escape":
            escape = match[2]
        seen.add(name)
    return escape, problems


def _joined_lines(rows: list[str], escape: str, problems: list[tuple[int, str]]) -> Iterator[Line]:
    position = 0
    while position < len(rows):
        number = position + 1
        row = rows[position].rstrip("\r").lstrip()
        position += 1
        if not row or row.startswith("#"):
            continue
        pieces = []
        while _continues(row, escape):
            pieces.append(row.rstrip(" \t")[:-1])
            position = _next_content(rows, position)
            if position == len(rows):
                row = ""
                break
            row = rows[position].rstrip("\r")
            position += 1
        text = "".join([*pieces, row]).strip()
        if not text:
            continue
        heredocs = []
        for name, chomp, expand in _openings(text, escape):
            found = _until(rows, position, name, chomp)
            if found is None:
                problems.append((number, f"the heredoc <<{name} is never closed: end it with a line {name}"))
                return
            body, position = found
            heredocs.append(Heredoc(name, body, chomp, expand))
        yield Line(number, text, tuple(heredocs))


def _continues(row: str, escape: str) -> bool:
    """Whether a line goes on: it ends with the escape character, which is not itself escaped."""
    row = row.rstrip(" \t")
    return row.endswith(escape) and not row.endswith(escape * 2)


def _next_content(rows: list[str], position: int) -> int:
    """Where a continued line goes on: blank lines and comments in between are dropped."""
    while position < len(rows) and (not rows[position].strip() or rows[position].lstrip().startswith("#")):
        position += 1
    return position


def _openings(text: str, escape: str) -> Iterator[tuple[str, bool, bool]]:
    """The (name, chomp, expand) of every heredoc an instruction opens."""
    words = split_words(text, escape)
    if words and words[0].upper() == "ONBUILD":
        words = words[1:]
    if words and words[0].upper() in _HEREDOC_NAMES:
        for word in words[1:]:
            if (match := _HEREDOC.fullmatch(word)) and (name := re.sub(r"[\"'\\]", "", match[3])):
                yield name, bool(match[2]), name == match[3]


def _until(rows: list[str], position: int, name: str, chomp: bool) -> tuple[str, int] | None:
    """The text up to the line that ends a heredoc, and where the file goes on; None when there is no such line."""
    for end in range(position, len(rows)):
        row = rows[end].rstrip("\r")
        if (row.lstrip("\t") if chomp else row) == name:
            return "".join(f"{line}\n" for line in rows[position:end]), end + 1
    return None


def opens_heredoc(word: str) -> str | None:
    """The name of the heredoc that a word of an instruction opens, if it does."""
    match = _HEREDOC.fullmatch(word)
    return (re.sub(r"[\"'\\]", "", match[3]) or None) if match else None
