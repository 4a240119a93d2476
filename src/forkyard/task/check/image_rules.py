"""Rules on the agent's image: what it stands on, and what lies in it that the agent must not have."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

from forkyard.image.instructions import Copy, Dockerfile
from forkyard.task.check.answers import answers_of
from forkyard.task.check.finding import Spot
from forkyard.task.check.registry import rule
from forkyard.task.check.subject import AGENT_IMAGE, LARGEST, Subject

_OWN = frozenset({"host", "scratch"})
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_TELLING = re.compile(
    r"(?:^|[._-])(?:answers?|solutions?|solve|ground[_-]?truth|golden|oracle|cheat|expected[_-](?:output|answer|result)s?)(?:[._-]|$)",
    re.IGNORECASE,
)
_TEST_FILE = re.compile(r"test\.(?:sh|bat)|(?:test_.*|.*_test)\.\w+|.*\.(?:spec|test)\.\w+")
SMALLEST = 24  # bytes; what is smaller is the same by chance


@rule("warning")
def unpinned_image(subject: Subject) -> Iterable[Spot]:
    """An image without a tag, or with `latest`: another one tomorrow."""
    for table in (("environment",), ("verifier", "environment")):
        name = subject.value(*table, "docker_image")
        if isinstance(name, str) and is_unpinned(name):
            yield subject.said(*table, "docker_image", message=f"{name} names no fixed version; add a tag or a digest")
    for path, dockerfile in subject.dockerfiles.items():
        for line, name in _bases(dockerfile):
            if is_unpinned(name):
                yield Spot(path, f"FROM {name} names no fixed version; add a tag or a digest", line, 1)


def _bases(dockerfile: Dockerfile) -> Iterator[tuple[int, str]]:
    """The images it stands on, and those it copies from, stages left out."""
    values: dict[str, str] = {}
    for argument in dockerfile.arguments:
        values |= {name: value.expand(values) for name, value in argument.names if value is not None}
    stages: set[str] = set()
    for stage in dockerfile.stages:
        name = stage.source.image.expand(values)
        if name.lower() not in stages:
            yield stage.source.line, name
        stages |= {stage.source.alias.lower(), str(stage.index)} - {""}
        for step in stage.steps:
            if isinstance(step, Copy) and step.origin and step.origin.lower() not in stages:
                yield step.line, step.origin


def is_unpinned(name: str) -> bool:
    """Whether an image is named without a version that stays."""
    if not name or name in _OWN or "$" in name or _DIGEST.search(name):
        return False
    _, colon, tag = name.rpartition("/")[2].partition(":")
    return not colon or tag in ("", "latest")


@rule("note")
def root_agent(subject: Subject) -> Iterable[Spot]:
    """The agent works as root in its sandbox."""
    if subject.agent_user in ("root", "0") or (not subject.agent_user and AGENT_IMAGE in subject.files):
        yield subject.said(
            "agent", message="the agent works as root; name a user in [agent], or USER in the Dockerfile"
        )


def _copies(subject: Subject) -> Iterator[tuple[Copy, str]]:
    """The COPYs of the agent's Dockerfile from its context, each with one of its sources."""
    dockerfile = subject.dockerfiles.get(AGENT_IMAGE)
    for stage in dockerfile.stages if dockerfile else ():
        for step in stage.steps:
            if isinstance(step, Copy) and not step.origin:
                for source in step.sources:
                    text = "".join(part for part in source.parts if isinstance(part, str))
                    yield step, posixpath.normpath(text.lstrip("/") or ".")


def _destination(step: Copy) -> str:
    return "".join(part for part in step.destination.parts if isinstance(part, str))


def in_image(subject: Subject) -> tuple[str, ...]:
    """The files of environment/ that go into the agent's image, as far as its Dockerfile tells."""
    files = [
        path for path in subject.below("environment") if posixpath.basename(path) not in ("Dockerfile", ".dockerignore")
    ]
    if AGENT_IMAGE not in subject.dockerfiles:
        return tuple(files)
    sources = [source for _, source in _copies(subject)]
    return tuple(
        path for path in files if any(_covers(source, path.removeprefix("environment/")) for source in sources)
    )


def _covers(source: str, path: str) -> bool:
    if source == "." or path == source or path.startswith(source.rstrip("/") + "/"):
        return True
    pattern = re.escape(source).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    return bool(re.match(rf"{pattern}(?:/|$)", path))


