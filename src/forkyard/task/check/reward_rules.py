"""Rules on how a test script comes to a reward."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence

from forkyard.task.check.finding import Spot
from forkyard.task.check.registry import rule
from forkyard.task.check.rewards import FILES, PLACE, Write, reward_writes, runs_writer, says_rewards
from forkyard.task.check.shell import Command, Script
from forkyard.task.check.subject import Subject

_HARMLESS = re.compile(
    r"echo|printf|mkdir|export|set|unset|local|readonly|declare|typeset|shopt|trap|true|:|cd|pushd|popd|umask|source|\.|"
    r"date|touch|chmod|sleep|exit|return|exec|shift|for|case|select|rm|\(\(|hash|ulimit|eval|alias|wait|tee"
)
_TEST_RUNNERS = re.compile(r"pytest|py\.test|tox|nose\w*|jest|mocha|vitest|rspec|phpunit|ctest|bats|behave|unittest")
_BUILD_TOOLS = frozenset({"npm", "yarn", "pnpm", "cargo", "go", "make", "mvn", "gradle", "dotnet"})
_PLACES = frozenset(f"{PLACE}/{name}" for name in FILES)
_MISSPELT = re.compile(r"/logs/verifier/(?:rewards?|score)\.\w+\b|/logs/(?:\w+/)*(?:rewards?|score)\.(?:txt|json)\b")


@rule("error")
def unconditional_reward(subject: Subject) -> Iterable[Spot]:
    """The reward is a constant above 0, whatever the agent did."""
    for path in subject.test_scripts:
        script = subject.script(path)
        writes = reward_writes(script)
        if write := _unconditional(subject, script, writes) or _same_everywhere(writes):
            yield _at(
                path,
                write.command,
                f"writes the reward {write.value:g} whatever the agent did; write it in the branch of a check",
            )


def _unconditional(subject: Subject, script: Script, writes: Sequence[Write]) -> Write | None:
    """The write that always happens last, if there is one and its value is above 0."""
    last = writes[-1] if writes else None
    if last is None or not last.value or last.command not in script.main or last.command.conditional:
        return None
    for command in script.commands:
        if command is last.command:
            break
        if (
            command.name in ("exit", "return")
            or command.words[:1]
            and command.words[0].text == "exec"
            or (command.name in ("kill", "trap") and says_rewards(_line(command)))
        ):
            return None
    before, after = _around(script.main, last.command)
    if any(runs_writer(subject, command) for command in after):
        return None
    return None if any(_aborts(subject, script, before)) else last


def _same_everywhere(writes: Sequence[Write]) -> Write | None:
    values = {write.value for write in writes}
    trapped = any(write.command.within == "trap" for write in writes)
    return writes[-1] if len(writes) > 1 and len(values) == 1 and writes[0].value and not trapped else None


@rule("error")
def set_e_aborts_before_reward(subject: Subject) -> Iterable[Spot]:
    """Under `set -e` a failing check ends the script before any reward is written: no reward instead of 0."""
    for path in subject.test_scripts:
        script = subject.script(path)
        writes = [write.command for write in reward_writes(script)]
        if any(command.name == "trap" for command in script.commands):
            continue
        before = list(_until_reward(subject, script, writes))
        if len(before) == len(script.main):
            continue
        for command in _aborts(subject, script, before):
            yield _at(
                path,
                command,
                f"`{_shown(command)}` ends the script when it fails, because of `set -e`, before a reward is "
                "written; write 0 first, or make it the condition of an `if`",
            )
            break


def _until_reward(subject: Subject, script: Script, writes: Sequence[Command]) -> Iterator[Command]:
    for command in script.main:
        if any(command is write for write in writes) or runs_writer(subject, command):
            return
        yield command


def _aborts(subject: Subject, script: Script, commands: Sequence[Command]) -> Iterator[Command]:
    """Those of the commands whose failure ends the script, by `set -e`, and that may well fail."""
    on = bool(re.search(r"\s-\w*e", f" {script.interpreter}"))
    fed = set() if "pipefail" in script.text else {id(each.piped_from) for each in script.commands}
    for command in commands:
        texts = [word.text for word in command.words]
        if command.name == "set":
            on = (on or _switches(texts, "-")) and not _switches(texts, "+")
        elif on and not command.guarded and id(command) not in fed and _may_fail(script, command):
            yield command


def _switches(texts: Sequence[str], sign: str) -> bool:
    long = any(text == f"{sign}o" and other == "errexit" for text, other in zip(texts, texts[1:], strict=False))
    return long or any(re.fullmatch(rf"\{sign}\w*e\w*", text) for text in texts)


def _may_fail(script: Script, command: Command) -> bool:
    if not command.words:  # x=$(command) fails with its command
        inner = [c for c in script.commands if c.within == "" and c.line == command.line]
        return any(not _HARMLESS.fullmatch(c.name) for c in inner) and any(
            "$(" in v.text for v in command.assignments.values()
        )
    return not _HARMLESS.fullmatch(command.name)


@rule("error")
def reward_never_written(subject: Subject) -> Iterable[Spot]:
    """Nothing in the tests writes /logs/verifier/reward.txt or reward.json."""
    for path in _silent(subject):
        if not _exits_with_result(subject.script(path)):
            yield Spot(path, f"no file of the tests names {PLACE}/reward.txt or reward.json: there will be no reward")


@rule("error")
def exit_code_only(subject: Subject) -> Iterable[Spot]:
    """The verifier tells its result by its exit code alone, which decides nothing."""
    for path in _silent(subject):
        if command := _exits_with_result(subject.script(path)):
            yield _at(path, command, f"the exit code decides nothing; write 1 or 0 to {PLACE}/reward.txt by it")


def _silent(subject: Subject) -> list[str]:
    """The test scripts beside which nothing has to do with rewards."""
    if any(says_rewards(subject.text(path)) for path in subject.hidden if path not in subject.test_scripts):
        return []
    texts = {path: subject.text(path) for path in subject.test_scripts}
    return [path for path, text in texts.items() if text and text.strip() and not re.search(r"reward|/logs\b", text)]


def _exits_with_result(script: Script) -> Command | None:
    exits = [command for command in script.main if command.name == "exit" and len(command.words) > 1]
    if exits:
        return exits[-1]
    last = script.main[-1] if script.main else None
    return last if last and (runs_tests(last) or (last.name in ("[", "[[", "test", "grep", "cmp", "diff"))) else None


def runs_tests(command: Command) -> bool:
    """Whether a command is a test runner."""
    texts = [word.text for word in command.argv]
    if command.name in _BUILD_TOOLS:
        return any(text.startswith(("test", "check")) for text in texts[1:3])
    return bool(_TEST_RUNNERS.fullmatch(command.name)) or (
        texts[1:2] == ["-m"] and bool(_TEST_RUNNERS.match("".join(texts[2:3])))
    )


@rule("error")
def wrong_reward_path(subject: Subject) -> Iterable[Spot]:
    """A reward is written to another place than /logs/verifier/reward.txt or reward.json."""
    for path in subject.test_scripts:
        script = subject.script(path)
        for write in reward_writes(script):
            if trouble := _misplaced(script, write):
                yield _at(path, write.command, trouble)
    for path in subject.hidden:
        for number, line in enumerate((subject.text(path) or "").splitlines(), 1):
            match = _MISSPELT.search(line)
            if match and _is_mistaken(match[0], line) and not _is_reward_write(subject, path, number):
                yield Spot(path, f"{match[0]} is not read; the reward is in {PLACE}/reward.txt or reward.json", number)


def _misplaced(script: Script, write: Write) -> str | None:
    """What is wrong with the place a reward is written to; nothing where the text does not tell."""
    if "$" in write.path or write.path in _PLACES or _is_moved(script, write.path):
        return None
    if write.path.startswith("/"):
        return f"{write.path} is not read; the reward is in {PLACE}/reward.txt or reward.json"
    return f"{write.path} is written wherever the script happens to be; write {PLACE}/{posixpath.basename(write.path)}"


def _is_mistaken(path: str, line: str) -> bool:
    return path not in _PLACES and not path.endswith(".jsonl") and not line.lstrip().startswith("#")


def _is_moved(script: Script, path: str) -> bool:
    """Whether a file is only a stop on the way to its place."""
    return any(c.name in ("cp", "mv", "cat", "install") and path in (w.text for w in c.words) for c in script.commands)


def _is_reward_write(subject: Subject, path: str, line: int) -> bool:
    return path in subject.test_scripts and any(w.command.line == line for w in reward_writes(subject.script(path)))


@rule("warning")
def reward_only_on_success(subject: Subject) -> Iterable[Spot]:
    """A reward is written when the checks pass and none when they fail, so a failure is not scored 0."""
    for path in subject.test_scripts:
        script = subject.script(path)
        writes = reward_writes(script)
        if not writes or any(runs_writer(subject, command) for command in script.commands):
            continue
        told = all(write.value and write.command.conditional and not write.command.function for write in writes)
        if told and not _same_everywhere(writes):
            message = "no reward is written when this is not reached; write 0 first, or in the other branch"
            yield _at(path, writes[0].command, message)


@rule("warning")
def reward_never_full(subject: Subject) -> Iterable[Spot]:
    """No reward that the tests write is 1, so not even the solution can earn it."""
    for path in subject.test_scripts:
        script = subject.script(path)
        writes = reward_writes(script)
        told = [write.value for write in writes if write.value is not None]
        if not writes or len(told) < len(writes) or any(runs_writer(subject, command) for command in script.commands):
            continue
        if max(told) < 1:
            yield _at(
                path,
                writes[-1].command,
                f"the highest reward that is written is {max(told):g}; write 1 for full success",
            )


@rule("error")
def invalid_reward_value(subject: Subject) -> Iterable[Spot]:
    """A constant is written as the reward that is refused: no number, not finite, or not in [0, 1]."""
    for path in subject.test_scripts:
        for write in reward_writes(subject.script(path)):
            if write.refused:
                yield _at(path, write.command, f"what is written to {posixpath.basename(write.path)} {write.refused}")


@rule("warning")
def reward_without_primary(subject: Subject) -> Iterable[Spot]:
    """reward.json holds several numbers and none is called `reward`: scored, but without a reward."""
    for path in subject.test_scripts:
        for write in reward_writes(subject.script(path)):
            if not write.primary:
                yield _at(path, write.command, 'add a "reward": of several numbers only that one is the reward')


def _at(path: str, command: Command, message: str) -> Spot:
    return Spot(path, message, command.line, command.column)


def _around(commands: Sequence[Command], command: Command) -> tuple[Sequence[Command], Sequence[Command]]:
    at = next((number for number, each in enumerate(commands) if each is command), len(commands))
    return commands[:at], commands[at + 1 :]


def _line(command: Command) -> str:
    return " ".join(word.text for word in command.words)


def _shown(command: Command) -> str:
    text = _line(command) or "=".join(next(((n, v.text) for n, v in command.assignments.items()), ("", "")))
    text = " ".join(text.split())
    return text if len(text) <= 50 else f"{text[:47]}..."
