"""Rules on single files: the solution, the statement, scripts, secrets."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping

from forkyard.task.check.finding import Spot
from forkyard.task.check.registry import rule
from forkyard.task.check.rewards import reward_writes
from forkyard.task.check.subject import Subject

_TRUTH = re.compile(
    r"(?:^|[\s\"'=(:])(?:/tests(?:/[\w./-]*)?|(?:\.\./|\$\(dirname[^)]*\)/\.\./|\$\{?\w*DIR\}?/\.\./)tests(?:/[\w./-]*)?)(?![\w-])"
)
_PLACES = re.compile(
    r"(?<![\w./-])(/tests(?:/[\w./-]+)?|/solution(?:/[\w./-]+)?|(?:tests/)?test\.sh|(?:solution/)?solve\.sh|/logs/verifier[\w./-]*)(?![\w-])"
)
_SECRETS = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_\w{50,}\b|\bsk-ant-[\w-]{20,}|\bsk-(?=[\w-]*\d)(?=[\w-]*[A-Z])[\w-]{32,}"
    r"|\bxox[abprs]-[\w-]{10,}|\bAIza[\w-]{35}\b|\bhf_[A-Za-z0-9]{30,}\b|\bglpat-[\w-]{20}\b|\bnpm_[A-Za-z0-9]{36}\b|\bpypi-[\w-]{50,}"
    r"|-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"
)
_SECRET_NAME = re.compile(r"(?:API_?KEY|ACCESS_?KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE)
_PUBLIC = re.compile(
    r"(?:test|dummy|fake|example|changeme|placeholder|password|secret|token|local|none|x+|\$.*)", re.IGNORECASE
)


@rule("error")
def reference_reads_truth(subject: Subject) -> Iterable[Spot]:
    """The solution goes to /tests, which nobody has who solves the task."""
    for path in subject.reference:
        for number, line in _lines(subject, path):
            if _TRUTH.search(line):
                yield Spot(
                    path,
                    "goes to /tests, which is not there while the task is solved; solve it as an agent would",
                    number,
                )


@rule("error")
def reference_writes_reward(subject: Subject) -> Iterable[Spot]:
    """The solution writes the reward itself."""
    for path, script in subject.shell_scripts(subject.reference):
        for write in reward_writes(script):
            yield Spot(
                path,
                f"writes {write.path}, which is removed before the tests run; solve the task",
                write.command.line,
                write.command.column,
            )


@rule("warning")
def statement_names_hidden_files(subject: Subject) -> Iterable[Spot]:
    """The instruction names files that the agent does not have: tests, the solution, the reward."""
    given = {posixpath.basename(path) for path in subject.below("environment")}
    names = {posixpath.basename(path) for path in (*subject.hidden, *subject.reference)} - given
    for part in subject.parts:
        for number, line in enumerate((subject.text(part.instruction) or "").splitlines(), 1):
            match = _PLACES.search(line)
            words = [word.strip(".") for word in re.findall(r"(?<![\w./-])[\w.-]+\.\w+", line)]
            named = next((word for word in words if word in names and _is_telling(word)), None)
            if (match and posixpath.basename(match[1]) not in given) or named:
                yield Spot(
                    part.instruction, f"names {match[1] if match else named}, which is hidden from the agent", number
                )


def _is_telling(name: str) -> bool:
    return bool(re.match(r"test_|check|expected|verif|grad|reward", name)) or name.endswith("_test.py")


def _lines(subject: Subject, path: str) -> Iterator[tuple[int, str]]:
    """The lines of a file that are no comments."""
    for number, line in enumerate((subject.text(path) or "").splitlines(), 1):
        text = line.strip()
        if text and not text.startswith(("#", "//")):
            yield number, re.sub(r"\s#\s.*", "", line)


def _entry_scripts(subject: Subject) -> tuple[str, ...]:
    solutions = (f"{part.solution}/solve.sh" for part in subject.parts)
    return (*subject.test_scripts, *(path for path in solutions if path in subject.files))


@rule("error")
def crlf_script(subject: Subject) -> Iterable[Spot]:
    """A script has lines that end in CR LF, which no interpreter takes."""
    for path in subject.files:
        data = subject.raw(path) if path.endswith((".sh", ".py")) or path in _entry_scripts(subject) else b""
        line = data.count(b"\n", 0, data.find(b"\r\n")) + 1 if b"\r\n" in data else 0
        if line and (path.endswith(".sh") or data.partition(b"\n")[0].startswith(b"#!")):
            yield Spot(path, "has lines that end in CR LF; save it with LF", line)


@rule("error")
def missing_shebang(subject: Subject) -> Iterable[Spot]:
    """test.sh or solve.sh does not begin with `#!`, so nothing says what runs it."""
    for path in _entry_scripts(subject):
        data = subject.raw(path)
        if data.strip() and not data.startswith((b"#!", b"\x7fELF")):
            yield Spot(path, "has no #! line; begin it with #!/bin/bash", 1, 1)


@rule("note")
def not_executable(subject: Subject) -> Iterable[Spot]:
    """test.sh or solve.sh has no exec bit. It is given one here; not every tool does that."""
    for path in _entry_scripts(subject):
        if not (subject.root / path).stat().st_mode & 0o111:
            yield Spot(path, "has no exec bit; chmod +x")


@rule("error")
def secret_in_file(subject: Subject) -> Iterable[Spot]:
    """A file holds what looks like a key or a password of a service."""
    for path in subject.files:
        for number, line in enumerate((subject.text(path) or "").splitlines(), 1):
            if match := _SECRETS.search(line):
                yield Spot(
                    path,
                    f"holds what looks like a secret, {match[0][:8]}...; revoke it, and ask for it by ${{NAME}}",
                    number,
                    match.start() + 1,
                )
    for table in (("environment",), ("verifier",), ("solution",)):
        env = subject.value(*table, "env")
        for name, value in env.items() if isinstance(env, Mapping) else ():
            plain = isinstance(value, str) and len(value) >= 12 and not _PUBLIC.match(value)
            if plain and _SECRET_NAME.search(name) and not _SECRETS.search(value):
                yield subject.said(*table, "env", name, message=f"{name} is spelt out; ask for it by ${{{name}}}")
