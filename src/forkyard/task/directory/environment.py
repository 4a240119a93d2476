"""`[environment]` and what stands in it; `[verifier.environment]` is the same table again."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from forkyard.task.directory.fields import (
    Absolute,
    Command,
    Cpus,
    Delay,
    Megabytes,
    Seconds,
    Size,
    Text,
    Variables,
    megabytes,
)
from forkyard.task.directory.table import Networked, Several, Table


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
