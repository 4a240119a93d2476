"""The tables of task.toml: keys, types, defaults and ranges. Unknown keys and wrong types are refused."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from forkyard.task.directory.fields import (
    Absolute,
    Command,
    Cpus,
    Delay,
    Destination,
    Host,
    Megabytes,
    Seconds,
    Service,
    Size,
    Source,
    TaskName,
    Text,
    User,
    Variables,
    megabytes,
)

DEFAULT_AGENT_TIMEOUT = 3600.0
DEFAULT_SCHEMA = "1.4"
_SCHEMAS = re.compile(r"1(?:\.[0-4](?:\.\d+)?)?")  # those that 1.4 can be read as

NetworkMode = Literal["no-network", "public", "allowlist"]
Item = TypeVar("Item")
Several = Annotated[tuple[Item, ...], Field(strict=False)]  # TOML has lists, a frozen value has tuples


class Table(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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


class Networked(Table):
    """The keys by which a baseline or a phase says what it may reach."""

    network_mode: NetworkMode | None = None
    allowed_hosts: Several[Host] | None = None

    @field_validator("allowed_hosts")
    @classmethod
    def _only_with_allowlist(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("network_mode", "allowlist") != "allowlist":
            raise ValueError('has no meaning without network_mode = "allowlist"')
        return value


class AgentTable(Networked):
    """`[agent]`."""

    timeout_sec: Seconds | None = None
    user: User | None = None


class Solution(Table):
    """`[solution]`."""

    env: Variables = {}


class Healthcheck(Table):
    """`[environment.healthcheck]`: when the sandbox is ready, with Docker's meaning of the numbers."""

    command: Command
    interval_sec: Seconds = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Delay = 0.0
    start_interval_sec: Seconds = 5.0
    retries: int = Field(3, ge=1)


_CREDENTIAL = re.compile(r"authorization|cookie|token|secret|passw|credential|api[-_]?key", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{[^}:]+\}")


def _transport(value: Any) -> Any:
    return "streamable-http" if value == "http" else value


class McpServer(Table):
    """One of `[[environment.mcp_servers]]`."""

    name: Text
    transport: Annotated[Literal["stdio", "sse", "streamable-http"], BeforeValidator(_transport)] = "sse"
    url: Text | None = None
    command: Command | None = None
    args: Several[str] = ()
    headers: dict[str, str] = {}

    @field_validator("headers")
    @classmethod
    def _no_secrets(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if value and info.data.get("transport") == "stdio":
            raise ValueError("has no meaning for a server reached by stdio")
        for name, text in value.items():
            if _CREDENTIAL.search(name) and (not _REFERENCE.search(text) or ":-" in text):
                raise ValueError(f"carries a credential in {name}; write a host variable without default, ${{NAME}}")
        return value

    @model_validator(mode="after")
    def _complete(self) -> McpServer:
        if self.transport == "stdio" and self.command is None:
            raise ValueError("is reached by stdio and needs a command")
        if self.transport != "stdio" and self.url is None:
            raise ValueError(f"is reached by {self.transport} and needs a url")
        return self


class Tpu(Table):
    """`[environment].tpu`."""

    type: Text
    topology: Text


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class Environment(Networked):
    """`[environment]` and `[verifier.environment]`."""

    build_timeout_sec: Seconds = 600.0
    docker_image: Text | None = None
    os: Annotated[Literal["linux", "windows"], BeforeValidator(_lower)] = "linux"
    cpus: Cpus | None = None
    memory_mb: Megabytes | None = None
    storage_mb: Megabytes | None = None
    memory: Size | None = None
    storage: Size | None = None
    gpus: int | None = Field(None, ge=0)
    gpu_types: Several[str] | None = None
    tpu: Tpu | None = None
    allow_internet: bool | None = None
    mcp_servers: Several[McpServer] = ()
    env: Variables = {}
    skills_dir: Absolute | None = None
    healthcheck: Healthcheck | None = None
    workdir: Absolute | None = None

    @field_validator("memory", "storage")
    @classmethod
    def _agrees(cls, value: str, info: ValidationInfo) -> str:
        known = info.data.get(f"{info.field_name}_mb")
        if known is not None and known != megabytes(value):
            raise ValueError(f"contradicts {info.field_name}_mb = {known}; keep only {info.field_name}_mb")
        return value

    @property
    def megabytes_of_memory(self) -> int | None:
        """`memory_mb`, or the older `memory`."""
        return self.memory_mb or (megabytes(self.memory) if self.memory else None)

    @property
    def megabytes_of_storage(self) -> int | None:
        """`storage_mb`, or the older `storage`."""
        return self.storage_mb or (megabytes(self.storage) if self.storage else None)


class CollectHook(Table):
    """One of `[[verifier.collect]]`."""

    command: Command
    service: Service = "main"
    timeout_sec: Seconds = 60.0
    user: User | None = None


class VerifierTable(Networked):
    """`[verifier]`."""

    timeout_sec: Seconds = 600.0
    env: Variables = {}
    user: User | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: Several[CollectHook] = ()

    @property
    def mode(self) -> Literal["shared", "separate"]:
        """Where it runs: as written, else separate when it has an environment of its own."""
        return self.environment_mode or ("separate" if self.separate_by_environment else "shared")

    @property
    def separate_by_environment(self) -> bool:
        """Whether nothing but an environment of its own makes it separate."""
        return self.environment_mode is None and self.environment is not None


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
    artifacts: Several[Annotated[ArtifactTable, BeforeValidator(_entry)]] = ()
    steps: Several[dict[str, Any]] = ()
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    multi_step_reward_mode: Any = None  # before 1.3; dropped

    @field_validator("schema_version", "version")
    @classmethod
    def _readable(cls, value: str | None, info: ValidationInfo) -> str | None:
        decided = info.field_name == "version" and info.data.get("schema_version") is not None
        if value is not None and not decided and not _SCHEMAS.fullmatch(value):
            raise ValueError(
                f"is no version of the task format that is read here, which are 1.0 to {DEFAULT_SCHEMA}: "
                f'write schema_version = "{DEFAULT_SCHEMA}" if the file keeps to it (a version of the task itself is '
                "task.version)"
            )
        return value

    @property
    def schema_name(self) -> str:
        """`schema_version`, or the older `version`, or the newest known."""
        return self.schema_version or self.version or DEFAULT_SCHEMA

    @property
    def baseline(self) -> NetworkMode | None:
        """The network that `[environment]` asks for; None when it does not say."""
        if self.environment.network_mode or self.environment.allow_internet is None:
            return self.environment.network_mode
        if self.agent.network_mode or self.verifier.network_mode:
            return None
        return "public" if self.environment.allow_internet else "no-network"

    @property
    def networks(self) -> tuple[NetworkMode, NetworkMode]:
        """What the agent and a verifier in its sandbox may reach."""
        baseline = self.baseline or "public"
        return self.agent.network_mode or baseline, self.verifier.network_mode or baseline

    @property
    def network(self) -> NetworkMode | None:
        """What the agent may reach; None when nothing in the file says."""
        said = self.baseline or self.agent.network_mode or self.verifier.network_mode
        return self.networks[0] if said else None

    def hosts_of(self, phase: Networked) -> tuple[str, ...]:
        """The hosts that may be reached while a table's phase lasts; "*" is all of them."""
        table = phase if phase.network_mode else self.environment
        mode = phase.network_mode or self.baseline or "public"
        return {"no-network": (), "public": ("*",), "allowlist": table.allowed_hosts or ()}[mode]
