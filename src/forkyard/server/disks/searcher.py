"""A search by ripgrep's rules, as far as Python has them: what runs in a sandbox whose image has no `rg`.

It is given as text to the sandbox's own Python (3.8 or newer), with one argument, a JSON object: `patterns`,
`recursive`, `ignore_case`, `multiline`, `globs`, `types`, `types_not`, `before` and `after`. It searches the working
directory, and writes lines as `rg --json` does. The exit code is rg's: 0 for matches, 1 for none, 2 for an error.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Iterator
from re import Pattern
from typing import Any

LARGEST_WHOLE = 64 << 20  # bytes of a file that is searched across its lines
HEAD = 64 << 10  # a NUL byte in these says that a file is no text
TYPES = {
    "c": "*.c *.h",
    "cpp": "*.cpp *.cc *.cxx *.c++ *.hpp *.hh *.hxx *.h *.inl",
    "cs": "*.cs",
    "css": "*.css *.scss",
    "csv": "*.csv",
    "dockerfile": "Dockerfile* *Dockerfile",
    "go": "*.go",
    "html": "*.html *.htm *.ejs",
    "java": "*.java *.jsp *.jspx *.properties",
    "js": "*.js *.jsx *.cjs *.mjs *.vue",
    "json": "*.json *.sarif composer.lock",
    "jsonl": "*.jsonl",
    "log": "*.log",
    "lua": "*.lua",
    "make": "Makefile* GNUmakefile makefile *.mk *.mak",
    "markdown": "*.md *.markdown *.mdown *.mkd *.mkdn *.mdwn *.mdx",
    "php": "*.php *.php3 *.php4 *.php5 *.phtml",
    "py": "*.py *.pyi",
    "rb": "*.rb *.gemspec *.rbw Gemfile Rakefile config.ru",
    "rust": "*.rs",
    "sh": "*.sh *.bash *.csh *.ksh *.tcsh *.zsh .bashrc .profile .zshrc",
    "sql": "*.sql *.psql",
    "swift": "*.swift",
    "tex": "*.tex *.ltx *.cls *.sty *.bib",
    "toml": "*.toml Cargo.lock",
    "ts": "*.ts *.tsx *.cts *.mts",
    "txt": "*.txt",
    "xml": "*.xml *.dtd *.xsl *.xslt *.xsd *.rng",
    "yaml": "*.yaml *.yml",
}
ALIASES = {
    "docker": "dockerfile", "golang": "go", "md": "markdown", "python": "py", "ruby": "rb", "typescript": "ts",
}  # fmt: skip
CLASSES = {
    "[:alpha:]": "a-zA-Z", "[:digit:]": "0-9", "[:alnum:]": "a-zA-Z0-9", "[:upper:]": "A-Z", "[:lower:]": "a-z",
    "[:space:]": r"\s", "[:word:]": r"\w", "[:xdigit:]": "0-9a-fA-F", "[:blank:]": r" \t",
    "[:punct:]": r"!-/:-@\[-`{-~",
}  # fmt: skip


def glob(text: str) -> str:
    """A regular expression for the whole of what a glob matches."""
    out, at, braces = "", 0, 0
    while at < len(text):
        char, rest = text[at], text[at:]
        if rest.startswith("**/"):
            out, at = out + "(?:.*/)?", at + 3
            continue
        if rest.startswith("**"):
            out, at = out + ".*", at + 2
            continue
        found = re.match(r"\[[!^]?\]?[^\]]*\]", rest) if char == "[" else None
        if found:
            inner = found[0][1:-1].replace("\\", "\\\\")
            out, at = out + f"[{'^' + inner[1:] if inner[:1] in ('!', '^') else inner}]", at + len(found[0])
            continue
        if char == "\\" and at + 1 < len(text):
            char, at = "\\" + text[at + 1], at + 1
        braces += (char == "{") - (char == "}" and braces > 0)
        out += {"*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")"}.get(char) or (
            "|" if char == "," and braces else re.escape(char[-1])
        )
        at += 1
    return out


class Rule:
    """One glob: whether it lets in or keeps out, and what it is about."""

    def __init__(self, text: str) -> None:
        self.lets_in = not text.startswith("!")
        text = text.lstrip("!") if not self.lets_in else text
        self.directories = text.endswith("/")
        text = text.rstrip("/")
        self.whole = "/" in text
        self.match = re.compile(glob(text.lstrip("/")), re.S).fullmatch

    def covers(self, path: str, directory: bool) -> bool:
        """Whether it says something of this path."""
        if self.directories and not directory:
            return False
        return self.match(path if self.whole else path.rpartition("/")[2]) is not None


class Choice:
    """Which files are searched, and which directories entered."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.rules = [Rule(text) for text in asked["globs"]]
        self.types = self._of(asked["types"])
        self.types_not = self._of(asked["types_not"])
        self.by_type = bool(asked["types"])

    @staticmethod
    def _of(names: list[str]) -> list[Rule]:
        return [Rule(each) for name in names for each in TYPES[ALIASES.get(name, name)].split()]

    def last(self, path: str, directory: bool) -> bool | None:
        """What the last glob about a path says; None when there is none."""
        found = [rule.lets_in for rule in self.rules if rule.covers(path, directory)]
        return found[-1] if found else None

    def takes(self, path: str) -> bool:
        """Whether a file is searched."""
        said = self.last(path, False)
        if said is not None:
            return said
        if any(rule.lets_in for rule in self.rules) or any(rule.covers(path, False) for rule in self.types_not):
            return False
        return not self.by_type or any(rule.covers(path, False) for rule in self.types)


