"""What a task says of itself: frozen values, the same for a task directory and a Python task.

Names and defaults are those of the `verifiers.v1` object model.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from forkyard.errors import ConfigError
from forkyard.sandbox import NO_NETWORK, Network
from forkyard.trace import Message

ARTIFACTS_DIR = "/logs/artifacts"
AFTER_AGENT = 600.0
"""Seconds for each step after the agent where nobody says: what it left may be a pipe that nobody ever writes to."""
VerifierMode = Literal["shared", "forked", "separate"]


class Frozen(BaseModel):
    """A frozen value that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskTimeout(Frozen):
    """Deadlines of a rollout's phases in seconds; None is no deadline, and 600 for `finalize` and `scoring`."""

    setup: float | None = Field(None, gt=0)
    agent: float | None = Field(None, gt=0)
    finalize: float | None = Field(None, gt=0)
    scoring: float | None = Field(None, gt=0)

    @property
    def finalize_seconds(self) -> float:
        """What holds of `finalize`."""
        return self.finalize or AFTER_AGENT

    @property
    def scoring_seconds(self) -> float:
        """What holds of `scoring`, and of letting the hidden files in."""
        return self.scoring or AFTER_AGENT


class TaskResources(Frozen):
    """What a task needs of its sandbox; None leaves the provider's default. Memory and disk are in GB."""

    cpu: float | None = Field(None, gt=0)
    memory: float | None = Field(None, gt=0)
    gpu: str | None = None
    disk: float | None = Field(None, gt=0)


class Artifact(Frozen):
    """A path that leaves the sandbox, a file or a tree; `exclude` holds tar globs.

    `destination` is the relative place of the host's copy, by default that of the source.
    """

    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    required: bool = True

    @field_validator("source")
    @classmethod
    def _inside(cls, source: str) -> str:
        if ".." in PurePosixPath(source).parts or not source:
            raise ValueError("an artifact's source must not be empty or contain '..'")
        return source


class TaskData(Frozen):
    """A task's data; subclass it to add fields. `prompt` None means that the env opens the conversation."""

    idx: int | None = None
    id: str | None = None
    name: str | None = None
    description: str | None = None
    prompt: str | list[Message] | None = None
    system_prompt: str | None = None
    image: str | None = None
    workdir: str | None = None
    agent_user: str | None = None
    network_allow: tuple[str, ...] = ("*",)
    network_block: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    artifact_max_bytes: int = Field(32 << 20, gt=0)
    timeout: TaskTimeout = TaskTimeout()
    resources: TaskResources = TaskResources()
    verifier: VerifierMode = "forked"

    @model_validator(mode="after")
    def _names_hosts(self) -> Self:
        try:
            _ = self.network
        except ConfigError as err:
            raise ValueError(str(err)) from None
        return self

    @property
    def network(self) -> Network | None:
        """What `network_allow` and `network_block` say ("*" is every public host); None when neither was given."""
        allow, block = self.network_allow, self.network_block
        if not allow or "*" in block:
            return NO_NETWORK
        if "*" not in allow:
            return Network("allowlist", allow, block)
        if not block and "network_allow" not in self.model_fields_set:
            return None
        return Network("public", tuple(host for host in allow if host != "*"), block)

    @property
    def prompt_text(self) -> str:
        """The prompt's text parts, messages joined by a blank line."""
        if self.prompt is None or isinstance(self.prompt, str):
            return self.prompt or ""
        return "\n\n".join(filter(None, (_text(message.get("content")) for message in self.prompt)))


class WireTaskData(TaskData):
    """The data of any task as it was recorded; fields that its class added are kept."""

    model_config = ConfigDict(extra="allow")


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):  # without one it makes calls
        return content or ""
    return "".join(part.get("text", "") for part in content if part.get("type") == "text")
