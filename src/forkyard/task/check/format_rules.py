"""Rules on the format: what keeps a task from being loaded, and what in its task.toml is unlikely to be meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from forkyard.errors import ConfigError
from forkyard.image import parse_dockerfile
from forkyard.task.check.finding import Spot
from forkyard.task.check.registry import rule
from forkyard.task.check.subject import AGENT_IMAGE, VERIFIER_IMAGE, Subject
from forkyard.task.directory.digest import harbor_ignore
from forkyard.task.directory.ignore import IgnoreRules
from forkyard.task.directory.load import load_task

_PLACE = re.compile(r"(?P<path>[^:,]+?)(?:, line (?P<line>\d+))?(?::? )(?P<message>.*)", re.DOTALL)
SHORT_AGENT, LONG_AGENT = 10.0, 86_400.0
SHORT_VERIFIER, LONG_VERIFIER = 10.0, 7200.0


class _AnyVariable(Mapping[str, str]):
    """A host that has every variable: which of them there are is no matter of the task."""

    def __getitem__(self, name: str) -> str:
        return "value"

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@lru_cache(maxsize=4)  # several rules share them
def _problems(subject: Subject) -> list[Spot]:
    """What the reader of tasks says."""
    try:
        load_task(subject.root, _AnyVariable())
    except ConfigError as err:
        return [_spot(subject, problem) for problem in err.problems]
    return []


def _spot(subject: Subject, problem: str) -> Spot:
    rest = problem.removeprefix(f"{subject.root}/")
    known = next((path for path in sorted(subject.files, key=len, reverse=True) if rest.startswith(path)), None)
    if rest == problem:
        return Spot("", problem)
    if known is None:
        match = _PLACE.fullmatch(rest.partition(" ")[0] + ": " + rest.partition(" ")[2])
        return Spot(match["path"], match["message"]) if match else Spot("", rest)
    match = _PLACE.fullmatch(f"{'x' * len(known)}{rest[len(known) :]}")
    if match is None:
        return Spot(known, rest)
    line = match["line"] or next(iter(re.findall(r"\(at line (\d+)|, line (\d+)", rest)), ("",))[0]
    return Spot(known, match["message"], int(line) if line else None)


@rule("error")
def invalid_task_config(subject: Subject) -> Iterable[Spot]:
    """task.toml cannot be read: no TOML, a wrong type, a value out of range, keys that contradict each other."""
    return (
        spot
        for spot in _problems(subject)
        if spot.path == "task.toml" and not _is_missing(spot) and not _is_unknown(spot)
    )


@rule("error")
def unknown_config_field(subject: Subject) -> Iterable[Spot]:
    """task.toml has a key that the format does not know."""
    return filter(_is_unknown, _problems(subject))


@rule("error")
def invalid_task_files(subject: Subject) -> Iterable[Spot]:
    """A file that every task needs is missing, empty or excluded, or one is there that cannot be part of a task."""
    return (spot for spot in _problems(subject) if spot.path != "task.toml" or _is_missing(spot))


def _is_unknown(spot: Spot) -> bool:
    return "is not a key of the task format" in spot.message


def _is_missing(spot: Spot) -> bool:
    return spot.message.startswith(("is missing", "cannot be read"))


@rule("error")
def invalid_dockerfile(subject: Subject) -> Iterable[Spot]:
    """A Dockerfile of the task cannot be understood."""
    for path in (AGENT_IMAGE, VERIFIER_IMAGE):
        if path not in subject.files:
            continue
        try:
            parse_dockerfile(subject.raw(path), path)
        except ConfigError as err:
            for problem in err.problems:
                match = re.fullmatch(rf"{re.escape(path)}(?::(\d+))?: (.*)", problem, re.DOTALL)
                yield Spot(path, match[2], int(match[1]) if match[1] else None) if match else Spot(path, problem)


@rule("warning")
def unused_harborignore(subject: Subject) -> Iterable[Spot]:
    """A line of .harborignore excludes nothing of the tests and solutions, the only files it may exclude."""
    open_files = [path for path in subject.files if path.split("/")[0] in ("tests", "solution", "steps")]
    lines = (subject.text(".harborignore") or "").splitlines()
    left_out = harbor_ignore(subject.root) if lines else lambda path: False
    excluded = [path for path in open_files if left_out(path)]
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(("#", "!")):
            continue
        if not any(IgnoreRules([line]).excludes(path) for path in excluded):
            yield Spot(".harborignore", f"{line.strip()} excludes no file of tests/ or solution/", number)


def artifacts_of(subject: Subject) -> Iterator[tuple[int, str, str]]:
    """The entries of `artifacts`: number, source without a slash at its end, service."""
    entries: Any = subject.value("artifacts", default=[])
    for number, entry in enumerate(entries if isinstance(entries, list) else []):
        table = entry if isinstance(entry, Mapping) else {"source": entry}
        source = table.get("source")
        if isinstance(source, str) and source:
            yield number, source.rstrip("/") or "/", str(table.get("service") or "main")


@rule("warning")
def overlapping_artifacts(subject: Subject) -> Iterable[Spot]:
    """Of two entries of `artifacts` one holds the other, so that one of them is skipped."""
    seen: list[tuple[str, str]] = []
    for number, source, service in artifacts_of(subject):
        for other, same in seen:
            if service == same and (_holds(source, other) or _holds(other, source)):
                yield subject.said("artifacts", number, message=f"{source} and {other} overlap; keep the wider one")
        seen.append((source, service))


def _holds(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


@rule("warning")
def artifact_log_overlap(subject: Subject) -> Iterable[Spot]:
    """An entry of `artifacts` lies in /logs, which is kept anyway, or holds it."""
    for number, source, service in artifacts_of(subject):
        if service == "main" and source != "/logs/artifacts" and (_holds("/logs", source) or _holds(source, "/logs")):
            yield subject.said("artifacts", number, message=f"{source}: what lies in /logs is kept without being named")


@rule("warning")
def artifacts_not_declared(subject: Subject) -> Iterable[Spot]:
    """The verifier is separate and no artifact is declared, so it sees nothing of what the agent made."""
    named = any("/logs/artifacts" in (subject.text(path) or "") for path in (*subject.hidden, "instruction.md"))
    collected = subject.value("verifier", "collect")
    if (
        subject.separate
        and not any(artifacts_of(subject))
        and not named
        and not collected
        and not subject.value("steps")
    ):
        yield subject.said(
            "verifier",
            "environment_mode",
            message="the verifier starts afresh and no artifact is declared: name the files it needs in `artifacts`",
        )


@rule("warning")
def odd_timeout(subject: Subject) -> Iterable[Spot]:
    """A deadline too short to do anything in, one that is no bound, or a verifier that sleeps past its own."""
    bounds = (("agent", SHORT_AGENT, LONG_AGENT), ("verifier", SHORT_VERIFIER, LONG_VERIFIER))
    for table, short, long in bounds:
        seconds = subject.value(table, "timeout_sec")
        if isinstance(seconds, int | float) and not short <= seconds <= long and seconds > 0:
            much = "short" if seconds < short else "long"
            yield subject.said(table, "timeout_sec", message=f"{seconds:g} s is {much} for the {table}")
    limit = subject.value("verifier", "timeout_sec", default=600.0)
    for path in subject.test_scripts:
        for command in subject.script(path).main:
            slept = command.words[1].text if command.name == "sleep" and len(command.words) > 1 else ""
            if re.fullmatch(r"\d+", slept) and isinstance(limit, int | float) and int(slept) >= limit:
                yield Spot(
                    path, f"sleeps {slept} s, past the verifier's deadline of {limit:g} s", command.line, command.column
                )


@rule("warning")
def missing_solution(subject: Subject) -> Iterable[Spot]:
    """There is no solution/solve.sh, so nobody can see whether the task can be solved."""
    for part in subject.parts:
        if not any(f"{part.solution}/{name}" in subject.files for name in ("solve.sh", "solve.bat", "solution.patch")):
            yield Spot("", f"{part.solution}/solve.sh is missing: write how the task is solved")
