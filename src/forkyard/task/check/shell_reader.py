"""Reading a shell script, tolerantly: comments, quotes, heredocs, substitutions, compounds.

Nothing is expanded or run, and nothing is refused: what cannot be understood is read as words.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from forkyard.task.check.shell import ASSIGNMENT, Command, Redirect, Script, Word
from forkyard.task.check.shell_words import Cursor, Lines

_REDIRECT = re.compile(r"(?:\d+|\{\w+\})?(?:<<<|<<-?|<>|<&|>>|>\||>&|<|>)|&>>|&>")
_OPERATOR = re.compile(r"&&|\|\||\|&|;;&|;;|;&|[;&|()]")
_BODY, _CONDITION, _PATTERN = "body", "condition", "pattern"
DEEPEST = 8  # of $( ... ) in each other


def read_script(text: str, line: int = 1) -> Script:
    """A script whose first line is numbered `line`. Never raises."""
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    first = text.partition("\n")[0]
    reader = _Reader(text, line)
    with suppress(RecursionError):  # quotes in substitutions in quotes without end: what was read by then counts
        reader.read(0, len(text))
    return Script(text, first[2:].strip() if first.startswith("#!") else "", tuple(reader.commands))


@dataclass(slots=True)
class _Frame:
    """A compound that is open: from which command on, and which part of it is being read."""

    kind: str
    start: int
    part: str = _BODY
    conditional: bool = False
    guarded: bool = False
    function: str = ""


class _Reader:
    """One pass over a text; `read` is called again for each substitution."""

    def __init__(self, text: str, line: int) -> None:
        self.lines = Lines(text, line)
        self.commands: list[Command] = []
        self._depth = 0

    def read(self, at: int, end: int, within: str | None = None, function: str = "", base: bool = False) -> None:
        """Read the commands of a part of the text."""
        if self._depth >= DEEPEST:
            return
        self._depth += 1
        _Pass(self, at, end, within, function, base).run()
        self._depth -= 1


class _Pass(Cursor):
    def __init__(
        self, reader: _Reader, at: int, end: int, within: str | None, function: str, conditional: bool
    ) -> None:
        super().__init__(reader.lines, at, end)
        self.reader = reader
        self.within, self.function, self.conditional = within, function, conditional
        self.frames: list[_Frame] = []
        self.current: Command | None = None
        self.closed: _Frame | None = None  # the compound that has just ended: redirects and && behind it are its own
        self.joined = ""  # the operator in front of what comes next
        self.previous: Command | None = None
        self.negated = False
        self.name = ""  # of a function whose body comes next
        self.heredocs: list[tuple[Command | None, _Frame | None, str, Word]] = []

    def run(self) -> None:
        while self.at < self.end:
            char = self.text[self.at]
            if char in " \t" or self.text.startswith("\\\n", self.at):
                self.at += 2 if char == "\\" else 1
            elif char == "#":
                self.skip_to("\n")
            elif char == "\n":
                self.at += 1
                self._finish(";")
                self._take_heredocs()
            elif self._redirect() or self._operator():
                continue
            else:
                self._word()
        self._finish(";")

    # -- pieces

    def _redirect(self) -> bool:
        match = _REDIRECT.match(self.text, self.at, self.end)
        if match is None or (match[0] in ("<", ">") and self.text.startswith("(", match.end())):
            return False
        operator = match[0].lstrip("0123456789")
        operator = operator.partition("}")[2] if operator.startswith("{") else operator
        self.at = match.end()
        while self.at < self.end and self.text[self.at] in " \t":
            self.at += 1
        if self.at >= self.end or self.text[self.at] == "\n":
            return True
        target = self._read_word()
        if self.current is None and self.closed is None:
            self.current = self._command(target.line, target.column)
        if operator in ("<<", "<<-"):
            self.heredocs.append((self.current, self.closed, operator, target))
        else:
            self._attach(self.current, self.closed, Redirect(operator, target))
        return True

    def _attach(self, command: Command | None, frame: _Frame | None, redirect: Redirect) -> None:
        for each in [command] if command else self.reader.commands[frame.start :] if frame else []:
            each.redirects.append(redirect)

    def _take_heredocs(self) -> None:
        for command, frame, operator, target in self.heredocs:
            lines = []
            while self.at < self.end:
                stop = self.text.find("\n", self.at, self.end)
                stop = self.end if stop < 0 else stop
                line = self.text[self.at : stop]
                self.at = min(stop + 1, self.end)
                line = line.lstrip("\t") if operator == "<<-" else line
                if line == target.text:
                    break
                lines.append(line + "\n")
            self._attach(command, frame, Redirect(operator, target, "".join(lines)))
        self.heredocs.clear()

    def _operator(self) -> bool:
        match = _OPERATOR.match(self.text, self.at, self.end)
        if match is None:
            return False
        operator = match[0]
        if operator == "(" and self.current is None and self.text.startswith("((", self.at):
            self.skip_to("))")
            self.at = min(self.at + 2, self.end)
            self.current = self._command(*self.place(match.start()))
            return True
        self.at = match.end()
        if operator == "(":
            self._open_parenthesis()
        elif operator == ")":
            self._close_parenthesis()
        else:
            self._finish(operator)
        return True

    def _open_parenthesis(self) -> None:
        if self.current is not None and len(self.current.words) == 1 and not self.current.redirects:
            self.name = self.current.words[0].text  # name() { ... }
            self.current = None
        elif self.current is None and not self._in_pattern():
            self._open("subshell")

    def _close_parenthesis(self) -> None:
        if self._in_pattern():
            self.current = None
            self.frames[-1].part = _BODY
            return
        self._finish(";")
        if self.frames and self.frames[-1].kind == "subshell":
            self._close()

    def _in_pattern(self) -> bool:
        return bool(self.frames) and self.frames[-1].part == _PATTERN

    # -- words

    def _word(self) -> None:
        start = self.at
        word = self._read_word()
        if self.at == start:
            self.at += 1
            return
        if self.current is None and not word.quoted and self._keyword(word):
            return
        if self._in_pattern():
            return
        if self.current is None:
            self.current = self._command(word.line, word.column)
        match = ASSIGNMENT.match(self.text, start, self.at)
        if match and not self.current.words:
            value = Word(word.text[match.end() - start :], word.line, word.column, word.literal, word.quoted)
            self.current.assignments[match[1]] = value
            if self.text.startswith("(", self.at):
                self.skip_to(")")
                self.at = min(self.at + 1, self.end)
            return
        self.current.words.append(word)
        if len(self.current.words) == 1 and word.text == "[[" and not word.quoted:
            self._double_brackets(self.current)

    def _double_brackets(self, command: Command) -> None:
        while self.at < self.end and (not command.words or command.words[-1].text != "]]"):
            char = self.text[self.at]
            if char in " \t\n&|<>();" or self.text.startswith("\\\n", self.at):
                self.at += 1
                continue
            command.words.append(self._read_word())

    def _read_word(self) -> Word:
        outer = self.current.words[0].text if self.current and self.current.words else ""
        word = self.read_word()
        inner, self.inner = self.inner, []
        for start, end in inner:
            self.reader.read(start, end, outer, self._function(), self._conditional())
        return word

    # -- structure

    def _keyword(self, word: Word) -> bool:
        text = word.text
        top = self.frames[-1] if self.frames else None
        if self._in_pattern() and text != "esac":
            return False
        if text == "!":
            self.negated = True
        elif text in ("if", "while", "until"):
            self._open(text, part=_CONDITION)
        elif text in ("then", "do", "elif", "else"):
            if top:
                top.part = _CONDITION if text == "elif" else _BODY
        elif text == "{":
            self._open("group")
        elif text in ("fi", "done", "esac", "}"):
            if top:
                self._close()
        elif text in ("for", "select", "case", "function"):
            self._head(text, word)
        else:
            return False
        return True

    def _head(self, text: str, word: Word) -> None:
        """`for x in a b`, `case x in` and `function name`, up to where commands begin."""
        words: list[str] = []
        if re.compile(r"[ \t]*\(\(").match(self.text, self.at):  # for ((i = 0; i < 3; i++))
            self.skip_to("))")
            self.at = min(self.at + 2, self.end)
        while self.at < self.end and self.text[self.at] not in "\n;{":
            before = self.at
            if self.text[self.at] in " \t()" or self.text.startswith("\\\n", self.at):
                self.at += 1
                continue
            words.append(self._read_word().text)
            if self.at == before:
                self.at += 1
            if text == "case" and words[-1] == "in" and len(words) > 1:
                break
        if text == "function":
            self.name = words[0] if words else ""
            return
        self._open("case" if text == "case" else "loop", part=_PATTERN if text == "case" else _CONDITION)

    def _open(self, kind: str, part: str = _BODY) -> None:
        joined = self.joined in ("&&", "||")
        frame = _Frame(kind, len(self.reader.commands), part, joined, self.negated, self.name)
        self.frames.append(frame)
        self.joined, self.negated, self.name, self.closed, self.previous = "", False, "", None, None

    def _close(self) -> None:
        self._finish(";")
        self.closed = self.frames.pop()

    def _function(self) -> str:
        return next((frame.function for frame in reversed(self.frames) if frame.function), self.function)

    def _conditional(self) -> bool:
        inside = any(f.kind in ("if", "while", "until", "loop", "case") and f.part == _BODY for f in self.frames)
        return self.conditional or inside or any(frame.conditional for frame in self.frames)

    def _command(self, line: int, column: int) -> Command:
        command = Command(line, column, function=self._function(), within=self.within)
        command.conditional = self._conditional() or self.joined in ("&&", "||")
        command.guarded = self.negated or any(f.part == _CONDITION or f.guarded for f in self.frames)
        if self.joined in ("|", "|&"):
            command.piped_from = self.previous
        self.negated, self.closed = False, None
        return command

    def _finish(self, operator: str) -> None:
        """End the command or compound in front of an operator."""
        command, frame = self.current, self.closed
        if command is not None:
            self.reader.commands.append(command)
            self._inner_text(command)
        ended = [command] if command else self.reader.commands[frame.start :] if frame else []
        if operator in ("&&", "||", "&"):
            for each in ended:
                each.guarded = True
        if operator in (";;", ";&", ";;&") and self.frames and self.frames[-1].kind == "case":
            self.frames[-1].part = _PATTERN
        if ended or operator in (";;", ";&", ";;&"):
            self.previous = command
            self.joined = operator if operator in ("&&", "||", "|", "|&") else ""
            self.current = self.closed = None

    def _inner_text(self, command: Command) -> None:
        """Commands that stand in a word: `sh -c '...'`, `trap '...' EXIT`, `eval '...'`."""
        argv = command.argv
        texts = [word.text for word in argv]
        at = 1
        if command.name in ("bash", "sh", "dash", "zsh"):
            at = next((n + 1 for n, text in enumerate(texts) if n and re.fullmatch(r"-\w*c", text)), len(texts))
        elif command.name not in ("trap", "eval"):
            return
        if at < len(argv) and self.reader._depth < DEEPEST:
            inner = read_script(argv[at].text, argv[at].line)
            for each in inner.commands:
                each.within, each.function, each.conditional = command.name, command.function, True
            self.reader.commands += inner.commands