@rule("error")
def solution_copied_into_image(subject: Subject) -> Iterable[Spot]:
    """The solution, or a copy of a file of it, goes into the agent's image."""
    for step, source in _copies(subject):
        if "solution" in source.split("/") or posixpath.basename(source) == "solve.sh" or _is_at(step, "/solution"):
            yield Spot(AGENT_IMAGE, f"{step.name} {source} brings the solution into the agent's image", step.line, 1)
    for path, twin in _twins(subject, subject.reference):
        yield Spot(path, f"is a copy of {twin} and goes into the agent's image")


@rule("error")
def agent_image_test_leak(subject: Subject) -> Iterable[Spot]:
    """Hidden tests, or a copy of one, go into the agent's image."""
    for step, source in _copies(subject):
        if posixpath.basename(source) == "test.sh" or _is_at(step, "/tests"):
            yield Spot(AGENT_IMAGE, f"{step.name} {source} brings hidden tests into the agent's image", step.line, 1)
    for path, twin in _twins(subject, telling(subject)):
        yield Spot(path, f"is a copy of {twin} and goes into the agent's image")


def telling(subject: Subject) -> tuple[str, ...]:
    """The hidden files that tell how the task is graded; input that the agent has too is not among them."""
    names = [(path, posixpath.basename(path)) for path in subject.hidden]
    return tuple(
        path
        for path, name in names
        if _TEST_FILE.fullmatch(name) or _TELLING.search(name) or name.startswith("expected")
    )


def _is_at(step: Copy, place: str) -> bool:
    return posixpath.normpath(_destination(step) or ".") == place or _destination(step).startswith(f"{place}/")


def _twins(subject: Subject, secret: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Files of the image with the content of a secret one."""
    contents = {data: path for path in secret if SMALLEST <= len((data := subject.raw(path)).strip()) < LARGEST}
    for path in in_image(subject) if contents else ():
        if (twin := contents.get(subject.raw(path))) is not None:
            yield path, twin


@rule("warning")
def answer_in_filename(subject: Subject) -> Iterable[Spot]:
    """The name of a file in the agent's image tells the answer, or that the file does."""
    answers = [answer.lower() for answer in answers_of(subject, shortest=2)]
    for path in in_image(subject):
        name = posixpath.basename(path)
        if _TELLING.search(name.partition(".")[0]):
            yield Spot(path, "is called as if it held the answer, and goes into the agent's image")
        elif found := next((answer for answer in answers if _names(name.lower(), answer)), None):
            yield Spot(path, f"has the answer in its name: {found}")
    for line, made in _made(subject):
        name = posixpath.basename(made.rstrip("/"))
        if found := next((answer for answer in answers if _names(name.lower(), answer)), None):
            yield Spot(AGENT_IMAGE, f"makes {made}, which has the answer in its name: {found}", line, 1)


def _made(subject: Subject) -> Iterator[tuple[int, str]]:
    """What the agent's Dockerfile makes by name."""
    yield from ((step.line, _destination(step)) for step, _ in _copies(subject))
    for command in subject.build_commands(AGENT_IMAGE):
        yield from ((command.line, redirect.target.text) for redirect in command.redirects if redirect.writes)
        if command.name in ("touch", "mkdir", "cp", "mv", "ln"):
            yield from ((command.line, word.text) for word in command.words[1:] if not word.text.startswith("-"))


def _names(name: str, answer: str) -> bool:
    return answer in re.split(r"[^a-z0-9]+", name) or (len(answer) >= 5 and answer in name)


@rule("warning")
def answer_in_image(subject: Subject) -> Iterable[Spot]:
    """A file of the agent's image, or its Dockerfile, spells out what the tests expect."""
    for answer in answers_of(subject):
        labelled = re.compile(
            rf"(?i)(?:answer|expected|solution|flag|result|truth)\w*\W{{1,6}}{re.escape(answer)}(?!\w)"
        )
        for path in (*in_image(subject), AGENT_IMAGE):
            text = subject.text(path) or ""
            match = labelled.search(text)
            if text.strip() == answer or match:
                line = text.count("\n", 0, match.start()) + 1 if match else 1
                yield Spot(path, f"spells out what the tests expect: {answer}", line)
