"""What `forkyard eval` can be told, as a model made for the taskset, the env and the harnesses that were chosen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model

from forkyard.cli.dotted import Setting, last_value
from forkyard.env import AgentConfig, Env, EnvConfig
from forkyard.env.config import Config, HarnessChoice, RuntimeChoice, SamplingConfig
from forkyard.env.registry import env_class
from forkyard.errors import ConfigError
from forkyard.harness import DEFAULT_HARNESS, harness_class
from forkyard.model.place import API_KEY
from forkyard.plugins import NAMED
from forkyard.run.tasksets import TaskSource, find_source, registered
from forkyard.sandbox.registry import DEFAULT_PROVIDER, provider_factory
from forkyard.task import SelectConfig, TasksetConfig
from forkyard.trace import SINGLE_AGENT

M = TypeVar("M", bound=BaseModel)
ALIASES = {
    "-m": "--model",
    "-d": "--set",
    "--taskset": "--set",
    "-n": "--select.limit",
    "-s": "--select.shuffle",
    "-r": "--num-rollouts",
    "--group-size": "--num-rollouts",
    "--rollouts-per-example": "--num-rollouts",
    "-c": "--max-concurrent",
    "-o": "--output-dir",
    "--budget-usd": "--budget.usd",
    "-v": "--verbose",
    "-q": "--quiet",
}


FROM_SET: Any = Field(
    None, alias="set", description="In place of TASKSET: NAME@VERSION, URL@COMMIT[#FOLDER] of git, or PATH."
)
REGISTRY: Any = Field(None, description="Where NAME@VERSION lies. [FORKYARD_HOME/tasksets]")


class ClientConfig(Config):
    """Where the model is reached."""

    base_url: str | None = Field(None, description="The model's endpoint. [$OPENAI_BASE_URL]")
    api_key_var: str = Field(API_KEY, description="The variable that holds the model's key.")
    upstreams: Path | None = Field(None, description="A TOML table of upstreams, in place of the two.")


class RunNames(Config):
    """What the run is called."""

    name: str | None = Field(None, description="The run's name. [ENV--MODEL--HARNESS--8 hex digits]")
    dir: str | None = Field(None, description="Its directory in the output directory. [the run's name]")


class RunBudget(Config):
    """What the whole run may spend."""

    usd: float | None = Field(None, gt=0, description="What all models of the run together may cost, in USD.")


class EvalConfig(Config):
    """Everything but `env`, whose keys depend on what is chosen."""

    from_set: str | None = FROM_SET
    registry: Path | None = REGISTRY
    model: str | None = Field(None, description="The model's name at its endpoint.")
    client: ClientConfig = ClientConfig()
    sampling: SamplingConfig = SamplingConfig()
    select: SelectConfig = SelectConfig()
    num_rollouts: int = Field(1, ge=1, description="Episodes of each task.")
    max_concurrent: int | None = Field(128, ge=1, description="Episodes at work at once; null is no bound.")
    retries: int = Field(2, ge=0, le=10, description="New attempts after an infrastructure failure.")
    base: str | None = Field(None, description="Start from this image (host: this machine's /usr) instead.")
    unbounded: bool = Field(False, description="Play tasks without those bounds that the provider cannot keep.")
    budget: RunBudget = RunBudget()
    prices: Path | None = Field(None, description="A TOML table of prices, before the one that comes along.")
    output_dir: Path = Field(Path("runs"), description="The directory that run directories go into, or disk:NAME.")
    run: RunNames = RunNames()
    resume: bool = Field(False, description="Go on with the run of --run.dir or --run.name, or the last one like this.")
    clean: bool = Field(False, description="Remove the run that has the directory already.")
    dry_run: bool = Field(False, description="Check everything and say what would be played; --json prints the plan.")
    fail_under: float | None = Field(None, ge=0, le=1, description="Exit 3 when the mean reward is below.")
    as_json: bool = Field(False, alias="json", description="Print the report as JSON and nothing else on stdout.")
    verbose: bool = Field(False, description="A line for each rollout in place of the live view.")
    quiet: bool = Field(False, description="Print nothing but errors (and --json).")


SWITCHES = frozenset(
    [(field.alias or name,) for name, field in EvalConfig.model_fields.items() if field.annotation is bool]
    + [("select", "shuffle")]
)


def source_named(words: Sequence[str], settings: Sequence[Setting], *keys: str) -> TaskSource | None:
    """The one set that a command line names, as a word, by -d, or in the setting `keys`; None when it names none.

    Raises ConfigError for several.
    """
    given = last_value(settings, "set")
    named = [*words, *([] if given is None else [str(given)])]
    if len(named) > 1:
        raise ConfigError(f"one TASKSET at a time, not {', '.join(map(repr, named))}")
    if given is not None:
        registry = last_value(settings, "registry")
        return registered(str(given), None if registry is None else Path(str(registry)))
    name = words[0] if words else last_value(settings, *keys) if keys else None
    return find_source(str(name)) if name else None


@dataclass(frozen=True, slots=True)
class Choice:
    """What a command line chose: where the tasks come from, the env by name, the harness agents have by default."""

    source: TaskSource
    env: str
    harness: str

    @property
    def env_type(self) -> type[Env[Any]]:
        """The env's class. Raises ConfigError."""
        return env_class(self.env)


