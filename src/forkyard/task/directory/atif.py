"""What a `trajectory.json` may hold: the versions 1.0 to 1.8 of ATIF, the format that Harbor writes trajectories in.

Unknown fields are refused, as are fields that only an agent's steps have in the steps of others.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from forkyard.values import first_names

_OF_AGENTS = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
_Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Source(_Part):
    """Where the bytes of a picture or a sound are."""

    media_type: str
    path: str
    duration_sec: float | None = None


class ContentPart(_Part):
    """A text, or something else with a source."""

    type: Literal["text", "image", "audio"]
    text: str | None = None
    source: Source | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.text is None) == (self.type == "text") or (self.source is None) != (self.type == "text"):
            raise ValueError("a part has a text, or is of another type and has a source")
        return self


Content = str | list[ContentPart]


class Call(_Part):
    """A call of a tool."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class SubagentReference(_Part):
    """Another trajectory, by its id or its path."""

    trajectory_id: str | None = None
    trajectory_path: str | None = None
    session_id: str | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _leads_somewhere(self) -> Self:
        if self.trajectory_id is None and self.trajectory_path is None:
            raise ValueError("a reference to a trajectory needs its trajectory_id or its trajectory_path")
        return self


class Result(_Part):
    """What came back, of a call or of something else."""

    source_call_id: str | None = None
    content: Content | None = None
    subagent_trajectory_ref: list[SubagentReference] | None = None
    extra: dict[str, Any] | None = None


class Observation(_Part):
    """All that came back in a step."""

    results: list[Result]


class Metrics(_Part):
    """What a step took."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    cached_tokens: _Count | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None


class Step(_Part):
    """One step of a trajectory."""

    step_id: int
    source: Literal["system", "user", "agent"]
    message: Content
    timestamp: str | None = None
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    metrics: Metrics | None = None
    observation: Observation | None = None
    is_copied_context: bool | None = None
    llm_call_count: _Count | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.source != "agent" and (said := [name for name in _OF_AGENTS if getattr(self, name) is not None]):
            raise ValueError(f"only a step of an agent has {first_names(said)}, and this is the {self.source}'s")
        if self.llm_call_count == 0 and (self.metrics is not None or self.reasoning_content is not None):
            raise ValueError("a step without a call of a model (llm_call_count = 0) has no metrics and no reasoning")
        known = {call.tool_call_id for call in self.tool_calls or ()}
        for result in self.observation.results if self.observation else ():
            if result.source_call_id is not None and result.source_call_id not in known:
                raise ValueError(f"source_call_id {result.source_call_id!r} is no tool call of the same step")
        return self


class AgentDescription(_Part):
    """Who acted."""

    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class FinalMetrics(_Part):
    """What all of it took."""

    total_prompt_tokens: _Count | None = None
    total_completion_tokens: _Count | None = None
    total_cached_tokens: _Count | None = None
    total_cost_usd: float | None = None
    total_steps: _Count | None = None
    extra: dict[str, Any] | None = None


class Trajectory(_Part):
    """The whole file, or one of an agent beneath it."""

    schema_version: Annotated[str, Field(pattern=r"^ATIF-v1\.[0-8]$")]
    agent: AgentDescription
    steps: Annotated[list[Step], Field(min_length=1)]
    session_id: str | None = None
    trajectory_id: str | None = None
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    subagent_trajectories: list[Trajectory] | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _counts_and_names(self) -> Self:
        for number, step in enumerate(self.steps, 1):
            if step.step_id != number:
                raise ValueError(
                    f"step_id {step.step_id} stands where {number} is due: they count from 1 without a gap"
                )
        ids = [each.trajectory_id for each in self.subagent_trajectories or ()]
        if None in ids:
            raise ValueError("each of subagent_trajectories needs a trajectory_id")
        if len(set(ids)) < len(ids):
            raise ValueError("two of subagent_trajectories have the same trajectory_id")
        return self
