"""Rules on what a verifier trusts: the agent's files, the agent's code, the clock, chance."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

from forkyard.task.check.finding import Spot
from forkyard.task.check.registry import rule
from forkyard.task.check.reward_rules import runs_tests
from forkyard.task.check.rewards import constants, filled
from forkyard.task.check.shell import Command, Script
from forkyard.task.check.subject import Subject

_CHECKER = re.compile(
    r"(?:^|[._-])(?:tests?|check(?:er|s)?|verif(?:y|ier)|grad(?:e|er|ing)|scor(?:e|er|ing)|eval(?:uate)?)(?:[._-]|$)"
)
_INTERPRETERS = re.compile(r"(?:python|pypy)[\d.]*|bash|sh|dash|node|ruby|perl")
_SYSTEM = (
    "/tests",
    "/logs",
    "/tmp",
    "/usr",
    "/bin",
    "/etc",
    "/opt",
    "/dev",
    "/proc",
    "/root/.",
    "/solution",
    "/lib",
    "/venv",
    "/var/lib",
)
_IN_PROCESS = re.compile(
    r"""sys\.path\.(?:insert\(\s*\d+\s*,|append\()\s*(?:str\()?(?:Path\()?["'](?P<path>/[^"']*)["']"""
    r"""|(?:spec_from_file_location\([^)]*?|run_path\(|SourceFileLoader\([^)]*?|exec\(\s*open\(|exec\(\s*(?:pathlib\.)?Path\()["'](?P<file>/[^"']*)["']"""
)
_NOW = re.compile(
    r"\b(?:datetime\.(?:datetime\.)?(?:now|today|utcnow)|date\.today|datetime\.date\.today"
    r"|time\.(?:strftime|localtime|gmtime)|Date\.now|new Date)\(\s*\)?"
)
_CHANCE = re.compile(
    r"\b(?:random\.(?:random|randint|choice|choices|sample|shuffle|uniform|randrange)|np\.random\.\w+|numpy\.random\.\w+)\("
)
_SEEDED = re.compile(r"\bseed\(|Random\(\s*[\w\"']|default_rng\(\s*\w")


@rule("note")
def shared_verifier(subject: Subject) -> Iterable[Spot]:
    """The verifier works in the agent's sandbox, with the programs the agent left there."""
    if not subject.separate:
        yield subject.said(
            "verifier",
            "environment_mode",
            message="the verifier works in the sandbox that the agent had; where files are "
            'graded, `environment_mode = "separate"` or a run with `--verifier forked` keeps the agent out',
        )


def _is_agents(subject: Subject, path: str) -> bool:
    """Whether the agent can write a path: where it works, or where anybody can see that the task's files are not."""
    if not path.startswith("/") or path.startswith(_SYSTEM):
        return False
    place = subject.workdir
    return (place != "/" and (path == place or path.startswith(f"{place}/"))) or path.split("/")[1] in (
        "app",
        "workspace",
        "home",
        "repo",
        "work",
    )


@rule("warning")
def verifier_runs_agent_files(subject: Subject) -> Iterable[Spot]:
    """The verifier sources, or takes its checks from, files that the agent can write."""
    for path in subject.test_scripts if not subject.separate else ():
        script = subject.script(path)
        values, place = constants(script), subject.workdir
        for command in script.commands:
            words = [filled(word.text, values) for word in command.argv]
            if command.name == "cd" and len(words) > 1:
                place = posixpath.join(place, words[1])
            if what := _trusted(subject, command, words, place):
                yield Spot(path, f"{what}, which the agent can write; put it into tests/", command.line, command.column)


def _trusted(subject: Subject, command: Command, words: list[str], place: str) -> str | None:
    """What of the agent's a command lets decide, if it does."""
    arguments = [
        posixpath.join(place, word) if _relative(word) else word for word in words[1:] if not word.startswith("-")
    ]
    if command.name in ("source", ".") and arguments and _is_agents(subject, arguments[0]):
        return None if "/bin/activate" in arguments[0] else f"sources {arguments[0]}"
    if _INTERPRETERS.fullmatch(command.name) and arguments and "-m" not in words and "-c" not in words:
        return f"is graded by {arguments[0]}" if _is_checker(subject, arguments[0]) else None
    if words and words[0].startswith("/") and _is_checker(subject, words[0]):
        return f"is graded by {words[0]}"
    if not runs_tests(command):
        return None
    if command.name in ("npm", "yarn", "pnpm", "make", "cargo", "go", "mvn", "gradle", "dotnet"):
        return f"runs `{' '.join(words[:2])}` in {place}" if _is_agents(subject, place) else None
    paths = [each for each in arguments if each.startswith("/") and ("/" in each)]
    tests = [each for each in paths if each.startswith("/tests")]
    if tests:
        return None
    agents = [each for each in paths if _is_agents(subject, each)]
    named = any("$" in word or word.endswith(".py") for word in words[1:])
    return (
        f"collects tests in {(agents or [place])[0]}" if agents or (not named and _is_agents(subject, place)) else None
    )


def _relative(word: str) -> bool:
    return bool(re.match(r"\.{1,2}/|\w[\w.-]*/|[\w-]+\.(?:py|sh|js)$", word)) and "$" not in word


def _is_checker(subject: Subject, path: str) -> bool:
    return _is_agents(subject, path) and bool(_CHECKER.search(posixpath.basename(path)) or "/tests/" in path)


@rule("warning")
def agent_code_in_grader(subject: Subject) -> Iterable[Spot]:
    """The verifier imports the agent's code into its own process, where that can change any check."""
    for path, text in subject.python_files(subject.hidden):
        for match in _IN_PROCESS.finditer(text):
            if _is_agents(subject, found := match["path"] or match["file"]):
                line = text.count("\n", 0, match.start()) + 1
                yield Spot(
                    path, f"loads code from {found} into the process that grades; run it as a program of its own", line
                )
    for path, script in subject.shell_scripts(subject.hidden):
        for command, found in _python_paths(script):
            if _is_agents(subject, found):
                yield Spot(
                    path,
                    f"PYTHONPATH={found} lets the agent's modules into the process that grades",
                    command.line,
                    command.column,
                )


def _python_paths(script: Script) -> Iterator[tuple[Command, str]]:
    for command in script.commands:
        texts = [f"{name}={value.text}" for name, value in command.assignments.items()]
        for text in texts + [word.text for word in command.words]:
            name, equals, value = text.partition("=")
            if equals and name == "PYTHONPATH":
                yield from ((command, part) for part in value.split(":") if part.startswith("/"))


@rule("warning")
def clock_dependent_check(subject: Subject) -> Iterable[Spot]:
    """The verifier looks at the clock, so that its verdict may be another one tomorrow."""
    for path, script in subject.shell_scripts(subject.hidden):
        for command in script.commands:
            texts = [word.text for word in command.argv]
            fixed = any(text.startswith(("-d", "--date", "-r", "-f", "--reference")) for text in texts)
            told = command.within in ("echo", "printf", "log") or (command.within is None and not command.redirects)
            if command.name == "date" and not fixed and not told and not _times(script, command):
                yield Spot(
                    path,
                    "asks for the time; compare with a date that stands in the tests",
                    command.line,
                    command.column,
                )
    for path, text in subject.python_files(subject.hidden):
        for number, line in enumerate(text.splitlines(), 1):
            if (
                _NOW.search(line)
                and not line.lstrip().startswith("#")
                and not re.search(r"print\(|log|timestamp", line)
            ):
                yield Spot(path, "asks for the time; compare with a date that stands in the tests", number)


def _times(script: Script, command: Command) -> bool:
    """Whether the clock only measures how long something takes."""
    seconds = any(word.text.startswith("+%s") for word in command.words)
    return seconds and sum(each.name == "date" for each in script.commands) > 1


@rule("note")
def unseeded_randomness(subject: Subject) -> Iterable[Spot]:
    """The verifier draws by chance without a seed, so that the same work may earn another reward."""
    for path, script in subject.shell_scripts(subject.hidden):
        for number, line in enumerate(script.text.splitlines(), 1):
            if re.search(r"\$\{?RANDOM\b|\bshuf\b(?!.*--random-source)", line) and not line.lstrip().startswith("#"):
                yield Spot(path, "draws by chance; fix what is drawn", number)
    for path, text in subject.python_files(subject.hidden):
        match = _CHANCE.search(text)
        if match and not _SEEDED.search(text):
            yield Spot(
                path,
                "draws by chance without a seed; call random.seed(1) first",
                text.count("\n", 0, match.start()) + 1,
            )
