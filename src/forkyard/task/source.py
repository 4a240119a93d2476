"""From a PATH to a set of tasks: a task directory, a directory or an archive of them, or a Python file."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from forkyard.errors import ConfigError
from forkyard.plugins import file_module, foreign
from forkyard.task.config import said
from forkyard.task.directory import load_taskset as load_directory
from forkyard.task.registry import MANIFEST, is_archive
from forkyard.task.task import Task
from forkyard.task.taskset import Taskset, TasksetConfig
from forkyard.values import nearest

T = TypeVar("T")


class FileTaskset(Taskset):
    """The tasks that a Python file defines; the content of the file is part of what each of them is."""

    def __init__(self, file: Path, digest: str, name: str, tasks: Iterable[Task]) -> None:
        super().__init__()
        self.file = file
        self.digest = digest
        self.name = name
        self._tasks = tasks
        self.INFINITE = isinstance(tasks, Taskset) and not tasks.bounded

    def load(self) -> Iterator[Task]:
        """The tasks, made as they are asked for. Raises ConfigError when the file's code fails, or makes no task."""
        tasks = _run(self.file, lambda: iter(self._tasks))
        while (task := _run(self.file, lambda: next(tasks, None))) is not None:
            if not isinstance(task, Task):
                raise ConfigError(f"{self.file}: {self.name} holds {task!r}, which is no Task")
            yield task.of_source(self.digest)


class ConfiguredTaskset(Taskset):
    """The tasks of another set with a config: its system prompt, and what it says of tasks."""

    def __init__(self, base: Taskset, config: TasksetConfig) -> None:
        super().__init__(config)
        self.name = base.name
        self.INFINITE = not base.bounded
        self._base = base

    def load(self) -> Iterator[Task]:
        """The tasks with the config. Raises ConfigError when it does not fit them."""
        for task in self._base:
            try:
                yield task.with_config(self.config.task)
            except ValueError as err:
                raise ConfigError(f"task {task.name} cannot have this config: {err}") from err


def load_taskset(
    path: str | Path, host: Mapping[str, str] | None = None, *, config: TasksetConfig | None = None
) -> Taskset:
    """The tasks of a PATH: a task directory, a directory or an archive of them, `tasks.py`, or `tasks.py:NAME`.

    NAME is a Taskset, a class of them, or a list of Tasks; it can be left out when the file has one. `host` fills in
    the templates of task directories. A class is made with `config`, other tasks get what it says. Raises ConfigError
    with every mistake.
    """
    file, name = _python_file(Path(path))
    if file is not None:
        return _from_file(file, name, config)
    place = Path(path)
    if not (is_archive(place) or (place / MANIFEST).exists()):
        return _configured(load_directory(place, host), config)
    from forkyard.task.registry.imports import load_archive, load_manifest  # which few runs need

    return _configured((load_archive if is_archive(place) else load_manifest)(place, host), config)


def load_reference(
    reference: str,
    registry: Path | None = None,
    host: Mapping[str, str] | None = None,
    *,
    config: TasksetConfig | None = None,
) -> Taskset:
    """The tasks of `name@version` in a registry, or of a git repository, `URL@COMMIT[#FOLDER]`.

    The registry is `FORKYARD_HOME/tasksets` by default. Raises ConfigError with every mistake.
    """
    from forkyard.task.registry.reference import load_reference as load  # which few runs need

    return _configured(load(reference, registry, host), config)


def config_type_of(path: str | Path) -> type[TasksetConfig]:
    """The class of the config that `load_taskset` takes for a PATH. Raises ConfigError when there is no set."""
    file, name = _python_file(Path(path))
    chosen = None if file is None else _chosen(file, name)[0]
    if inspect.isclass(chosen) and issubclass(chosen, Taskset):
        return chosen.config_type()
    return TasksetConfig


def _configured(tasks: Taskset, config: TasksetConfig | None) -> Taskset:
    return tasks if config is None or config == TasksetConfig() else ConfiguredTaskset(tasks, config)


def _python_file(path: Path) -> tuple[Path | None, str]:
    """The Python file that a path means, and the name in it; None when it means a directory."""
    whole, colon, name = str(path).rpartition(":")
    file, name = (Path(whole), name) if colon and whole.endswith(".py") else (path, "")
    return (file, name) if file.suffix == ".py" and not path.is_dir() else (None, "")


def _from_file(file: Path, name: str, config: TasksetConfig | None) -> Taskset:
    chosen, name, digest = _chosen(file, name)
    if inspect.isclass(chosen) and issubclass(chosen, Taskset):
        chosen, config = _run(file, partial(_made, chosen, config)), None
    if not isinstance(chosen, Taskset | list | tuple):
        raise ConfigError(f"{file}: {name} is neither a Taskset nor a list of Tasks, but {type(chosen).__name__}")
    called = chosen.name if isinstance(chosen, Taskset) else name
    return _configured(FileTaskset(file, digest, called, chosen), config)


def _chosen(file: Path, name: str) -> tuple[Any, str, str]:
    """What a file offers under a name, or as its only set; with its name and the digest of the file."""
    try:
        source = file.read_bytes()
    except OSError as err:
        raise ConfigError(f"{file} cannot be read: {err.strerror}; name a Python file, or a task directory") from None
    digest = f"sha256:{hashlib.sha256(source).hexdigest()}"
    module = _run(file, lambda: file_module(file.absolute(), source))
    found = {key: value for key, value in vars(module).items() if not key.startswith("_") and _offers(value, module)}
    if not name:
        if len(found) != 1:
            has = f"several: choose one as {file}:NAME, of {', '.join(found)}" if found else "none"
            raise ConfigError(f"{file} is to define a Taskset, or a list of Tasks, at its top level, and defines {has}")
        name = next(iter(found))
    elif not hasattr(module, name):
        near = nearest(name, found)
        hint = f"did you mean {near}?" if near else f"it offers {', '.join(found) or 'no set of tasks'}"
        raise ConfigError(f"{file} defines no {name}: {hint}")
    return getattr(module, name), name, digest


def _made(cls: type[Taskset], config: TasksetConfig | None) -> Taskset:
    """A set of a class, given a config of the class's own type when there is something to say."""
    own = cls.config_type()
    if config is None or isinstance(config, own):
        return cls() if config is None or config == own() else cls(config)
    return cls(own.model_validate({**said(config), "task": said(config.task)}))


def _offers(value: Any, module: ModuleType) -> bool:
    """Whether a value of the file's top level is a set of tasks, imported classes aside."""
    if inspect.isclass(value):
        return issubclass(value, Taskset) and not inspect.isabstract(value) and value.__module__ == module.__name__
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, Task) for item in value)
    return isinstance(value, Taskset)


def _run(file: Path, code: Callable[[], T]) -> T:
    """Run code of the file. Raises ConfigError naming its line for whatever it raises."""
    return foreign(str(file), code, file)
