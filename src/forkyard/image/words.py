"""The words of a Dockerfile: quotes, escapes and `$variables`, read once and expanded later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forkyard.image.cuts import replaced, without_prefix, without_suffix
from forkyard.image.problem import Problem

LONGEST = 1 << 20  # of a word once it is expanded; the kernel passes far less to a command
_DEEPEST = 20  # of ${a:-${b:-...}}; deeper is a mistake, and would exhaust Python's stack
_OPERATORS = (":-", ":+", ":?", "-", "+", "?", "#", "##", "%", "%%", "/", "//")
_SPECIAL = frozenset("@*#?-$!")  # the shell's one-letter parameters, never set in a Dockerfile


@dataclass(frozen=True, slots=True)
class Variable:
    """`$name`, or `${name<operator>operand}`.

    The operators are `-`, `+` and `?`, each with or without `:`; `#`, `##`, `%` and `%%`, which take a pattern off the
    beginning or the end; and `/` and `//`, which put `replacement` in the place of the first or of every match.
    """

    name: str
    operator: str = ""
    operand: Word | None = None
    replacement: Word | None = None

    def expand(self, values: Mapping[str, str]) -> str:
        """The text this stands for; a variable that is not set is empty. Raises Problem for `?`."""
        value = values.get(self.name)
        if self.operand is None:
            return value or ""
        if self.operator[0] in "#%/":
            return self._cut(value or "", self.operand.expand(values), values)
        missing = not value if self.operator.startswith(":") else value is None
        if self.operator.endswith("+"):
            return "" if missing else self.operand.expand(values)
        if not missing:
            return value or ""
        if self.operator.endswith("-"):
            return self.operand.expand(values)
        raise Problem(f"${{{self.name}}} has no value: {self.operand.expand(values) or 'it is required'}")

    def _cut(self, value: str, pattern: str, values: Mapping[str, str]) -> str:
        if self.replacement is not None:
            new = self.replacement.expand(values)
            return replaced(value, pattern, new, every=self.operator == "//", most=LONGEST)
        cut = without_prefix if self.operator.startswith("#") else without_suffix
        return cut(value, pattern, longest=len(self.operator) == 2)


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its quotes removed: literal text and variables in order."""

    parts: tuple[str | Variable, ...]

    def expand(self, values: Mapping[str, str]) -> str:
        """The word with every variable replaced. Raises Problem when a required variable has no value.

        And when it gets too long: each of a few lines that name a variable twice doubles it.
        """
        text = "".join(part if isinstance(part, str) else part.expand(values) for part in self.parts)
        if len(text) > LONGEST and self.parts != (text,):
            raise Problem(f"with its variables replaced it has more than {LONGEST} characters")
        return text


def parse_word(text: str, escape: str = "\\") -> Word:
    """Read a word in which quotes and escapes count. Raises Problem for what cannot be understood."""
    return _Reader(text, escape).word("")


def parse_text(text: str) -> Word:
    """Read the text of a heredoc: variables and backslashes count, quotes do not. Raises Problem."""
    return _Reader(text, "\\", quotes=False).word("")


class _Reader:
    """A place in a text, moved forward by each of its methods."""

    def __init__(self, text: str, escape: str, quotes: bool = True) -> None:
        self.text = text
        self.escape = escape
        self.quotes = quotes
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        char = self.peek()
        self.at += 1
        return char

    def word(self, stop: str, raw: bool = False) -> Word:
        """Everything up to `stop` (taken, not kept), or to the end when it is empty; `raw` keeps the escapes."""
        parts: list[str | Variable] = []
        while (char := self.peek()) and char != stop:
            if char == "$":
                parts.append(self.dollar())
            elif self.quotes and char == "'":
                parts.append(self.single_quoted())
            elif self.quotes and char == '"':
                parts.extend(self.double_quoted())
            elif char == self.escape:
                self.take()
                parts.append((char if raw and self.peek() not in ("}", "/") else "") + self.take())
            else:
                parts.append(self.take())
        if stop and not self.take():
            raise Problem("a ${...} is never closed")
        return Word(_joined(parts))

    def single_quoted(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise Problem("a single quote is never closed")
        inside = self.text[self.at + 1 : end]
        self.at = end + 1
        return inside

    def double_quoted(self) -> list[str | Variable]:
        self.take()
        parts: list[str | Variable] = []
        while (char := self.peek()) != '"':
            if not char:
                raise Problem("a double quote is never closed")
            if char == "$":
                parts.append(self.dollar())
                continue
            self.take()
            if char == self.escape and self.peek() and self.peek() in f'"${self.escape}':
                char = self.take()
            parts.append(char)
        self.take()
        return parts

    def dollar(self) -> str | Variable:
        self.take()
        if self.peek() == "{":
            self.take()
            return self.braced()
        name = self.name()
        return Variable(name) if name else "$"

    def name(self) -> str:
        """A name, a number or one of the shell's special parameters; empty when there is none."""
        if self.peek() in _SPECIAL:
            return self.take()
        only_digits = self.peek().isdigit()
        start = self.at
        while (char := self.peek()) and (char.isdigit() if only_digits else char.isalnum() or char == "_"):
            self.take()
        return self.text[start : self.at]

    def braced(self) -> Variable:
        name = self.name()
        if not self.peek():
            raise Problem("a ${...} is never closed")
        if not name:
            raise Problem("a ${...} holds no variable name")
        if self.peek() == "}":
            self.take()
            return Variable(name)
        operator = self.take()
        if operator == ":" or (operator in "#%/" and self.peek() == operator):
            operator += self.take()
        if operator not in _OPERATORS:
            raise Problem(f"${{{name}{operator}...}} is not supported: use one of {' '.join(_OPERATORS)}")
        if self.depth == _DEEPEST:
            raise Problem(f"${{...}} is nested more than {_DEEPEST} deep")
        self.depth += 1
        replaces = operator.startswith("/")
        operand = self.word("/" if replaces else "}", raw=operator[0] in "#%/")
        replacement = self.word("}", raw=True) if replaces else None
        self.depth -= 1
        return Variable(name, operator, operand, replacement)


def _joined(parts: list[str | Variable]) -> tuple[str | Variable, ...]:
    """The parts with neighbouring pieces of text made one."""
    joined: list[str | Variable] = []
    text: list[str] = []
    for part in parts:
        if isinstance(part, str):
            text.append(part)
            continue
        if text:
            joined.append("".join(text))
            text = []
        joined.append(part)
    if text:
        joined.append("".join(text))
    return tuple(joined)


def split_words(text: str, escape: str = "\\") -> list[str]:
    """Split at white space outside quotes; quotes and escapes stay in the words."""
    words: list[str] = []
    word = ""
    quote = ""
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char == escape and quote != "'":
            if position < len(text):
                word += char + text[position]
            position += 1
        elif char.isspace() and not quote:
            if word:
                words.append(word)
            word = ""
        else:
            word += char
            if quote == char:
                quote = ""
            elif not quote and char in "\"'":
                quote = char
    return [*words, word] if word else words
