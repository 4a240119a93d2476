"""From a plan to the things that play it: tasks, harness, model, provider."""

from __future__ import annotations

import os
import typing
from collections.abc import AsyncIterator, Callable, Sequence, Sized
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from forkyard.env import Seat
from forkyard.errors import ConfigError, ForkyardError, SandboxError
from forkyard.harness import Harness, ModelContext, harness_class, make_harness
from forkyard.model import ChatModel, model_from
from forkyard.run.check import find_problems, grouped, notes_of
from forkyard.run.images import Images
from forkyard.run.plan import KEY_VARIABLE, Plan, PlannedTask, check_name
from forkyard.sandbox import Provider
from forkyard.sandbox.registry import make_provider
from forkyard.secrets import Secrets
from forkyard.task import Task, TaskTimeout, load_taskset
from forkyard.trace import AgentLimits
from forkyard.values import first_names, printable

T = TypeVar("T")
MOST_TASKS = 100_000  # of one path without a limit: a generator may have no end


@dataclass(frozen=True, slots=True)
class Prepared:
    """What plays a run; the plan in it names every task. `notes` are sentences to be said once."""

    plan: Plan
    tasks: tuple[Task, ...]
    harness: Harness
    model: ChatModel | None
    provider: Provider
    images: Images
    notes: tuple[str, ...]

    @property
    def secrets(self) -> Secrets:
        """What no line may show: the model's key, and what the host's variables gave to tasks."""
        secrets = self.model.secrets if self.model else Secrets()
        for task in self.tasks:
            secrets |= task.secrets
        return secrets

    def seat(self, logs: Path) -> Seat:
        """The one agent of the run."""
        plan = self.plan
        return Seat(
            harness=self.harness,
            provider=self.provider,
            image_for=self.images.image_for,
            context=ModelContext(self.model, limits=AgentLimits(max_turns=plan.max_turns)),
            timeout=TaskTimeout(agent=plan.agent_timeout),
            verifier=plan.verifier,
            keep_logs_in=logs,
        )


@asynccontextmanager
async def prepared(plan: Plan, provider: Provider | None = None) -> AsyncIterator[Prepared]:
    """Everything a plan needs, checked, and let go at the end.

    A plan that names its tasks is one to go on with: they must be what they were. Raises ConfigError with every
    reason not to start. `provider` takes the place of the one the plan names, and is closed all the same.
    """
    problems: list[str] = []
    async with AsyncExitStack() as stack:
        _or_problem(problems, lambda: check_name(plan.run))
        tasks = _tasks(plan, problems)
        harness = _or_problem(problems, lambda: make_harness(plan.harness, plan.options))
        model = _or_problem(problems, lambda: _model(plan))
        if model is not None:
            stack.push_async_callback(model.close)
        provider = provider or _or_problem(problems, lambda: make_provider(plan.provider))
        if provider is not None:
            stack.push_async_callback(_closed, provider)
        problems += await find_problems(plan, tasks, harness, provider)
        if problems or harness is None or provider is None:
            raise ConfigError(*dict.fromkeys(map(printable, problems)))
        notes = await _swept(provider)
        images = Images(provider, plan.base)
        stack.push_async_callback(images.close)
        full = plan if plan.tasks else _with_tasks(plan, tasks, provider)
        said = ((note, name) for name, task in full.tasks.items() for note in task.notes)
        yield Prepared(full, tasks, harness, model, provider, images, (*notes, *grouped(said)))


def resolved(plan: Plan) -> Plan:
    """The plan with its relative paths made absolute, so that it can be gone on with from anywhere."""
    try:
        hints = typing.get_type_hints(harness_class(plan.harness).__init__)
    except ConfigError:  # it is said with everything else that is wrong
        hints = {}
    options = {
        name: str(Path(value).absolute()) if hints.get(name) is Path else value for name, value in plan.options.items()
    }
    return plan.model_copy(update={"options": options, "paths": tuple(path.absolute() for path in plan.paths)})


def _or_problem(problems: list[str], make: Callable[[], T]) -> T | None:
    try:
        return make()
    except ConfigError as err:
        problems += err.problems
        return None


def _tasks(plan: Plan, problems: list[str]) -> tuple[Task, ...]:
    found: list[Task] = []
    broken = len(problems)
    for path in plan.paths:
        found += _or_problem(problems, partial(_loaded, path, plan.limit)) or ()
    if not plan.tasks or len(problems) > broken:
        return tuple(islice(found, plan.limit))
    return _or_problem(problems, lambda: _as_planned(plan, found)) or ()


def _loaded(path: Path, limit: int | None) -> list[Task]:
    """The tasks of a path; no more than the limit are made of a set that makes them as they are asked for."""
    tasks = load_taskset(path)
    if isinstance(tasks, Sized):
        return list(tasks)
    found = list(islice(tasks, MOST_TASKS + 1 if limit is None else limit))
    if len(found) > MOST_TASKS and limit is None:
        raise ConfigError(f"{path} holds more than {MOST_TASKS:,} tasks: say with --limit how many to play")
    return found


def _as_planned(plan: Plan, found: Sequence[Task]) -> tuple[Task, ...]:
    """The tasks of a run that was begun, in its order. Raises ConfigError for those that are not what they were."""
    by_name = {task.name: task for task in found}
    missing = [name for name in plan.tasks if name not in by_name]
    changed = [name for name, task in plan.tasks.items() if name in by_name and by_name[name].digest != task.digest]
    problems = []
    if missing:
        problems.append(f"no longer in {', '.join(map(str, plan.paths))}: {_named(missing)}")
    if changed:
        problems.append(f"changed since run {plan.run} began: {_named(changed)}")
    if problems:
        raise ConfigError(*problems, "Put the tasks back as they were to go on with the run, or start a new one.")
    return tuple(by_name[name] for name in plan.tasks)


def _named(names: Sequence[str]) -> str:
    return f"{'task' if len(names) == 1 else f'{len(names)} tasks,'} {first_names(names)}"


def _with_tasks(plan: Plan, tasks: Sequence[Task], provider: Provider) -> Plan:
    planned = {
        task.name: PlannedTask(digest=task.digest, notes=tuple(notes_of(plan, task, provider))) for task in tasks
    }
    return plan.model_copy(update={"tasks": planned})


def _model(plan: Plan) -> ChatModel | None:
    needed = harness_class(plan.harness).needs_model
    if plan.model is None:
        if needed:
            raise ConfigError(f"the harness {plan.harness!r} needs a model: name one with -m")
        return None
    if not needed:
        raise ConfigError(f"the harness {plan.harness!r} asks no model: leave {plan.model} out")
    key = os.environ.get(plan.api_key_env)
    if not key and plan.api_key_env != KEY_VARIABLE:
        raise ConfigError(f"{plan.api_key_env} is not set, and it is to hold the model's key")
    return model_from(plan.model, plan.base_url, key)


async def _swept(provider: Provider) -> list[str]:
    try:
        await provider.sweep()
    except SandboxError as err:
        return [f"what dead processes left behind could not be swept: {err}"]
    return []


async def _closed(provider: Provider) -> None:
    """Close the provider; a failure is tried once more, because sandboxes may still be open."""
    try:
        await provider.close()
    except ForkyardError:
        await provider.close()
