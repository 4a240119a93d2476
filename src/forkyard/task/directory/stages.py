"""The stages of a task: what is asked of the agent one after the other, each with all that it takes over.

A task without steps has one stage, without a name. Paths are relative to the task directory.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forkyard.sandbox import Network
from forkyard.task.data import ARTIFACTS_DIR, TaskData
from forkyard.task.directory.canary import strip_canary
from forkyard.task.directory.environment import Healthcheck
from forkyard.task.directory.files import TaskFiles
from forkyard.task.directory.notes import flaw_of
from forkyard.task.directory.schema import (
    DEFAULT_AGENT_TIMEOUT,
    AgentTable,
    ArtifactTable,
    StepTable,
    TaskToml,
    VerifierTable,
)
from forkyard.trace import Message, messages


@dataclass(frozen=True, slots=True)
class Stage:
    """One of them. `agent` and `verifier` are the tables as they count here; the networks are None when nothing says.

    `tests` are laid over each other at /tests in their order, and `script` is the one of them that is run.
    """

    name: str
    directory: str  # "" is the task's own
    instruction: str
    agent: AgentTable
    agent_network: Network | None
    verifier: VerifierTable
    verifier_network: Network | None  # in the agent's sandbox
    tests: tuple[str, ...]
    script: str
    flaw: str | None  # what keeps the script from being executed
    solution: str | None  # the directory with its solve script
    workdir: str | None  # what is copied to the working directory before the agent acts
    setup: str | None  # what is then run there
    healthcheck: Healthcheck | None  # of a step; the environment's is waited for once, at the start
    so_far: tuple[Message, ...]  # the conversation to go on with
    artifacts: tuple[ArtifactTable, ...]  # /logs/artifacts of the agent's sandbox is always among them
    min_reward: Mapping[str, float]

    @property
    def prompt(self) -> str | list[Message]:
        """What its agent begins with."""
        return [*self.so_far, messages.user(self.instruction)] if self.so_far else self.instruction

    @property
    def agent_seconds(self) -> float:
        """The agent's deadline."""
        return self.agent.timeout_sec or DEFAULT_AGENT_TIMEOUT

    def passes(self, rewards: Mapping[str, float] | None) -> bool:
        """Whether the next stage may begin: no reward is below its least, and none of those is missing."""
        return all((rewards or {}).get(name, -math.inf) >= least for name, least in self.min_reward.items())


def read_stages(toml: TaskToml, files: TaskFiles, problems: list[str]) -> tuple[Stage, ...]:
    """The stages; what is missing in the directory, or cannot be used, is added to `problems`."""
    if not toml.steps:
        return (_stage(toml, files, "", None, problems),)
    stages = []
    for step in toml.steps:
        directory = f"steps/{step.name}"
        if (files.root / directory).is_dir():
            stages.append(_stage(toml, files, directory, step, problems))
        else:
            problems.append(f"{files.root / directory} is missing; the step {step.name!r} has its instruction.md there")
    return tuple(stages)


def script_name(toml: TaskToml, stem: str) -> str:
    """The name of a script by the system inside: test.sh or test.bat."""
    return f"{stem}.bat" if toml.environment.os == "windows" else f"{stem}.sh"


def _stage(toml: TaskToml, files: TaskFiles, directory: str, step: StepTable | None, problems: list[str]) -> Stage:
    root = files.root
    agent = step.agent_over(toml.agent) if step else toml.agent
    verifier = step.verifier_over(toml.verifier) if step else toml.verifier
    tests = (_present(root, "tests"), _present(root, f"{directory}/tests") if step else None)
    script, content = _script(toml, files, directory, problems)
    workdir = _present(root, f"{directory}/workdir") if step else None
    return Stage(
        name=step.name if step else "",
        directory=directory,
        instruction=_instruction(root / directory / "instruction.md", problems),
        agent=agent,
        agent_network=_network(toml, agent),
        verifier=verifier,
        verifier_network=_network(toml, verifier),
        tests=tuple(place for place in tests if place),
        script=script,
        flaw=flaw_of(content) if script.endswith(".sh") else None,
        solution=_solution(toml, files, directory, problems),
        workdir=workdir,
        setup=_present(root, f"{workdir}/setup.sh") if workdir else None,
        healthcheck=step.healthcheck if step else None,
        so_far=_so_far(toml, root, directory, problems),
        artifacts=_artifacts(toml.artifacts + (step.artifacts if step else ())),
        min_reward=(step.min_reward or {}) if step else {},
    )


def _in(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _present(root: Path, name: str) -> str | None:
    return name if (root / name).exists() else None


def _so_far(toml: TaskToml, root: Path, directory: str, problems: list[str]) -> tuple[Message, ...]:
    """The step's own conversation so far; the first one's may be the task's."""
    first = not toml.steps or directory == f"steps/{toml.steps[0].name}"
    for place in (directory, "") if first else (directory,):
        if (path := root / _in(place, "trajectory.json")).is_file():
            from forkyard.task.directory.trajectory import read_trajectory  # few tasks have one

            return read_trajectory(path, problems)
    return ()


def _instruction(path: Path, problems: list[str]) -> str:
    if not path.is_file():
        problems.append(f"{path} is missing; write what the agent is to do into it")
        return ""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as err:
        problems.append(f"{path} is not UTF-8 (byte {err.start}); save it as UTF-8")
        return ""
    text = strip_canary(text.replace("\r\n", "\n"))
    if not text.strip():
        problems.append(f"{path} is empty; write what the agent is to do into it")
    return text


def _script(toml: TaskToml, files: TaskFiles, directory: str, problems: list[str]) -> tuple[str, bytes]:
    """The script that grades, the step's own before the task's, and its content."""
    name = script_name(toml, "test")
    own, shared = _in(directory, f"tests/{name}"), f"tests/{name}"
    found = own if (files.root / own).is_file() or own == shared else shared
    path = files.root / found
    if not path.is_file():
        missing = f"{path} is missing" if own == found else f"{files.root} holds neither {own} nor {found}"
        problems.append(f"{missing}; it is the script that writes the reward")
        return found, b""
    content = path.read_bytes()
    if not content.strip():
        problems.append(f"{path} is empty; it must write the reward to /logs/verifier/reward.txt")
    if files.left_out()(found):
        problems.append(f"{files.root / '.harborignore'} excludes {found}, which every task needs; keep it")
    return found, content


def _solution(toml: TaskToml, files: TaskFiles, directory: str, problems: list[str]) -> str | None:
    """The step's own solution, or else the task's."""
    for place in dict.fromkeys((_in(directory, "solution"), "solution")):
        script = f"{place}/{script_name(toml, 'solve')}"
        if (files.root / script).is_file():
            if files.left_out()(script):
                problems.append(f"{files.root / '.harborignore'} excludes {script}; keep it")
            return place
    return None


def _network(toml: TaskToml, phase: AgentTable | VerifierTable) -> Network | None:
    return None if toml.network is None else TaskData(network_allow=toml.hosts_of(phase)).network


def _artifacts(entries: tuple[ArtifactTable, ...]) -> tuple[ArtifactTable, ...]:
    said = any(entry.from_main and posixpath.normpath(entry.source) == ARTIFACTS_DIR for entry in entries)
    return entries if said else (ArtifactTable(source=ARTIFACTS_DIR), *entries)
