"""What a task's answer is, where its tests and its solution spell it out."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from forkyard.task.check.subject import Subject

_COMMON = re.compile(
    r"done|true|false|yes|null|none|hello|world|pass(?:ed)?|fail(?:ed)?|tests?|app|main|data|output|[a-z]\d?",
    re.IGNORECASE,
)
_OPERATORS = frozenset({"=", "==", "-eq"})
LONGEST = 200


def answers_of(subject: Subject, shortest: int = 3) -> list[str]:
    """The texts that are compared with, or written by the solution as a whole file; common words left out."""
    found = [*_expected_files(subject), *_compared(subject), *_written(subject)]
    return [text for text in dict.fromkeys(found) if len(text) >= shortest and _is_distinct(text)]


def _is_distinct(text: str) -> bool:
    return (
        len(text) <= LONGEST
        and not _COMMON.fullmatch(text)
        and "\n" not in text
        and not text.startswith(("/", "-", "$"))
    )


def _expected_files(subject: Subject) -> Iterator[str]:
    for path in subject.hidden:
        name = posixpath.basename(path).lower()
        if name.startswith(("expected", "answer", "golden", "truth")) and not name.endswith((".py", ".sh")):
            yield (subject.text(path) or "").strip()


def _compared(subject: Subject) -> Iterator[str]:
    """What `grep -x word`, `[ "$x" = word ]` and `assert ... == "word"` in tests look for."""
    for _, script in subject.shell_scripts(subject.hidden):
        for command in script.commands:
            words = command.argv
            if command.name == "grep":
                options = [word.text for word in words[1:] if word.text.startswith("-")]
                first = next((word for word in words[1:] if not word.text.startswith("-")), None)
                if first and first.literal and any("x" in text or "F" in text for text in options):
                    yield first.text
            if command.name in ("[", "[[", "test"):
                for before, after in zip(words, words[1:], strict=False):
                    if before.text in _OPERATORS and after.literal:
                        yield after.text
    for _, text in subject.python_files(subject.hidden):
        for match in re.finditer(r"""==\s*(["'])([^"'\\\n]{3,80})\1""", text):
            yield match[2]


def _written(subject: Subject) -> Iterator[str]:
    """What the solution writes with `echo text > file`."""
    for _, script in subject.shell_scripts(subject.reference):
        for command in script.commands:
            told = command.name in ("echo", "printf") and len(command.words) == 2 and command.words[1].literal
            if told and any(redirect.operator == ">" for redirect in command.redirects):
                yield command.words[1].text.removesuffix("\\n")
