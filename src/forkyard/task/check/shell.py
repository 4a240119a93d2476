"""A shell script as rules see it: its simple commands in order, each with what stands around it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=")
_WRAPPERS = frozenset(
    {"sudo", "command", "exec", "nice", "nohup", "time", "env", "timeout", "setsid", "stdbuf", "xargs"}
)
_VALUED = frozenset({"-n", "-k", "-s", "-u", "-i", "-o", "-e"})  # options of wrappers that take a value


@dataclass(frozen=True, slots=True)
class Word:
    """A word without its quotes; `literal` when the shell would leave it as it is, `quoted` when it had quotes."""

    text: str
    line: int
    column: int
    literal: bool = True
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Redirect:
    """`operator` is without its file descriptor; `body` is that of a heredoc."""

    operator: str
    target: Word
    body: str = ""

    @property
    def writes(self) -> bool:
        """Whether it makes or changes the file it names."""
        return ">" in self.operator and not self.operator.endswith("&")


@dataclass(slots=True)
class Command:
    """A simple command. `words` are without assignments; `redirects` hold those of the compounds around it too.

    `conditional`: it may be left out. `guarded`: `set -e` does not act on its failure. `function` is the one it is
    in the body of, `within` the word in front of the command whose `$(...)`, `sh -c` or `trap` it stands in.
    """

    line: int
    column: int
    words: list[Word] = field(default_factory=list)
    assignments: dict[str, Word] = field(default_factory=dict)
    redirects: list[Redirect] = field(default_factory=list)
    conditional: bool = False
    guarded: bool = False
    function: str = ""
    within: str | None = None
    piped_from: Command | None = None

    @property
    def name(self) -> str:
        """What is run, without its directory; empty for assignments alone."""
        words = self.argv
        return words[0].text.rpartition("/")[2] if words else ""

    @property
    def argv(self) -> Sequence[Word]:
        """The words from the program on, wrappers such as `sudo`, `env A=b` and `timeout 5` left out."""
        words: Sequence[Word] = self.words
        while len(words) > 1 and words[0].text.rpartition("/")[2] in _WRAPPERS:
            wrapper, at = words[0].text.rpartition("/")[2], 1
            while at < len(words) and (words[at].text.startswith("-") or ASSIGNMENT.match(words[at].text)):
                at += 2 if words[at].text in _VALUED else 1
            if wrapper == "timeout":
                at += 1
            if wrapper == "command" and words[1].text in ("-v", "-V"):
                break  # asks where a program is, and runs none
            if at >= len(words):
                break
            words = words[at:]
        return words

    @property
    def heredoc(self) -> str:
        """What it is given on standard input in place."""
        return "".join(redirect.body for redirect in self.redirects)


@dataclass(frozen=True, slots=True)
class Script:
    """A script that was read; `interpreter` is its first line after `#!`, empty when there is none."""

    text: str
    interpreter: str
    commands: tuple[Command, ...]

    @property
    def main(self) -> tuple[Command, ...]:
        """The commands that are run in order: those neither in functions nor in substitutions."""
        return tuple(command for command in self.commands if not command.function and command.within is None)
