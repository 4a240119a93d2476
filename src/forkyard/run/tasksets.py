"""Where a run's tasks come from: paths, or a taskset that is installed, with what its package offers beside it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from forkyard.env import Env
from forkyard.errors import ConfigError
from forkyard.harness import Harness
from forkyard.plugins import Kind, exported, exports, load_class, module_name, module_of, names, package_module
from forkyard.run.plan import Plan
from forkyard.task import SelectConfig, Task, Taskset, TasksetConfig, config_type_of, load_reference, load_taskset
from forkyard.task.registry.kinds import is_path, is_repository
from forkyard.values import counted, first_names, printable, validation_problems

MOST_TASKS = 100_000  # of one path without a limit: a generator may have no end
_KIND = Kind("taskset", "forkyard.tasksets")


@dataclass(frozen=True, slots=True)
class TaskSource:
    """A taskset's class, and the env and the harness that its package's `__all__` names, if it does.

    `digest` is that of the package's code. Of task directories, archives and files of tasks there is the path alone,
    of other sets a `reference`, and the `registry` it is looked for in; what is installed goes by `id`. `name` is what
    a user called it.
    """

    path: Path | None = None
    reference: str | None = None
    registry: Path | None = None
    taskset: type[Taskset] | None = None
    id: str | None = None
    name: str = ""
    digest: str | None = None
    env: type[Env] | None = None
    harness: type[Harness] | None = None

    @property
    def planned(self) -> dict[str, Any]:
        """The fields of a plan that name it."""
        return {
            "paths": () if self.path is None else (self.path,),
            "registered": () if self.reference is None else (self.reference,),
            "registry": self.registry,
            "taskset": self.id if self.path is None else None,
        }

    @property
    def config_type(self) -> type[TasksetConfig]:
        """The class of its configuration. Raises ConfigError when a file's code fails."""
        return config_type_of(self.path or Path()) if self.taskset is None else self.taskset.config_type()

    def tasks(self, config: TasksetConfig) -> Taskset:
        """The set of tasks. Raises ConfigError."""
        if self.taskset is not None:
            return self.taskset(config)
        if self.reference is not None:
            return load_reference(self.reference, self.registry, config=config)
        return load_taskset(self.path or Path(), config=config)


def find_source(name: str) -> TaskSource:
    """What a TASKSET of the command line means. Raises ConfigError when it means nothing.

    That is a path that exists: a task directory, a directory of them, a package of Python, `tasks.py` or
    `tasks.py:NAME`; the address of a git repository; otherwise the id of a package in the current directory, or of a
    taskset that is installed.
    """
    return replace(_source(name), name=name)


def _source(name: str) -> TaskSource:
    if is_repository(name):
        return TaskSource(reference=name)
    path, beside = Path(name), Path(module_name(name))
    if path.exists() or ".py" in name or name.startswith((".", "/", "~")):
        return _at(path)
    return _at(beside) if _is_package(beside) else installed(name)


def registered(name: str, registry: Path | None) -> TaskSource:
    """What `-d` means: a path, name@version of a registry, or the address of a git repository."""
    source = _at(Path(name).expanduser()) if is_path(name) else TaskSource(reference=name, registry=registry)
    return replace(source, name=name)


def _at(path: Path) -> TaskSource:
    """The tasks at a path; a package can be imported from then on."""
    if not _is_package(path):
        return TaskSource(path=path)
    path = path.absolute()
    package_module(path)
    return replace(installed(path.name), path=path)


def _is_package(path: Path) -> bool:
    """Whether a directory is a package of Python, and not one of task directories that has such a file as well."""
    tasks = (path / "task.toml").is_file() or any(path.glob("*/task.toml"))
    return (path / "__init__.py").is_file() and not tasks


def installed(name: str) -> TaskSource:
    """The taskset of that id: of an entry point, "module:Class", or what a module's `__all__` names."""
    if name in names(_KIND) or ":" in name:
        found = load_class(_KIND, name, Taskset, "forkyard.Taskset")
        module = sys.modules[found.__module__.partition(".")[0]]
    else:
        module = module_of("taskset", name)
        found = exported(f"taskset {name!r}", module, Taskset)
    env, harness = _one(module, Env), _one(module, Harness)
    return TaskSource(taskset=found, id=name, digest=_digest(module), env=env, harness=harness)


