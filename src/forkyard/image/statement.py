"""One instruction's line taken apart: its name, its `--flags`, the rest, and the forms the rest can have."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from forkyard.image.instructions import Command
from forkyard.image.lines import Heredoc, Line
from forkyard.image.problem import Problem
from forkyard.image.scalars import parse_switch
from forkyard.image.words import Word, parse_word, split_words
from forkyard.values import nearest

EMPTY = Word(())
_BLANKS = re.compile(r"[\t\v\f\r ]+")  # a no-break space is part of a file's name

_ONCE, _OFTEN, _SWITCH = "once", "often", "switch"
_FLAGS = {
    "FROM": {"platform": _ONCE},
    "RUN": {"mount": _OFTEN, "network": _ONCE},
    "COPY": {"chown": _ONCE, "chmod": _ONCE, "from": _ONCE, "exclude": _OFTEN, "link": _SWITCH},
    "ADD": {
        "chown": _ONCE,
        "chmod": _ONCE,
        "checksum": _ONCE,
        "exclude": _OFTEN,
        "link": _SWITCH,
        "unpack": _SWITCH,
    },
    "HEALTHCHECK": {
        "interval": _ONCE,
        "timeout": _ONCE,
        "start-period": _ONCE,
        "start-interval": _ONCE,
        "retries": _ONCE,
    },
}
_REFUSED_FLAGS = {
    ("RUN", "security"): "delete it, a build has no privileges to give",
    ("RUN", "device"): "delete it, a build has no devices to give",
    ("COPY", "parents"): "write one COPY for each directory",
    ("ADD", "keep-git-dir"): "fetch the repository before the build and COPY it",
}


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction's line; `flags` holds every value of each, in order."""

    line: Line
    escape: str
    name: str
    rest: str
    flags: dict[str, list[str]] = field(default_factory=dict)

    @property
    def heredocs(self) -> tuple[Heredoc, ...]:
        """The texts that follow it."""
        return self.line.heredocs

    def word(self, text: str) -> Word:
        """A word whose quotes and variables count."""
        return parse_word(text, self.escape)

    def words(self) -> list[str]:
        """The rest cut at white space, quotes or not."""
        return _BLANKS.split(self.rest)

    def flag(self, name: str) -> str:
        """The value of a flag that is given once, or an empty text."""
        return (self.flags.get(name) or [""])[0]

    def switched(self, name: str) -> bool | None:
        """Whether a switch is on; None when it is not there."""
        if name not in self.flags:
            return None
        value = self.flag(name)
        on = parse_switch(value)
        if on is None:
            raise Problem(f"{self.name} --{name}={value[:40]} is not possible: write --{name}=true or --{name}=false")
        return on

    def command(self) -> Command:
        """The rest as a command line in one of its two forms."""
        words = self.json_words()
        return Command((self.rest,), shell=True) if words is None else Command(words, shell=False)

    def list_or_words(self) -> tuple[str, ...]:
        """The strings of a JSON list, or else the words."""
        words = self.json_words()
        return tuple(self.words()) if words is None else words

    def json_words(self) -> tuple[str, ...] | None:
        """The strings of an exec form, or None when the rest is no JSON list and so is the shell form."""
        if not self.rest.startswith("["):
            return None
        try:
            found = json.loads(self.rest)
        except (ValueError, RecursionError):
            return None
        if not all(isinstance(item, str) for item in found):
            raise Problem("an exec form holds something that is no string: put every item into double quotes")
        if any("\0" in item or re.search("[\ud800-\udfff]", item) for item in found):
            raise Problem("an exec form holds a NUL or half a surrogate pair, which no command line can carry")
        return tuple(found)

    def pairs(self) -> tuple[tuple[Word, Word], ...]:
        """`name=value ...`, or `name value`, where all of the rest is one value."""
        words = split_words(self.rest, self.escape)
        if words and "=" not in words[0]:
            name, value = cut(self.rest)
            if not value:
                raise Problem(f"{self.name} {name} has no value: write {self.name} {name}=value")
            return ((self.word(name), self.word(value)),)
        found = []
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not name:
                raise Problem(f"{self.name} {word} is no name=value: put a value with blanks into quotes")
            found.append((self.word(name), self.word(value)))
        return tuple(found)


def cut(text: str) -> tuple[str, str]:
    """The first word, and what follows it."""
    first, rest = (*_BLANKS.split(text, 1), "")[:2]
    return first, rest


def take_apart(line: Line, escape: str) -> Statement:
    """The name, the flags and the rest of a line. Raises Problem for a flag that is not possible."""
    name, rest = cut(line.text)
    name = name.upper()
    flags: dict[str, list[str]] = {}
    while rest.startswith("--"):
        word, rest = cut(rest)
        if word == "--":
            break
        flag, equals, value = word[2:].partition("=")
        _check_flag(name, flag, bool(equals and value), flag in flags)
        flags.setdefault(flag, []).append(value)
    return Statement(line, escape, name, rest, flags)


def _check_flag(name: str, flag: str, valued: bool, again: bool) -> None:
    known = _FLAGS.get(name, {})
    if flag not in known:
        near = nearest(flag, known)
        mend = _REFUSED_FLAGS.get((name, flag)) or (f"did you mean --{near}?" if near else "delete it")
        raise Problem(f"{name} --{flag[:40]} is not supported: {mend}")
    if again and known[flag] != _OFTEN:
        raise Problem(f"--{flag} is given twice: keep one")
    if not valued and known[flag] != _SWITCH:
        raise Problem(f"{name} --{flag} has no value: write --{flag}=...")
