"""From words of a command line to settings: which key is to hold which value, and where a user wrote so."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError
from forkyard.task.directory.lines import line_of, locate

Key = tuple[str, ...]
_NUMBER = re.compile(r"-(\d|\.\d)")


@dataclass(frozen=True, slots=True)
class Setting:
    """One value for one key. `text` says that it came from a flag and is still to be read by the type of its key."""

    key: Key
    value: Any
    place: str
    text: bool = False


class Bare(str):
    """The value of a flag that was given none: `--resume`, `--no-resume`."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line that was read: what has no dashes, then files' settings and after them the flags'."""

    words: tuple[str, ...]
    settings: tuple[Setting, ...]
    help: bool


def read_arguments(
    arguments: Sequence[str], aliases: Mapping[str, str] | None = None, switches: Collection[Key] = ()
) -> Arguments:
    """Read a command line without knowing the model. `aliases` are other names of flags, `-n` or `--group-size`.

    The keys in `switches` take a value only when it is true or false, so that a word may follow them. Raises
    ConfigError with every file that cannot be read.
    """
    reader = _Reader(arguments, aliases or {}, switches)
    reader.read()
    if reader.problems:
        raise ConfigError(*reader.problems)
    return Arguments(tuple(reader.words), (*reader.files, *reader.flags), reader.help)


def last_value(settings: Iterable[Setting], *key: str) -> Any:
    """What a key was set to, by itself or inside of a table; None when it was not."""
    found: Any = None
    for setting in settings:
        depth = len(setting.key)
        if setting.key == key:
            found = setting.value
        elif key[:depth] == setting.key:
            inner = _inside(setting.value, key[depth:])
            found = found if inner is None else inner
    return found


def _inside(value: Any, key: Sequence[str]) -> Any:
    if isinstance(value, str) and len(key) == 1 and not value.startswith("{"):
        return value if key[0] in ("id", "type") else None  # `--env.agent.harness bash` names its id
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    for part in key:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


class _Reader:
    def __init__(self, arguments: Sequence[str], aliases: Mapping[str, str], switches: Collection[Key]) -> None:
        self.words: list[str] = []
        self.files: list[Setting] = []
        self.flags: list[Setting] = []
        self.problems: list[str] = []
        self.help = False
        self._left = list(reversed(arguments))
        self._aliases = aliases
        self._switches = switches

    def read(self) -> None:
        while self._left:
            word = self._left.pop()
            if word == "--":
                self.words += reversed(self._left)
                return
            if word in ("-h", "--help"):
                self.help = True
            elif word.startswith("@"):
                self._file(word[1:])
            elif word.startswith("-") and word != "-" and not _NUMBER.match(word):
                self._flag(word)
            else:
                self.words.append(word)

    def _file(self, name: str) -> None:
        name = name or (self._left.pop() if self._left else "")
        if not name:
            self.problems.append("@: name the file after it, as @ eval.toml")
            return
        try:
            self.files += read_file(Path(name))
        except ConfigError as err:
            self.problems += err.problems

    def _flag(self, word: str) -> None:
        name, equals, value = word.partition("=")
        if not name.startswith("--") and name not in self._aliases and name[:2] in self._aliases:
            name, equals, value = name[:2], "=", word[2:].removeprefix("=")  # -n5
        long = self._aliases.get(name, name)
        if not long.startswith("--") or long == "--":
            self.problems.append(f"{name}: there is no such option")
            return
        key = key_of(long[2:])
        if equals:
            self.flags.append(Setting(key, value, name, text=True))
        elif self._takes_next(key):
            self.flags.append(Setting(key, self._left.pop(), name, text=True))
        else:
            self.flags.append(Setting(key, Bare("true"), name, text=True))

    def _takes_next(self, key: Key) -> bool:
        following = self._left[-1] if self._left else "--"
        if key in self._switches or (key[-1].startswith("no_") or key[0].startswith("no_")):
            return following.lower() in ("true", "false")
        return not following.startswith(("-", "@")) or _NUMBER.match(following) is not None


def key_of(dotted: str) -> Key:
    """`env.agent.max-turns` as a key."""
    return tuple(part.replace("-", "_") for part in dotted.split("."))


def read_file(path: Path) -> list[Setting]:
    """The settings of a TOML or JSON file, each with its line. Raises ConfigError."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as err:
        raise ConfigError(f"{path} cannot be read: {err.strerror}") from None
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path} is not UTF-8 (byte {err.start}); save it as UTF-8") from None
    if path.suffix not in (".toml", ".json"):
        raise ConfigError(f"{path}: a file of settings is called .toml or .json")
    try:
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as err:
        raise ConfigError(f"{path} is not {path.suffix[1:].upper()}: {err}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold an object of settings, not a {type(content).__name__}")
    lines = locate(text) if path.suffix == ".toml" else {}

    def place(key: Sequence[str]) -> str:
        line = line_of(tuple(key), lines) if path.suffix == ".toml" else _json_line(text, key)
        return f"{path}, line {line}" if line else str(path)

    return [Setting(_snake(key), value, place(key)) for key, value in _leaves(content)]


def _leaves(values: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _snake(key: Key) -> Key:
    return tuple(part.replace("-", "_") for part in key)


def _json_line(text: str, key: Sequence[str]) -> int:
    """The line where the last part of a key first stands behind the parts around it."""
    position = 0
    for part in key:
        found = re.compile(re.escape(json.dumps(part)) + r"\s*:").search(text, position)
        position = found.end() if found else position
    return text.count("\n", 0, position) + 1
