"""What a colocated toolset takes into the sandbox: the source of its module, and of those beside it that it imports."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

from forkyard.errors import ConfigError
from forkyard.task import AnyToolset, Task, Taskset

_INSTALLED = {"site-packages", "dist-packages"}


def sources_of(toolset: AnyToolset) -> dict[str, str]:
    """The source of each module by name.

    Raises ConfigError for a class that cannot be had by name, and for a module that holds a task or a taskset: whoever
    may read the sandbox's memory would read how it is graded.
    """
    cls = type(toolset)
    what = f"toolset {cls.__name__} is colocated"
    if "<locals>" in cls.__qualname__:
        raise ConfigError(f"{what}, and it is defined in a function: move it to the top level of a module")
    found: dict[str, str] = {}
    waiting = [cls.__module__]
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in found or module is None:
            continue
        found[name] = source = _source(what, module)
        if graded := _graded(module):
            raise ConfigError(
                f"{what}, so its module is taken into the sandbox, and {name} holds {graded} too, which does not "
                "belong there: move the toolset, and its State, into a module that neither holds nor imports tasks"
            )
        waiting += [each for each in _imported(module, source) if _is_beside(cls.__module__, each)]
    if not found:
        raise ConfigError(f"{what}, and its module {cls.__module__} cannot be found")
    return found


def _source(what: str, module: ModuleType) -> str:
    try:
        return Path(str(module.__file__)).read_text(encoding="utf-8")
    except (OSError, ValueError, AttributeError) as err:
        raise ConfigError(f"{what}, and the source of its module {module.__name__} cannot be read: {err}") from err


def _graded(module: ModuleType) -> str | None:
    """The name of a task's class that a module defines."""
    for name, value in vars(module).items():
        if inspect.isclass(value) and issubclass(value, Task | Taskset) and value.__module__ == module.__name__:
            return name
    return None


def _imported(module: ModuleType, source: str) -> Iterator[str]:
    """The names of the modules that one imports; of a package from which only modules are taken, these alone."""
    package = str(getattr(module, "__package__", None) or "")
    for node in ast.walk(ast.parse(source, str(module.__file__))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package) if node.level else str(node.module)
            below = [f"{base}.{alias.name}" for alias in node.names]
            yield from below
            if not all(name in sys.modules for name in below):
                yield base


def _is_beside(start: str, name: str) -> bool:
    """Whether a module is of the same package as another, or lies beside that where nothing is installed."""
    top, other = start.partition(".")[0], name.partition(".")[0]
    if top == other or other == "forkyard":
        return top == other
    here, there = _folder(top), _folder(other)
    return here is not None and here == there and not _INSTALLED.intersection(here.parts)


def _folder(top: str) -> Path | None:
    """The directory in which a package or a module without one lies."""
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    return path.parent.parent if path.name == "__init__.py" else path.parent
