"""From a PATH to a set of tasks: a task directory, a directory of them, or a Python file."""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from forkyard.errors import ConfigError
from forkyard.task.directory import load_taskset as load_directory
from forkyard.task.task import Task
from forkyard.task.taskset import Taskset
from forkyard.values import nearest

T = TypeVar("T")


class FileTaskset(Taskset):
    """The tasks that a Python file defines; the content of the file is part of what each of them is."""

    def __init__(self, file: Path, digest: str, name: str, tasks: Iterable[Task]) -> None:
        self.file = file
        self.digest = digest
        self.name = name
        self._tasks = tasks

    def load(self) -> Iterator[Task]:
        """The tasks, made as they are asked for. Raises ConfigError when the file's code fails, or makes no task."""
        tasks = _run(self.file, lambda: iter(self._tasks))
        while (task := _run(self.file, lambda: next(tasks, None))) is not None:
            if not isinstance(task, Task):
                raise ConfigError(f"{self.file}: {self.name} holds {task!r}, which is no Task")
            yield task.of_source(self.digest)


def load_taskset(path: str | Path, host: Mapping[str, str] | None = None) -> Taskset:
    """The tasks of a PATH: a task directory, a directory of them, `tasks.py`, or `tasks.py:NAME`.

    NAME is a Taskset, a class of them that is made without arguments, or a list of Tasks; it can be left out when the
    file has one. `host` fills in the templates of task directories. Raises ConfigError with every mistake.
    """
    file, name = _python_file(Path(path))
    return load_directory(path, host) if file is None else _from_file(file, name)


def _python_file(path: Path) -> tuple[Path | None, str]:
    """The Python file that a path means, and the name in it; None when it means a directory."""
    whole, colon, name = str(path).rpartition(":")
    file, name = (Path(whole), name) if colon and whole.endswith(".py") else (path, "")
    return (file, name) if file.suffix == ".py" and not path.is_dir() else (None, "")


def _from_file(file: Path, name: str) -> FileTaskset:
    try:
        source = file.read_bytes()
    except OSError as err:
        raise ConfigError(f"{file} cannot be read: {err.strerror}; name a Python file, or a task directory") from None
    digest = f"sha256:{hashlib.sha256(source).hexdigest()}"
    module = _run(file, lambda: _module(file.absolute(), source, digest))
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
    chosen = getattr(module, name)
    if inspect.isclass(chosen) and issubclass(chosen, Taskset):
        chosen = _run(file, chosen)
    if not isinstance(chosen, Taskset | list | tuple):
        raise ConfigError(f"{file}: {name} is neither a Taskset nor a list of Tasks, but {type(chosen).__name__}")
    return FileTaskset(file, digest, chosen.name if isinstance(chosen, Taskset) else name, chosen)


def _module(file: Path, source: bytes, digest: str) -> ModuleType:
    """The file as a module of its own, made from the very bytes the digest is of; its neighbours can be imported."""
    module = ModuleType(f"forkyard_tasks_{digest[7:23]}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # classes look up their module by its name
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    exec(compile(source, file, "exec", dont_inherit=True), vars(module))
    return module


def _offers(value: Any, module: ModuleType) -> bool:
    """Whether a value of the file's top level is a set of tasks, imported classes aside."""
    if inspect.isclass(value):
        return issubclass(value, Taskset) and not inspect.isabstract(value) and value.__module__ == module.__name__
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, Task) for item in value)
    return isinstance(value, Taskset)


def _run(file: Path, code: Callable[[], T]) -> T:
    """Run code of the file. Raises ConfigError naming its line for whatever it raises."""
    try:
        return code()
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as err:
        lines = [at.lineno for at in traceback.extract_tb(err.__traceback__) if at.filename == str(file.absolute())]
        line = err.lineno if isinstance(err, SyntaxError) and err.filename == str(file.absolute()) else None
        where = line or (lines[-1] if lines else None)
        said = f"{type(err).__name__}: {err.msg if isinstance(err, SyntaxError) else err}"
        raise ConfigError(f"{file}{f', line {where}' if where else ''}: {said}") from err
