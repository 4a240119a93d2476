"""What a search says, line by line as `rg --json` does, made into an answer within bounds."""

from __future__ import annotations

import base64
import json
from typing import Any

from forkyard.server.disks.work import GrepGroup, GrepLine, GrepMatch

OUTPUT_LIMIT = 4 << 20
"""Bytes of all texts of an answer."""
LINE_LIMIT = 512 << 10
_PIECE_LIMIT = 16 << 20  # of one line of what the program says
_PREFIX = "./"


class EnoughError(Exception):
    """No more is wanted."""


class Findings:
    """Takes in what the program writes. Raises EnoughError once there is enough, or too much."""

    def __init__(self, directory: str, most: int, *, multiline: bool, after: int) -> None:
        self.matches: list[GrepMatch] = []
        self.groups: list[GrepGroup] = []
        self.searched = 0
        self.over_results = self.over_output = False
        self._prefix = f"{directory}/" if directory else ""
        self._most, self._multiline, self._after = most, multiline, after
        self._left = OUTPUT_LIMIT
        self._begun = 0
        self._buffer = bytearray()

    def hear(self, stream: str, data: bytes) -> None:
        """A piece of output."""
        if stream != "stdout":
            return
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            self._take(line)
        if len(self._buffer) > _PIECE_LIMIT:
            self._too_much()

    def _take(self, line: bytes | bytearray) -> None:
        try:
            said = json.loads(line)
            kind, data = said["type"], said["data"]
            if kind in ("match", "context"):
                path = _text(data["path"]).removeprefix(_PREFIX)
                self._line(self._prefix + path, int(data["line_number"]), _text(data["lines"]), kind == "match")
            elif kind == "begin":
                self._begun += 1
                self.searched = max(self.searched, self._begun)
            elif kind == "summary":
                self.searched = int(data["stats"]["searches"])
        except (ValueError, KeyError, TypeError, RecursionError):  # a program of the image said it, whoever made that
            self._too_much()

    def _line(self, file: str, number: int, text: str, matches: bool) -> None:
        lines = [each[:LINE_LIMIT] for each in text.removesuffix("\n").split("\n")]
        if not self._multiline:
            lines = ["\n".join(lines)[:LINE_LIMIT]]
        if matches and len(self.matches) >= self._most:
            self.over_results = True
            if not self._follows(file, number):
                raise EnoughError
            matches = False
        elif self.over_results and not self._follows(file, number):
            raise EnoughError
        whole = "\n".join(lines)
        self._left -= len(whole.encode(errors="replace"))
        if self._left < 0:
            self._too_much()
        if matches:
            end = number + len(lines) - 1 if self._multiline else None
            self.matches.append(GrepMatch(file=file, line=number, text=whole, end_line=end))
        self._group(file, number, lines, matches)

    def _follows(self, file: str, number: int) -> bool:
        last = self.matches[-1]
        return file == last.file and number <= (last.end_line or last.line) + self._after

    def _group(self, file: str, number: int, lines: list[str], matches: bool) -> None:
        last = self.groups[-1] if self.groups else None
        if last is None or last.file != file or last.lines[-1].line + 1 != number:
            last = GrepGroup(file=file, lines=[])
            self.groups.append(last)
        last.lines += [GrepLine(line=number + at, text=text, match=matches) for at, text in enumerate(lines)]

    def _too_much(self) -> None:
        self.over_output = True
        raise EnoughError


def _text(given: dict[str, Any]) -> str:
    if "text" in given:
        return str(given["text"])
    return base64.b64decode(given["bytes"]).decode("utf-8", "replace")
