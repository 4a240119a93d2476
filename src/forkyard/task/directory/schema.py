"""The tables of task.toml: keys, types, defaults and ranges; `environment.py` has that of the environment.

What a key means together with others is here too: the mode, the network of a phase, what a step takes over.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationInfo, field_validator

from forkyard.task.directory.environment import Environment, Healthcheck
from forkyard.task.directory.fields import (
    Command,
    Destination,
    Gate,
    Seconds,
    Service,
    Source,
    StepName,
    TaskName,
    Text,
    User,
    Variables,
)
from forkyard.task.directory.table import Networked, NetworkMode, Several, Table

DEFAULT_AGENT_TIMEOUT = 3600.0
DEFAULT_SCHEMA = "1.4"
_SCHEMAS = re.compile(r"1(?:\.[0-4](?:\.\d+)?)?")  # those that 1.4 is known to read

Mode = Literal["shared", "separate"]


class Author(Table):
    """One of `[task].authors`."""

    name: Text
    email: str | None = None


class TaskTable(Table):
    """`[task]`: the package identity."""

    name: TaskName
    version: Text | None = None
    description: str = ""
    authors: Several[Author] = ()
    keywords: Several[str] = ()


class AgentTable(Networked):
    """`[agent]`."""

    timeout_sec: Seconds | None = None
    user: User | None = None


class Solution(Table):
    """`[solution]`."""

    env: Variables = {}


class CollectHook(Table):
    """One of `[[verifier.collect]]`."""

    command: Command
    service: Service = "main"
    timeout_sec: Seconds = 60.0
    user: User | None = None


class Grading(Networked):
    """The keys of `[verifier]` and of a step's, but for the deadline, which has a default in one of them only."""

    env: Variables = {}
    user: User | None = None
    environment_mode: Mode | None = None
    environment: Environment | None = None
    collect: Several[CollectHook] = ()

    @property
    def mode_said(self) -> Mode | None:
        """The mode as written, separate when there is an environment of its own, None when nothing says."""
        return self.environment_mode or ("separate" if self.environment is not None else None)


class VerifierTable(Grading):
    """`[verifier]`."""

    timeout_sec: Seconds = 600.0

    @property
    def mode(self) -> Mode:
        """Where it runs."""
        return self.mode_said or "shared"


class StepVerifierTable(Grading):
    """`[steps.verifier]`; what it does not say is as in `[verifier]`, the deadline too."""

    timeout_sec: Seconds | None = None


def _entry(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


class ArtifactTable(Table):
    """One of `artifacts`; a plain string is its source."""

    service: Service | None = None
    source: Source
    destination: Destination | None = None
    exclude: Several[str] = ()

    @property
    def from_main(self) -> bool:
        """Whether it comes from the agent's own sandbox."""
        return self.service in (None, "main")

    @field_validator("source")
    @classmethod
    def _reachable(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("service") not in (None, "main") and not value.startswith("/"):
            raise ValueError("must be absolute for a service other than main")
        return value


Entry = Annotated[ArtifactTable, BeforeValidator(_entry)]


class StepTable(Table):
    """One of `[[steps]]`; what it does not say is as for the whole task. `min_reward` is by name of the reward."""

    name: StepName
    agent: AgentTable = AgentTable()
    verifier: StepVerifierTable = StepVerifierTable()
    min_reward: Gate | None = None
    healthcheck: Healthcheck | None = None
    artifacts: Several[Entry] = ()

    def agent_over(self, whole: AgentTable) -> AgentTable:
        """`[agent]` with what the step says in its place."""
        return whole.model_copy(update=_said(self.agent))

    def verifier_over(self, whole: VerifierTable) -> VerifierTable:
        """`[verifier]` with what the step says in its place; `env` is the union, and the mode is always written."""
        update = _said(self.verifier)
        update |= {"env": {**whole.env, **self.verifier.env}}
        update |= {"environment_mode": self.verifier.mode_said or whole.mode}
        return whole.model_copy(update=update)


def _said(table: Networked) -> dict[str, Any]:
    """The keys that are written in a table; a network is taken over whole, with its hosts."""
    said = {name: getattr(table, name) for name in table.model_fields_set}
    if "network_mode" in said:
        said["allowed_hosts"] = table.allowed_hosts
    return said


class TaskToml(Table):
    """The whole file."""

    schema_version: str | None = None
    version: str | None = None
    task: TaskTable | None = None
    metadata: dict[str, Any] = {}
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: Environment = Environment()
    solution: Solution = Solution()
    source: str | None = None
    artifacts: Several[Entry] = ()
    steps: Several[StepTable] = ()
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    multi_step_reward_mode: Any = None  # before 1.3; dropped

    @property
    def reward_strategy(self) -> Literal["mean", "final"]:
        """How the rewards of steps become the task's."""
        return self.multi_step_reward_strategy or "mean"

    @property
    def schema_name(self) -> str:
        """`schema_version`, or the older `version`, or the newest known."""
        return self.schema_version or self.version or DEFAULT_SCHEMA

    @property
    def schema_is_known(self) -> bool:
        """Whether the file is of a version that was known when this was written."""
        return _SCHEMAS.fullmatch(self.schema_name) is not None

    @property
    def baseline(self) -> NetworkMode | None:
        """The network that `[environment]` asks for; None when it does not say."""
        if self.environment.network_mode or self.environment.allow_internet is None:
            return self.environment.network_mode
        if any(phase.network_mode for phase in self._phases):
            return None
        return "public" if self.environment.allow_internet else "no-network"

    @property
    def _phases(self) -> list[Networked]:
        """The tables that may say another network than the environment's."""
        return [self.agent, self.verifier, *(table for step in self.steps for table in (step.agent, step.verifier))]

    @property
    def network(self) -> NetworkMode | None:
        """What the agent may reach; None when nothing in the file says."""
        if self.baseline is None and not any(phase.network_mode for phase in self._phases):
            return None
        return self.agent.network_mode or self.baseline or "public"

    @property
    def verifier_environment(self) -> Environment:
        """What a separate verifier's sandbox is made by: a table of its own, or else the agent's."""
        return (self.verifier.environment if self.verifier.mode == "separate" else None) or self.environment

    @property
    def verifier_hosts(self) -> tuple[str, ...]:
        """The hosts that a separate verifier's sandbox may reach."""
        own = self.verifier_environment
        if own is self.environment or self.verifier.network_mode:
            return self.hosts_of(self.verifier)
        mode = own.network_mode or ("public" if own.allow_internet else "no-network")
        return {"no-network": (), "public": ("*",), "allowlist": own.allowed_hosts or ()}[mode]

    def hosts_of(self, phase: Networked) -> tuple[str, ...]:
        """The hosts that may be reached while a table's phase lasts; "*" is all of them."""
        table = phase if phase.network_mode else self.environment
        mode = phase.network_mode or self.baseline or "public"
        return {"no-network": (), "public": ("*",), "allowlist": table.allowed_hosts or ()}[mode]
