"""What a user says of an env: who sits in it, with which model, where, within which bounds.

An env's config class has one field of type `AgentConfig` for each of its agents; the field's name is the agent's.
What an agent leaves open is taken from the run. Names and defaults are those of the `verifiers.v1` object model,
but that sandboxes are local ones unless told otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from forkyard.task import TaskTimeout, VerifierMode
from forkyard.task.sampling import check_names, meant


class Config(BaseModel):
    """A frozen value that refuses unknown fields and numbers that are none."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RetryRule(Config):
    """Which failures may be tried again, and how often: every condition that is given must hold."""

    type: str | None = None
    status_code: tuple[int | str, ...] = ()
    message: str | None = None
    max_retries: int = Field(ge=0)

    @field_validator("message")
    @classmethod
    def _is_pattern(cls, text: str | None) -> str | None:
        try:
            re.compile(text or "")
        except (re.error, RecursionError, OverflowError) as err:
            raise ValueError(f"it is no regular expression: {err}") from None
        return text


class RetryConfig(Config):
    """How often what failed is tried again: the first rule that fits an error decides, else `max_retries`."""

    max_retries: int = Field(0, ge=0, description="New attempts after an infrastructure failure.")
    rules: tuple[RetryRule, ...] = Field((), description="Tables of type, status_code, message and max_retries.")


class HarnessChoice(Config):
    """A harness by name or module:Class; every other key is an option of its construction."""

    model_config = ConfigDict(frozen=True, extra="allow")
    id: str = Field(description="The program around the model: a name, or module:Class.")


class RuntimeChoice(Config):
    """A provider by name; `image` and `workdir` stand where the task names none, other keys are its options."""

    model_config = ConfigDict(frozen=True, extra="allow")
    type: str | None = Field(None, description="Where sandboxes run: a provider, or module:Class.")
    image: str | None = Field(None, description="The image of tasks that name none.")
    workdir: str | None = Field(None, description="The working directory of tasks that name none.")


_FURTHER = (
    "More of a request, under any name. Known names need no table: --sampling.return-token-ids true "
    "--sampling.logprobs true has servers as vLLM tell token ids, for training."
)


class SamplingConfig(Config):
    """How to sample; what is left open is the provider's default. Further keys go into the request as they are.

    One that is nearly a known one is refused; `extra_body` holds keys that are sent whatever they are called.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    temperature: float | None = Field(None, description="How freely to sample; what is not said is the provider's.")
    top_p: float | None = None
    max_tokens: int | None = Field(None, ge=1, description="Tokens of one reply.")
    reasoning_effort: str | None = None
    seed: int | None = None
    extra_body: dict[str, Any] = Field({}, description=_FURTHER)

    @model_validator(mode="after")
    def _names_are_meant(self) -> Self:
        check_names(self.model_extra or ())
        return self

    @staticmethod
    def meant(name: str) -> str | None:
        """The known key that an unknown one was likely meant to be."""
        return meant(name)


class AgentTimeout(Config):
    """Deadlines in seconds in the place of the task's. `rollout` is the agent's own time."""

    setup: float | None = Field(None, gt=0, description="Seconds for setup, in place of the task's.")
    rollout: float | None = Field(None, gt=0, description="Seconds for the agent's own work.")
    finalize: float | None = Field(None, gt=0, description="Seconds for `finalize`, in place of the task's.")
    scoring: float | None = Field(None, gt=0, description="Seconds for grading, in place of the task's.")

    @property
    def of_task(self) -> TaskTimeout:
        """The same as a task says it."""
        return TaskTimeout(setup=self.setup, agent=self.rollout, finalize=self.finalize, scoring=self.scoring)


class BudgetConfig(Config):
    """What an agent may spend in one rollout; None is no bound."""

    usd: float | None = Field(None, gt=0, description="Money for one rollout.")
    tokens: int | None = Field(None, gt=0, description="Input and output tokens of one rollout.")
    calls: int | None = Field(None, gt=0, description="Model calls of one rollout.")


class AgentConfig(Config):
    """One seat of an env. None inherits from the run."""

    harness: HarnessChoice | None = None
    runtime: RuntimeChoice = RuntimeChoice()
    model: str | None = Field(None, description="Its model in place of the run's.")
    sampling: SamplingConfig = SamplingConfig()
    max_turns: int | None = Field(None, ge=1, description="Replies of the model.")
    max_input_tokens: int | None = Field(None, ge=1, description="Tokens of all prompts together.")
    max_output_tokens: int | None = Field(None, ge=1, description="Tokens of all replies together.")
    max_total_tokens: int | None = Field(None, ge=1, description="Tokens of both.")
    timeout: AgentTimeout = AgentTimeout()
    budget: BudgetConfig = BudgetConfig()
    retries: RetryConfig = RetryConfig()
    verifier: VerifierMode | None = Field(None, description="Where to grade, in place of what the tasks say.")

    @field_validator("harness", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"id": value} if isinstance(value, str) else value


def inherited(own: AgentConfig, default: AgentConfig) -> AgentConfig:
    """What an agent is told, and what `default` says where that leaves things open.

    The options of a harness go with its name, and those of a provider with its own.
    """
    said, given = (config.model_dump(exclude_defaults=True) for config in (own, default))
    if own.harness is not None:
        given.pop("harness", None)
    if own.runtime.type is not None:
        given.pop("runtime", None)
    return AgentConfig.model_validate(_over(said, given))


def _over(said: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    both = {key for key in said if isinstance(said[key], dict) and isinstance(given.get(key), dict)}
    return {**given, **said, **{key: _over(said[key], given[key]) for key in both}}


class EnvTimeout(Config):
    """Deadlines of an episode in seconds: `episode` of `Env.run`, `finalize` of `Env.finalize`."""

    episode: float | None = Field(None, gt=0, description="Seconds for all rollouts of an episode.")
    finalize: float | None = Field(None, gt=0, description="Seconds for judging it as a whole.")


class EnvConfig(Config):
    """Subclass it and add a field `NAME: AgentConfig = AgentConfig()` for each agent, and fields of your own.

    What somebody leaves open of an agent is as in the field's default, and what that leaves open as the run says.
    """

    timeout: EnvTimeout = EnvTimeout()
    retries: RetryConfig = RetryConfig()
    max_concurrent_agents: int | None = Field(
        1, ge=1, description="Rollouts of one episode at work at once; null is no bound."
    )

    agents: ClassVar[tuple[str, ...]] = ()

    @field_validator("*", mode="after")
    @classmethod
    def _over_its_default(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name not in cls.agents or type(value) is not AgentConfig:  # one of its own has its own defaults
            return value
        return inherited(value, cls.model_fields[info.field_name].default)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Find the agents. Raises TypeError for one without a default instance."""
        super().__pydantic_init_subclass__(**kwargs)
        seats = [name for name, field in cls.model_fields.items() if field.annotation is AgentConfig]
        for name in seats:
            if not isinstance(cls.model_fields[name].default, AgentConfig):
                raise TypeError(f"{cls.__name__}.{name} needs a default: write `{name}: AgentConfig = AgentConfig()`")
        cls.agents = tuple(seats)
