"""Where a test script writes the reward, and what, as far as its text tells."""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forkyard.task.check.shell import Command, Script, Word
from forkyard.task.check.subject import Subject

PLACE = "/logs/verifier"
FILES = ("reward.txt", "reward.json")
_NAME = re.compile(r"\breward\.(?:txt|json)\b")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_RUNNERS = re.compile(
    r"(?:python|pypy)[\d.]*|node|deno|bun|ruby|perl|php|bash|sh|dash|source|\.|go|cargo|java|Rscript|uv|pytest"
)


@dataclass(frozen=True, slots=True)
class Write:
    """One command that writes a reward file. `value` is what it writes, None when the text does not tell.

    `refused` says why a value that is told is no reward.
    """

    command: Command
    path: str
    value: float | None = None
    refused: str | None = None
    primary: bool = True


def constants(script: Script) -> dict[str, str]:
    """The variables that are assigned once, to a text that is told."""
    assigned = [pair for command in script.commands for pair in command.assignments.items()]
    for command in script.commands:
        if command.name in ("export", "readonly", "local", "declare"):
            for word in command.words[1:]:
                name, equals, value = word.text.partition("=")
                if equals:
                    assigned.append((name, Word(value, word.line, word.column, word.literal)))
    counts = Counter(name for name, _ in assigned)
    changed = {word.text for command in script.commands if command.name in ("read", "let") for word in command.words}
    return {
        name: value.text
        for name, value in assigned
        if counts[name] == 1 and name not in changed and "$(" not in value.text and "`" not in value.text
    }


def filled(text: str, values: dict[str, str]) -> str:
    """A word's text with such variables in it replaced."""
    for _ in range(5):
        text, changes = _VARIABLE.subn(lambda match: values.get(match[1] or match[2], match[0]), text)
        if not changes:
            break
    return text


def reward_writes(script: Script) -> list[Write]:
    """The commands of a script that write a file called reward.txt or reward.json, in order."""
    values = constants(script)
    place = ""
    found = []
    for command in script.commands:
        if command.name in ("cd", "pushd") and len(command.words) > 1 and command.within is None:
            place = filled(command.words[1].text, values)
        for target in _targets(command):
            path = filled(target, values)
            path = path if path.startswith(("/", "$")) or not place else posixpath.join(place, path)
            if _NAME.search(path):
                found.append(_write(command, posixpath.normpath(path), values))
    return found


def _targets(command: Command) -> Iterator[str]:
    if not _is_quiet(command):
        yield from (redirect.target.text for redirect in command.redirects if redirect.writes)
    words = [word.text for word in command.argv[1:] if not word.text.startswith("-")]
    if command.name == "tee":
        yield from words
    if command.name in ("cp", "mv", "ln", "install") and len(words) > 1:
        yield words[-1]
    if command.name == "dd":
        yield from (word.removeprefix("of=") for word in words if word.startswith("of="))


def _is_quiet(command: Command) -> bool:
    """Whether a command has nothing to say, as the condition of an `if` whose output goes to a file."""
    return command.name in ("[", "[[", "test", ":", "cd", "true", "false") or any(
        re.fullmatch(r"-\w*q\w*|-s|--quiet|--silent", word.text) for word in command.argv[1:]
    )


def _write(command: Command, path: str, values: dict[str, str]) -> Write:
    text = _written(command, values)
    if text is None:
        return Write(command, path)
    if path.endswith(".json"):
        return _of_json(command, path, text)
    try:
        return _number(command, path, float(text) if re.fullmatch(r"[\d.eE+-]+", text.strip()) else text.strip()[:40])
    except ValueError:
        return _number(command, path, text.strip()[:40])


def _of_json(command: Command, path: str, text: str) -> Write:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return Write(command, path, refused="is no JSON")
    if not isinstance(value, dict) or not value:
        return Write(command, path, refused="is no object of named numbers")
    if "reward" not in value and len(value) > 1:
        return Write(command, path, primary=False)
    return _number(command, path, value.get("reward", next(iter(value.values()))))


def _number(command: Command, path: str, value: object) -> Write:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Write(command, path, refused=f"is no number: {json.dumps(value)}")
    if not 0 <= value <= 1:
        return Write(command, path, refused=f"is not in [0, 1]: {value:g}")
    return Write(command, path, float(value))


def _written(command: Command, values: dict[str, str]) -> str | None:
    """The text a command writes to its output, None when it is not told."""
    source = command.piped_from if command.name == "tee" and command.piped_from else command
    words = list(source.argv)
    if source.name == "cat" and len(words) == 1 and source.heredoc:
        return None if "$" in source.heredoc else source.heredoc
    if source.name not in ("echo", "printf") or len(words) < 2:
        return None
    texts = [_plain(word, values) for word in words[1:]]
    if any(text is None for text in texts):
        return None
    return _said(source.name, [text for text in texts if text is not None])


def _said(name: str, texts: Sequence[str]) -> str | None:
    if name == "echo":
        return " ".join(text for n, text in enumerate(texts) if n or text not in ("-n", "-e", "-ne"))
    form, *arguments = [text for text in texts if text != "--"] or [""]
    for mark in re.findall(r"%[sdgf]", form):
        form = form.replace(mark, arguments.pop(0) if arguments else "", 1)
    return None if "%" in form else re.sub(r"\\[nrt]", "\n", form)


def _plain(word: Word, values: dict[str, str]) -> str | None:
    text = word.text if word.literal else filled(word.text, values)
    return text if word.literal or "$" not in text and "`" not in text else None


def says_rewards(text: str | None) -> bool:
    """Whether a file's text has to do with writing rewards."""
    return bool(text and (_NAME.search(text) or PLACE in text or "rewardkit" in text))


def runs_writer(subject: Subject, command: Command) -> bool:
    """Whether a command runs another file of the tests, or a program, that writes the reward itself."""
    if command.name == "rewardkit" or (
        command.name in ("uvx", "uv") and any("rewardkit" in w.text for w in command.words)
    ):
        return True
    if says_rewards(command.heredoc) and _RUNNERS.fullmatch(command.name):
        return True
    words = command.argv
    inline = any(word.text in ("-c", "-e") for word in words) and any(says_rewards(word.text) for word in words)
    if inline and _RUNNERS.fullmatch(command.name):
        return True
    names = {posixpath.basename(word.text) for word in words}
    return any(posixpath.basename(path) in names for path in _writers(subject))


def _writers(subject: Subject) -> list[str]:
    """The files of the tests, test.sh aside, that write a reward, or use another of them that does."""
    others = [path for path in subject.hidden if path not in subject.test_scripts]
    writers = [path for path in others if says_rewards(subject.text(path))]
    stems = "|".join(re.escape(posixpath.basename(path).partition(".")[0]) for path in writers)
    using = re.compile(rf"\b(?:import|from|require|source)\b\W*\w*(?:{stems})\b") if stems else None
    return writers + [path for path in others if using and using.search(subject.text(path) or "")]
