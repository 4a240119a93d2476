"""From a plan to the things that play it: tasks, an env, and a seat for each of its agents."""

from __future__ import annotations

import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from forkyard.env import AgentConfig, Env, EnvConfig, Episode, OnPhase, Seat
from forkyard.env.registry import env_class
from forkyard.errors import ConfigError, SandboxError
from forkyard.harness import Harness, NopHarness, harness_class
from forkyard.run.check import find_problems, grouped, notes_of
from forkyard.run.gateways import Asker, base_url_of, gateway_of, judges_of, unpriced_of, verifiers_of
from forkyard.run.kept import DiskKeeper, pruned
from forkyard.run.plan import Plan, PlannedTask
from forkyard.run.seats import Places, agent_configs, harness_of, model_name, seat_of
from forkyard.run.tasksets import load_tasks, none_left
from forkyard.sandbox import Provider
from forkyard.secrets import Secrets
from forkyard.task import Task
from forkyard.trace import Slot
from forkyard.values import first_names, printable, validation_problems

if TYPE_CHECKING:
    from forkyard.gateway import Gateway

T = TypeVar("T")
PlayEpisode = Callable[[Task, Slot, Mapping[str, Seat], OnPhase], Awaitable[Episode]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What plays a run; the plan in it names every task. `notes` are sentences to be said once.

    `play` makes one episode; the `env` whose method that is is None where no agent is played.
    """

    plan: Plan
    tasks: tuple[Task, ...]
    seats: Mapping[str, Seat]
    play: PlayEpisode
    notes: tuple[str, ...]
    env: Env[Any] | None = None
    gateway: Gateway | None = None
    keeper: DiskKeeper | None = None
    providers: tuple[Provider, ...] = ()

    @property
    def secrets(self) -> Secrets:
        """What no line may show: the models' keys, and what the host's variables gave to tasks."""
        secrets = self.gateway.secrets if self.gateway else Secrets()
        for task in self.tasks:
            secrets |= task.secrets
        return secrets

    async def tidied(self) -> list[str]:
        """Remove what dead processes left on the providers, and kept disks that are due to go; the notes on that.

        It is the first step of playing, and none of preparing: what is only checked changes nothing.
        """
        notes = [note for each in self.providers for note in await _swept(each)]
        if self.keeper is not None:
            notes += [note for each in self.providers for note in await pruned(each, self.keeper.policy)]
        return notes

    def keeping(self, place: Path) -> dict[str, Seat]:
        """The seats, what their sandboxes leave under /logs being kept in `place`, and their disks by the provider."""
        keeper = self.keeper
        return {
            name: replace(seat, keep_logs_in=place, keep_disk=None if keeper is None else keeper.of(seat.provider))
            for name, seat in self.seats.items()
        }


@asynccontextmanager
async def prepared(
    plan: Plan, provider: Provider | None = None, spent: float = 0.0, problems: Sequence[str] = ()
) -> AsyncIterator[Prepared]:
    """Everything a plan needs, checked, and let go at the end.

    A plan that names its tasks is one to go on with: they must be what they were, and `spent` is what it cost so far.
    Raises ConfigError with every reason not to start, after those that are known. `provider` takes the place of the one
    the plan names, and is closed all the same.
    """
    problems = list(problems)
    async with AsyncExitStack() as stack:
        places = Places(plan.agent, plan.base, provider, stack)
        tasks = verifiers_told(plan, _tasks(plan, problems), problems)
        env = _or_problem(problems, lambda: _furnished(env_of(plan), places))
        seats, gateway = ({}, None) if env is None else _seats(plan, env, tasks, places, spent, problems)
        if gateway is not None:
            stack.push_async_callback(gateway.close)
        if env is not None:
            problems += await find_problems(plan, tasks, env, seats)
        keeper = _or_problem(problems, DiskKeeper)
        if problems or env is None or keeper is None:
            raise ConfigError(*dict.fromkeys(map(printable, problems)))
        full = plan if plan.tasks else _with_tasks(plan, tasks, places.providers)
        said = [(note, name) for name, task in full.tasks.items() for note in task.notes]
        said += unpriced_of(tasks, gateway)
        yield Prepared(
            full, tasks, seats, env.run_episode, tuple(grouped(said)), env, gateway, keeper, places.providers
        )


def env_of(plan: Plan) -> Env[Any]:
    """The env a plan names, with its configuration. Raises ConfigError."""
    found = env_class(plan.env)
    try:
        config = found.config_type().model_validate(plan.env_config)
        return found(config)
    except ValidationError as err:
        raise ConfigError(*validation_problems(err, "env ")) from None
    except (ValueError, TypeError, OSError) as err:
        raise ConfigError(f"env {plan.env}: {err}") from err


def _furnished(env: Env[Any], places: Places) -> Env[Any]:
    env.furnish(places.place)
    return env


def _seats(
    plan: Plan, env: Env[Any], tasks: Sequence[Task], places: Places, spent: float, problems: list[str]
) -> tuple[dict[str, Seat], Gateway | None]:
    """The seats that can be had, what is wrong with the others being added to `problems`."""
    askers: list[Asker] = []
    filled: dict[str, tuple[Harness, str | None]] = {}
    agents = agent_configs(plan, env)
    for name, config in agents.items():
        chosen = _or_problem(problems, partial(harness_class, (config.harness or plan.harness).id))
        if chosen is None:
            continue
        harness = _or_problem(problems, partial(harness_of, config))
        model = _or_problem(problems, partial(model_name, name, getattr(env.config, name), config, chosen))
        filled[name] = harness or NopHarness(), model  # the rest is checked all the same
        if model is not None:
            askers.append(Asker(f"agent {name}", model, chosen.dialect, config.budget))
    askers += judges_of(tasks, askers[0].model, askers[0].budget) if askers else judges_of(tasks, None)
    if plan.agent.model is not None and not askers and len(filled) == len(env.agents):
        who = ", ".join(dict.fromkeys(repr(harness.name) for harness, _ in filled.values()))
        problems.append(f"the harness {who} asks no model: leave {plan.agent.model} out")
    askers += verifiers_of(tasks)
    if not askers and len(filled) == len(env.agents):
        problems += (
            f"nobody asks a model: leave --{name} out" for name in ("prices", "upstreams") if getattr(plan, name)
        )
    gateway = _or_problem(problems, lambda: gateway_of(plan, askers, spent))
    seats = {}
    for name, (harness, model) in filled.items():
        seat = _or_problem(problems, partial(seat_of, agents[name], harness, model, places, gateway))
        if seat is not None:
            seats[name] = seat
    return seats, gateway


def resolved(plan: Plan) -> Plan:
    """The plan with its paths made absolute and its endpoint named, so that it can be gone on with from anywhere."""
    asked = plan.agent.model is not None
    changed: dict[str, Any] = {
        "agent": AgentConfig.model_validate(_portable_agent(plan.agent.model_dump(exclude_defaults=True))),
        "paths": tuple(path.absolute() for path in plan.paths),
        "registry": plan.registry and plan.registry.absolute(),
        "upstreams": plan.upstreams and plan.upstreams.absolute(),
        "prices": plan.prices and plan.prices.absolute(),
        "taskset_config": _absolute(plan.taskset_config),
    }
    with suppress(ConfigError, ValidationError):  # it is said with everything else that is wrong
        config = env_class(plan.env).config_type().model_validate(plan.env_config)
        changed["env_config"] = portable(config)
        asked = asked or any(getattr(config, name).model for name in config.agents)
    changed["base_url"] = base_url_of(plan.base_url) if asked else plan.base_url
    return plan.model_copy(update=changed)


def portable(config: EnvConfig) -> dict[str, Any]:
    """A configuration as JSON values that mean the same from any directory; what is as by default is left out."""
    values: dict[str, Any] = _absolute(config.model_dump(exclude_defaults=True))
    return {name: _portable_agent(values[name]) if name in config.agents else values[name] for name in values}


def _portable_agent(config: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = _absolute(config)
    if harness := values.get("harness"):
        harness |= absolute_options(harness["id"], {key: harness[key] for key in harness if key != "id"})
    return values


def _absolute(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, str) and ".py:" in value and Path(value.rpartition(":")[0]).is_file():  # a plugged function
        return str(Path(value).absolute())
    if isinstance(value, dict):
        return {key: _absolute(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_absolute(item) for item in value]
    return value


def absolute_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a harness, those that are paths made absolute."""
    try:
        hints = typing.get_type_hints(harness_class(name).__init__)
    except (ConfigError, NameError):  # it is said with everything else that is wrong
        hints = {}
    return {
        key: str(Path(value).absolute()) if hints.get(key) is Path else _absolute(value)
        for key, value in options.items()
    }


def _or_problem(problems: list[str], make: Callable[[], T]) -> T | None:
    try:
        return make()
    except ConfigError as err:
        problems += err.problems
        return None


def _tasks(plan: Plan, problems: list[str]) -> tuple[Task, ...]:
    broken = len(problems)
    found = load_tasks(plan, problems)
    if not plan.tasks or len(problems) > broken:
        if not found and len(problems) == broken:
            problems.append(none_left(plan))
        return tuple(islice(found, plan.limit))
    return _or_problem(problems, lambda: as_planned(plan, found)) or ()


def verifiers_told(plan: Plan, tasks: tuple[Task, ...], problems: list[str]) -> tuple[Task, ...]:
    """The tasks, their verifiers being told what the plan says to them."""
    if not plan.verifier_env:
        return tasks
    return _or_problem(problems, lambda: tuple(task.with_verifier_env(plan.verifier_env) for task in tasks)) or ()


def as_planned(plan: Plan, found: Sequence[Task]) -> tuple[Task, ...]:
    """The tasks of a run that was begun, in its order. Raises ConfigError for those that are not what they were."""
    by_name = {task.name: task for task in found}
    missing = [name for name in plan.tasks if name not in by_name]
    changed = [name for name, task in plan.tasks.items() if name in by_name and by_name[name].digest != task.digest]
    problems = []
    if missing:
        where = plan.taskset or ", ".join(map(str, (*plan.paths, *plan.registered)))
        problems.append(f"no longer in {where}: {_named(missing)}")
    if changed:
        problems.append(f"changed since run {plan.run} began: {_named(changed)}")
    if problems:
        raise ConfigError(*problems, "Put the tasks back as they were to go on with the run, or start a new one.")
    return tuple(by_name[name] for name in plan.tasks)


def _named(names: Sequence[str]) -> str:
    return f"{'task' if len(names) == 1 else f'{len(names)} tasks,'} {first_names(names)}"


def _with_tasks(plan: Plan, tasks: Sequence[Task], providers: Sequence[Provider]) -> Plan:
    planned = {
        task.name: PlannedTask(
            digest=task.digest,
            notes=tuple(dict.fromkeys(note for provider in providers for note in notes_of(plan, task, provider))),
        )
        for task in tasks
    }
    return plan.model_copy(update={"tasks": planned})


async def _swept(provider: Provider) -> list[str]:
    try:
        await provider.sweep()
    except SandboxError as err:
        return [f"what dead processes left behind could not be swept: {err}"]
    return []