def _one(module: ModuleType, wanted: type[Any]) -> Any:
    found = exports(module, wanted)
    if len(found) > 1:
        several = ", ".join(cls.__name__ for cls in found)
        raise ConfigError(f"module {module.__name__!r} names several {wanted.__name__} classes in __all__: {several}")
    return found[0] if found else None


def _digest(module: ModuleType) -> str | None:
    """Over the source of a package or module, so that a run does not go on with other code."""
    if not module.__file__:
        return None
    file = Path(module.__file__)
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    content = hashlib.sha256()
    for each in files:
        content.update(f"{each.relative_to(file.parent)}\0".encode())
        content.update(each.read_bytes() if each.is_file() else b"")
    return f"sha256:{content.hexdigest()}"


def sources_of(plan: Plan) -> list[TaskSource]:
    """Where a plan's tasks come from. Raises ConfigError."""
    if plan.taskset is not None:
        return [installed(plan.taskset)]
    references = [TaskSource(reference=reference, registry=plan.registry) for reference in plan.registered]
    return [*(_at(path) for path in plan.paths), *references]


def load_tasks(plan: Plan, problems: list[str]) -> list[Task]:
    """The tasks that a plan selects, in order, what is wrong with them being added to `problems`."""
    found: list[Task] = []
    try:
        sources = sources_of(plan)
        select = SelectConfig.model_validate(plan.select)
    except ConfigError as err:
        problems += err.problems
        return []
    for source in sources:
        try:
            found += _selected(source, plan, select)
        except ConfigError as err:
            problems += err.problems
        except ValidationError as err:
            problems += validation_problems(err, "taskset: ")
        except (ValueError, TypeError) as err:
            problems.append(printable(f"{source.path or source.reference or plan.taskset}: {err}"))
    return found


def none_left(plan: Plan) -> str:
    """Why a plan's choice leaves no task to play."""
    said = "no task is left to play"
    found = load_tasks(plan.model_copy(update={"select": {}}), [])
    if not found:
        return f"{said}: there is none in {plan.taskset or ', '.join(map(str, (*plan.paths, *plan.registered)))}"
    select = SelectConfig.model_validate(plan.select)
    there = f"of {counted(len(found), 'task')} ({first_names([task.name for task in found])})"
    chosen = [task for task in found if select.include.empty or select.include.hits(task)]
    if not chosen:
        named = ", ".join(f"{key} {item!r}" for key, items in select.include.model_dump().items() for item in items)
        return f"{said} {there}: none matches {named}. Change -i (of eval: --select.include)"
    if all(select.exclude.hits(task) for task in chosen):
        named = ", ".join(f"{key} {item!r}" for key, items in select.exclude.model_dump().items() for item in items)
        return f"{said} {there}: all are left out by {named}. Change -x (of eval: --select.exclude)"
    return f"{said} {there}: --select.skip {select.skip} leaves all of them out"


def _selected(source: TaskSource, plan: Plan, select: SelectConfig) -> Sequence[Task]:
    what = str(source.path or source.reference or plan.taskset)
    tasks = source.tasks(source.config_type.model_validate(plan.taskset_config)).select(select)
    if not tasks.bounded and plan.limit is None:
        raise ConfigError(f"{what} has no end: say how many tasks to play (eval: -n, run: --limit)")
    return list(_of_source(_bounded(tasks, plan.limit, what), source.digest))


def _bounded(tasks: Taskset, limit: int | None, what: str) -> Iterator[Task]:
    """The tasks; no more than the limit are made of a set that makes them as they are asked for."""
    if isinstance(tasks, Sized):
        yield from tasks
        return
    for number, task in enumerate(islice(iter(tasks), limit)):
        if number >= MOST_TASKS and limit is None:
            raise ConfigError(f"{what} holds more than {MOST_TASKS:,} tasks: say how many to play")
        yield task


def _of_source(tasks: Iterator[Task], digest: str | None) -> Iterator[Task]:
    return tasks if digest is None else (task.of_source(digest) for task in tasks)