def files(choice: Choice, recursive: bool) -> Iterator[str]:
    """The paths of the files to search, in order; no link is followed."""
    for top, directories, names in os.walk("."):
        prefix = top[2:] + "/" if top != "." else ""
        directories[:] = sorted(each for each in directories if choice.last(prefix + each, True) is not False)
        for name in sorted(names):
            if choice.takes(prefix + name):
                yield prefix + name
        if not recursive:
            return


def say(kind: str, **data: Any) -> None:
    """One line of the answer."""
    sys.stdout.write(json.dumps({"type": kind, "data": data}) + "\n")


class Search:
    """Patterns, and what is told of a file in which they are found."""

    def __init__(self, asked: dict[str, Any]) -> None:
        flags = re.M | (re.I if asked["ignore_case"] else 0)
        self.patterns: list[Pattern[str]] = [re.compile(_python(each), flags) for each in asked["patterns"]]
        self.before, self.after, self.multiline = asked["before"], asked["after"], asked["multiline"]
        self.searches = 0
        self.found = False

    def file(self, path: str) -> None:
        """Search one file. OSError when it cannot be read."""
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return
            self.searches += 1
            if b"\0" in file.peek(HEAD)[:HEAD]:
                return
            lines = enumerate((line.decode("utf-8", "replace") for line in file), 1)
            self._tell(path, self._spans(file.read(LARGEST_WHOLE + 1)) if self.multiline else self._lines(lines))

    def _lines(self, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str, bool]]:
        for number, line in lines:
            yield number, line, any(pattern.search(line.rstrip("\n")) for pattern in self.patterns)

    def _spans(self, content: bytes) -> Iterator[tuple[int, str, bool]]:
        """Lines as they are matched: those that one match covers, and matches on lines that touch, are one."""
        if len(content) > LARGEST_WHOLE:
            raise OSError("too large to be searched across its lines")
        text = content.decode("utf-8", "replace")
        lines = text.splitlines(True) if "\r" not in text else re.findall(r"[^\n]*\n|[^\n]+", text)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        hit: set[int] = set()
        for pattern in self.patterns:
            for match in pattern.finditer(text):
                last = max(match.start(), match.end() - 1)
                hit.update(n for n in range(_line(starts, match.start()), _line(starts, last) + 1) if n < len(lines))
        at = 0
        while at < len(lines):
            end = at
            while end in hit:
                end += 1
            yield at + 1, "".join(lines[at : max(end, at + 1)]), end > at
            at = max(end, at + 1)

    def _tell(self, path: str, lines: Iterator[tuple[int, str, bool]]) -> None:
        waiting: deque[tuple[int, str]] = deque(maxlen=self.before)
        begun, after = False, 0
        for number, text, matches in lines:
            if matches and not begun:
                say("begin", path={"text": path})
                begun = self.found = True
            if matches:
                for one, line in waiting:
                    say("context", path={"text": path}, lines={"text": line}, line_number=one)
                waiting.clear()
                after = self.after
                say("match", path={"text": path}, lines={"text": text}, line_number=number)
            elif after:
                after -= 1
                say("context", path={"text": path}, lines={"text": text}, line_number=number)
            else:
                waiting.append((number, text))
        if begun:
            say("end", path={"text": path})


def _line(starts: list[int], position: int) -> int:
    import bisect

    return bisect.bisect_right(starts, position) - 1


def _python(pattern: str) -> str:
    for name, chars in CLASSES.items():
        pattern = pattern.replace(name, chars)
    return pattern.replace(r"\z", r"\Z")


def main() -> int:
    """Search, and say what was found."""
    asked = json.loads(sys.argv[1])
    try:
        search, choice = Search(asked), Choice(asked)
    except (re.error, KeyError) as err:
        sys.stderr.write(f"{type(err).__name__}: {err}\n")
        return 2
    failed = False
    for path in files(choice, asked["recursive"]):
        try:
            search.file(path)
        except OSError as err:
            failed = True
            sys.stderr.write(f"{path}: {err}\n")
    say("summary", stats={"searches": search.searches})
    return 2 if failed else 0 if search.found else 1


if __name__ == "__main__":
    sys.exit(main())
