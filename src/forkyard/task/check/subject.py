"""A task directory as rules see it: its files as they lie there, whether or not it can be loaded as a task."""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError
from forkyard.image import parse_dockerfile
from forkyard.image.instructions import Dockerfile, Run, User, Workdir
from forkyard.task.check.finding import Spot
from forkyard.task.check.shell import Command, Script
from forkyard.task.check.shell_reader import read_script
from forkyard.task.directory.files import TaskFiles
from forkyard.task.directory.lines import Path as Key
from forkyard.task.directory.lines import line_of, locate

LARGEST = 1 << 20  # bytes of a file that is read
MOST_FILES = 5000
AGENT_IMAGE, VERIFIER_IMAGE = "environment/Dockerfile", "tests/Dockerfile"


@dataclass(frozen=True, slots=True)
class Part:
    """What belongs to one conversation with the agent: the whole task, or one of its steps."""

    instruction: str
    tests: tuple[str, ...]  # directories, the one whose files win first
    solution: str


class Subject:
    """The task directory at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._texts: dict[str, str | None] = {}
        self._scripts: dict[str, Script] = {}

    # -- files

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The relative paths of its files, links left out."""
        found = []
        with suppress(OSError):
            for entry in TaskFiles(self.root).entries():
                if entry.kind == "file":
                    found.append(entry.path)
                if len(found) >= MOST_FILES:
                    break
        return tuple(found)

    def below(self, directory: str) -> tuple[str, ...]:
        """Its files in a directory."""
        return tuple(path for path in self.files if path.startswith(f"{directory}/"))

    def raw(self, path: str) -> bytes:
        """The beginning of a file, nothing when there is none."""
        try:
            with (self.root / path).open("rb") as file:
                return file.read(LARGEST)
        except OSError:
            return b""

    def text(self, path: str) -> str | None:
        """A file's text, None when it is none."""
        if path not in self._texts:
            data = self.raw(path) if path in self.files else b"\0"
            self._texts[path] = None if b"\0" in data else data.decode("utf-8-sig", "replace").replace("\r\n", "\n")
        return self._texts[path]

    def script(self, path: str) -> Script:
        """A shell script that was read; an empty one when it is no text."""
        if path not in self._scripts:
            self._scripts[path] = read_script(self.text(path) or "")
        return self._scripts[path]

    # -- task.toml

    @cached_property
    def toml(self) -> Mapping[str, Any]:
        """The tables of task.toml as they are written; nothing when they cannot be read."""
        try:
            return tomllib.loads(self.text("task.toml") or "")
        except (tomllib.TOMLDecodeError, RecursionError):
            return {}

    @cached_property
    def _lines(self) -> Mapping[Key, int]:
        return locate(self.text("task.toml") or "") if self.toml else {}

    def value(self, *key: str, default: Any = None) -> Any:
        """What is written at a key."""
        found: Any = self.toml
        for part in key:
            found = found.get(part) if isinstance(found, Mapping) else None
        return default if found is None else found

    def said(self, *key: str | int, message: str) -> Spot:
        """A spot at a key of task.toml, or the table around it."""
        return Spot("task.toml", message, line_of(key, self._lines))

    @property
    def separate(self) -> bool:
        """Whether the verifier has a sandbox of its own."""
        mode = self.value("verifier", "environment_mode")
        return bool(mode == "separate" if mode else self.value("verifier", "environment") is not None)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The task, or its steps."""
        names = [str(step["name"]) for step in self._steps if isinstance(step, Mapping) and "name" in step]
        if not names:
            return (Part("instruction.md", ("tests",), "solution"),)
        return tuple(
            Part(f"steps/{name}/instruction.md", (f"steps/{name}/tests", "tests"), f"steps/{name}/solution")
            for name in names
        )

    @property
    def _steps(self) -> list[Any]:
        steps = self.toml.get("steps")
        return steps if isinstance(steps, list) else []

    # -- what is in the parts

    @cached_property
    def test_scripts(self) -> tuple[str, ...]:
        """The paths of the scripts that write rewards, each once."""
        found = []
        for part in self.parts:
            paths = (f"{tests}/test.sh" for tests in part.tests)
            found += [path for path in paths if self.text(path) is not None][:1]
        return tuple(dict.fromkeys(found))

    @cached_property
    def hidden(self) -> tuple[str, ...]:
        """The files of its tests."""
        directories = dict.fromkeys(tests for part in self.parts for tests in part.tests)
        return tuple(path for directory in directories for path in self.below(directory))

    @cached_property
    def reference(self) -> tuple[str, ...]:
        """The files of its solutions."""
        directories = dict.fromkeys(part.solution for part in self.parts)
        return tuple(path for directory in directories for path in self.below(directory))

    def shell_scripts(self, paths: tuple[str, ...]) -> Iterator[tuple[str, Script]]:
        """Those among files that are shell scripts, by name or by their first line."""
        for path in paths:
            text = self.text(path)
            shell = text is not None and (path.endswith(".sh") or re.match(r"#!.*\b(?:ba|da|z|k)?sh\b", text))
            if shell:
                yield path, self.script(path)

    def python_files(self, paths: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Those among files that are Python, with their text."""
        for path in paths:
            if path.endswith(".py") and (text := self.text(path)) is not None:
                yield path, text

    # -- images

    @cached_property
    def dockerfiles(self) -> Mapping[str, Dockerfile]:
        """The Dockerfiles that can be read, by path."""
        found = {}
        for path in (AGENT_IMAGE, VERIFIER_IMAGE):
            with suppress(ConfigError):
                if path in self.files:
                    found[path] = parse_dockerfile(self.raw(path), path)
        return found

    def build_commands(self, path: str) -> Iterator[Command]:
        """The commands that a Dockerfile's RUNs run; their lines are those of the file."""
        for stage in self.dockerfiles[path].stages if path in self.dockerfiles else ():
            for step in stage.steps:
                if isinstance(step, Run):
                    text = (
                        " ".join(step.command.words) if step.command.shell else " ".join(map(repr, step.command.words))
                    )
                    for command in read_script(step.script or text).commands:
                        command.line, command.column = step.line, 1
                        yield command

    @cached_property
    def workdir(self) -> str:
        """Where the agent's commands start."""
        said = self.value("environment", "workdir")
        if isinstance(said, str):
            return posixpath.normpath(said)
        place = "/"
        for stage in self._last_stages():
            for step in stage.steps:
                if isinstance(step, Workdir) and not any(not isinstance(part, str) for part in step.path.parts):
                    place = posixpath.join(place, step.path.expand({}))
        return posixpath.normpath(place)

    @property
    def agent_user(self) -> str:
        """As whom the agent works, as far as the directory tells; empty when nothing says."""
        said = self.value("agent", "user")
        users = [
            step.user.expand({}) for stage in self._last_stages() for step in stage.steps if isinstance(step, User)
        ]
        return str(said) if said is not None else users[-1] if users else ""

    def _last_stages(self) -> Any:
        dockerfile = self.dockerfiles.get(AGENT_IMAGE)
        return dockerfile.stages[-1:] if dockerfile else ()
