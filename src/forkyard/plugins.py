"""Classes by name: ours, those that installed packages offer, or any class given as "module:Class".

A module may be installed, or lie in the current directory: the same for harnesses, envs, providers, judges, tasksets.

`exported` finds classes by what an importable module says in its `__all__`, which needs no entry point.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from forkyard.errors import ConfigError
from forkyard.values import nearest

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
Factory = Callable[..., Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """What is looked up: its noun, the group of entry points that packages offer it by, and what is `own`."""

    noun: str
    group: str
    own: Mapping[str, Factory] = field(default_factory=dict)


def names(kind: Kind) -> list[str]:
    """The names known here, our own first."""
    return [*kind.own, *sorted({entry.name for entry in entry_points(group=kind.group)} - set(kind.own))]


def load(kind: Kind, name: str) -> Factory:
    """What makes the thing called `name`.

    Raises ConfigError for an unknown name (the known and the nearest are told) and for what cannot be imported.
    """
    if name in kind.own:
        return kind.own[name]
    entry = next((entry for entry in entry_points(group=kind.group) if entry.name == name), None)
    if entry is None and ":" in name and EntryPoint.pattern.match(name):
        entry = EntryPoint(name, name, kind.group)
    if entry is None:
        known = names(kind)
        near = nearest(name, known)
        hint = f"did you mean {near!r}? " if near else ""
        raise ConfigError(f"there is no {kind.noun} {name!r}: {hint}known are {', '.join(known)}, or give module:Class")
    look_here()
    try:
        loaded = entry.load()
    except (ImportError, AttributeError, ValueError) as err:
        raise ConfigError(f"{kind.noun} {name!r} cannot be loaded from {entry.value!r}: {err}") from err
    if not callable(loaded):
        raise ConfigError(f"{kind.noun} {name!r}: {entry.value!r} is not a class")
    return cast(Factory, loaded)


def load_class(kind: Kind, name: str, base: type[Any], called: str) -> type[Any]:
    """The class behind a name, derived from `base`, which users know as `called`. Raises ConfigError as `load` does."""
    found = load(kind, name)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{kind.noun} {name!r} is not a class derived from {called}")
    if inspect.isabstract(found):
        missing = ", ".join(f"{method}()" for method in sorted(vars(found)["__abstractmethods__"]))
        raise ConfigError(f"{kind.noun} {name!r} does not define {missing}")
    return found


def make(kind: Kind, name: str, factory: Factory, options: Mapping[str, Any]) -> Any:
    """Call `factory` with `options`, each turned into what its parameter's annotation says, a path for example.

    Raises ConfigError with every option that is not taken, missing or wrong, and for a ValueError of the factory.
    """
    what = f"{kind.noun} {name!r}"
    try:
        signature = inspect.signature(factory, eval_str=True)
    except NameError as err:
        raise ConfigError(f"{what} has options of unknown types: {err}") from err
    parameters = {key: each for key, each in signature.parameters.items() if each.kind in NAMED}
    taken = ", ".join(parameters) or "none"
    problems = [f"{what} has no option {key!r}; it takes {taken}" for key in options if key not in parameters]
    needed = [key for key, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    problems += [f"{what} needs the option {key!r}" for key in needed if key not in options]
    arguments = {}
    for key in [key for key in options if key in parameters]:
        try:
            arguments[key] = _converted(parameters[key], options[key])
        except ValidationError as err:
            problems.append(f"{what}, option {key!r} = {options[key]!r}: {err.errors()[0]['msg']}")
    if problems:
        raise ConfigError(*problems)
    try:
        return factory(**arguments)
    except ValueError as err:
        raise ConfigError(f"{what}: {err}") from err


def _converted(parameter: inspect.Parameter, value: Any) -> Any:
    if parameter.annotation is inspect.Parameter.empty:
        return value
    return TypeAdapter(parameter.annotation).validate_python(value)


def module_name(name: str) -> str:
    """What a plugin's id imports: without `owner/` and `@version`, dashes as underscores, in lower case."""
    return name.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()


def module_of(noun: str, name: str) -> ModuleType:
    """The module that a plugin's id names. Raises ConfigError when there is none, or it cannot be imported.

    Nothing is ever installed.
    """
    module = module_name(name)
    if not is_module(module):
        raise ConfigError(
            f"{noun} {name!r} not found (tried to import {module!r}): it is no path, and a {noun} must already be "
            f"installed, or lie in the current directory as {module}/__init__.py"
        )
    try:
        return importlib.import_module(module)
    except Exception as err:
        raise ConfigError(f"{noun} {name!r} cannot be imported: {type(err).__name__}: {err}") from err


def look_here() -> None:
    """Modules in the current directory can be imported, after all that are installed."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def is_module(module: str) -> bool:
    """Whether it can be imported; a directory without `__init__.py` is no module of anybody's."""
    look_here()
    if module in sys.modules:
        return True
    if not all(part.isidentifier() for part in module.split(".")):
        return False
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def exported(noun: str, module: ModuleType, wanted: type[T]) -> type[T]:
    """The one class derived from `wanted` that a module's `__all__` names. Raises ConfigError for none or several."""
    where, what = f"{noun}: module {module.__name__!r}", f"class derived from {wanted.__name__}"
    if not hasattr(module, "__all__"):
        raise ConfigError(f"{where} has no __all__: name the {what} in it")
    found = exports(module, wanted)
    if not found:
        raise ConfigError(f"{where} names no {what} in its __all__")
    if len(found) > 1:
        several = ", ".join(sorted(cls.__name__ for cls in found))
        raise ConfigError(f"{where} is to name one {what} in its __all__, not {several}")
    return found[0]


def exports(module: ModuleType, wanted: type[T]) -> list[type[T]]:
    """The classes derived from `wanted` that a module's `__all__` names. Raises ConfigError for a name it lacks."""
    found: dict[type[T], None] = {}
    for name in getattr(module, "__all__", ()):
        if not hasattr(module, name):
            raise ConfigError(f"module {module.__name__!r} has no {name!r}, which its __all__ names")
        value = getattr(module, name)
        if isinstance(value, type) and issubclass(value, wanted) and value is not wanted:
            found[value] = None
    return list(found)