def choice_of(source: TaskSource, settings: Sequence[Setting]) -> Choice:
    """The env of --env.id, else the one that the taskset's package offers; the harness likewise."""
    env = last_value(settings, "env", "id")
    return Choice(
        source=source,
        env=str(env) if env else _place(source.env) or SINGLE_AGENT,
        harness=_place(source.harness) or DEFAULT_HARNESS,
    )


def _place(cls: type[Any] | None) -> str | None:
    return None if cls is None else f"{cls.__module__}:{cls.__qualname__}"


def model_for(choice: Choice, settings: Sequence[Setting]) -> type[EvalConfig]:
    """The model of everything that can be said, with the options of the harnesses and providers that are named."""
    config = choice.env_type.config_type()
    fields: dict[str, Any] = {
        "id": (str, Field(choice.env, description="The env: a name, or module:Class.")),
        "taskset": (choice.source.config_type, Field(choice.source.config_type())),
    }
    for name in config.agents:
        agent = _agent(config.model_fields[name].default, choice.harness, settings, name)
        fields[name] = (agent, Field(default_factory=agent))
    env = create_model(config.__name__, __base__=config, **fields)
    return create_model("Eval", __base__=EvalConfig, env=(env, Field({}, validate_default=True)))


def _agent(default: AgentConfig, harness: str, settings: Sequence[Setting], name: str) -> type[AgentConfig]:
    """The model of one agent, its defaults being those that its env gives it."""
    own = default.harness.id if default.harness else harness
    chosen = str(last_value(settings, "env", name, "harness", "id") or own)
    harnesses = _with_options(HarnessChoice, harness_class(chosen), id=(str, _said(HarnessChoice, "id", chosen)))
    runtimes = runtime_with_options(default.runtime, last_value(settings, "env", name, "runtime", "type"))
    keep = default.harness is not None and default.harness.id == chosen
    fields: dict[str, Any] = {
        field: (info.annotation, getattr(default, field))
        for field, info in AgentConfig.model_fields.items()
        if getattr(default, field) != info.default
    }
    fields["harness"] = (harnesses | None, _copied(default.harness, harnesses) if keep else None)
    fields["runtime"] = (runtimes, _copied(default.runtime, runtimes))
    return create_model("Agent", __base__=AgentConfig, **fields)


def runtime_with_options(default: RuntimeChoice, chosen: Any) -> type[RuntimeChoice]:
    """The model of a provider with its options, of the default one when nobody names any."""
    kind = chosen or default.type
    said = _said(RuntimeChoice, "type", kind)
    return _with_options(RuntimeChoice, provider_factory(str(kind or DEFAULT_PROVIDER)), type=(str | None, said))


def _said(model: type[BaseModel], field: str, default: Any) -> Any:
    """The field of a model with another default."""
    return Field(default, description=model.model_fields[field].description)


def _copied(value: BaseModel | None, model: type[M]) -> M | None:
    return None if value is None else model.model_validate(value.model_dump(exclude_unset=True))


def _with_options(base: type[M], factory: Callable[..., Any], **fields: Any) -> type[M]:
    """The model with one field more for each option that `factory` takes, and none beside these."""
    try:
        signature = inspect.signature(factory, eval_str=True)
    except NameError as err:
        raise ConfigError(f"{getattr(factory, '__name__', factory)} has options of unknown types: {err}") from err
    for name, parameter in signature.parameters.items():
        if parameter.kind in NAMED and name not in fields and name not in base.model_fields:
            kind = Any if parameter.annotation is parameter.empty else parameter.annotation
            fields[name] = (kind, ... if parameter.default is parameter.empty else parameter.default)
    strict = type(base.__name__, (base,), {"model_config": ConfigDict(extra="forbid", arbitrary_types_allowed=True)})
    return create_model(base.__name__, __base__=strict, **fields)


def env_values(env: EnvConfig, agents: Iterable[str]) -> dict[str, Any]:
    """What an env's configuration says, as its own class reads it; options that nobody gave are left out."""
    values = env.model_dump(exclude={"id", "taskset"})
    for name in agents:
        config: AgentConfig = getattr(env, name)
        values[name]["harness"] = config.harness and {
            "id": config.harness.id,
            **config.harness.model_dump(exclude_unset=True),
        }
        values[name]["runtime"] = config.runtime.model_dump(exclude_unset=True)
    return values


def taskset_values(config: TasksetConfig) -> dict[str, Any]:
    """What a taskset's configuration says beyond its defaults; a judge's id is said even where its class implies it."""
    values = config.model_dump(exclude_defaults=True, exclude={"id"})
    task = values.get("task", {})
    if "judges" in task:
        said = zip(config.task.judges, task["judges"], strict=True)
        task["judges"] = [{"id": judge.id, **given} for judge, given in said]
    return values
