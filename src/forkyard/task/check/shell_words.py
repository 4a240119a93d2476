"""The words of a shell script: quotes, escapes, expansions, and where the commands of substitutions stand."""

from __future__ import annotations

import re
from bisect import bisect_right

from forkyard.task.check.shell import Word


class Lines:
    """A text, and which index of it is in which line; its first line is numbered `first`."""

    def __init__(self, text: str, first: int) -> None:
        self.text = text
        self._first = first
        self._starts = [0] + [match.end() for match in re.finditer("\n", text)]

    def place(self, at: int) -> tuple[int, int]:
        """Line and column of an index, from 1."""
        row = bisect_right(self._starts, at) - 1
        return self._first + row, at - self._starts[row] + 1


class Cursor:
    """A place in a text, from `at` to `end`; `inner` are the ranges of `$(...)` in the words that were read."""

    def __init__(self, lines: Lines, at: int, end: int) -> None:
        self.text, self.at, self.end = lines.text, at, end
        self.place = lines.place
        self.inner: list[tuple[int, int]] = []

    def skip_to(self, stop: str) -> None:
        """Go to where `stop` begins, or to the end."""
        found = self.text.find(stop, self.at, self.end)
        self.at = self.end if found < 0 else found

    def read_word(self) -> Word:
        """The word that begins here, up to a blank or an operator; an empty one when none does."""
        start = self.at
        line, column = self.place(start)
        pieces: list[str] = []
        literal, quoted = True, False
        while self.at < self.end:
            char = self.text[self.at]
            if char in " \t\n;&|()" or (char in "<>" and (self.at != start or not self._substituted_process())):
                break
            if char in "'\"\\":
                quoted = True
            if char in "$`" or (char == '"' and re.search(r"(?<!\\)[$`]", self._quotes())):
                literal = self.text.startswith("$'", self.at) and literal
            elif char in "*?[" and not pieces:
                literal = False
            pieces.append(self._piece(char))
        return Word("".join(pieces), line, column, literal, quoted)

    def _substituted_process(self) -> bool:
        return self.text.startswith("(", self.at + 1)

    def _quotes(self) -> str:
        return self.text[self.at : self._end_of_quotes(self.at)]

    def _end_of_quotes(self, at: int) -> int:
        """The index behind the double quotes that open at `at`."""
        at += 1
        while at < self.end and self.text[at] != '"':
            if self.text[at] == "\\":
                at += 1
            elif self.text.startswith("$(", at):
                at = self._closing(at + 2) - 1
            at += 1
        return min(at + 1, self.end)

    def _piece(self, char: str) -> str:
        start = self.at
        if char == "'" or self.text.startswith("$'", start):
            open_at = start + (1 if char == "'" else 2)
            found = self.text.find("'", open_at, self.end)
            self.at = self.end if found < 0 else found + 1
            return self.text[open_at : self.at if found < 0 else found]
        if char == '"':
            self.at = self._end_of_quotes(start)
            close = self.at - 1 if self.text[self.at - 1] == '"' and self.at - 1 > start else self.at
            self._look_inside(start + 1, close)
            return re.sub(r'\\([$`"\\])|\\\n', r"\1", self.text[start + 1 : close])
        if char == "\\":
            self.at = min(start + 2, self.end)
            return self.text[start + 1 : self.at].replace("\n", "")
        if char in "$`<>":
            self.at = self._end_of_expansion(start)
            self._look_inside(start, self.at)
            return self.text[start : self.at]
        self.at += 1
        return char

    def _end_of_expansion(self, start: int) -> int:
        text = self.text
        if text[start] == "`":
            found = text.find("`", start + 1, self.end)
            return self.end if found < 0 else found + 1
        if text.startswith("${", start):
            found = text.find("}", start, self.end)
            return self.end if found < 0 else found + 1
        if text.startswith("(", start + 1):
            return self._closing(start + 2)
        return start + 1

    def _closing(self, at: int) -> int:
        """The index behind the parenthesis that closes the one before `at`."""
        depth = 1
        while at < self.end and depth:
            char = self.text[at]
            if char == "\\":
                at += 1
            elif char == "'":
                found = self.text.find("'", at + 1, self.end)
                at = self.end if found < 0 else found
            elif char == '"':
                at = self._end_of_quotes(at) - 1
            depth += (char == "(") - (char == ")")
            at += 1
        return min(at, self.end)

    def _look_inside(self, start: int, end: int) -> None:
        """Note where the substitutions in a part of a word are."""
        at = start
        while at < end:
            if self.text[at] == "\\":
                at += 1
            elif self.text.startswith(("$(", "<(", ">("), at) and not self.text.startswith("$((", at):
                close = self._closing(at + 2)
                self.inner.append((at + 2, close - 1))
                at = close - 1
            elif self.text[at] == "`":
                found = self.text.find("`", at + 1, end)
                close = end if found < 0 else found
                self.inner.append((at + 1, close))
                at = close
            at += 1
