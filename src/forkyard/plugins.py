"""Classes by name: ours, those that installed packages offer, or any class given as "module:Class".

A module may be installed, or lie in the current directory: the same for harnesses, envs, providers, judges, tasksets.
All code of users comes in here: modules, files (`file_module`), directories (`package_module`); and whatever it raises
is told as a mistake of it (`foreign`).

`exported` finds classes by what an importable module says in its `__all__`, which needs no entry point.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from forkyard.errors import ConfigError
from forkyard.values import nearest

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
Factory = Callable[..., Any]
T = TypeVar("T")
_NOT_THEIRS = frozenset({__file__, importlib.__file__, inspect.getfile(EntryPoint)})


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
    _can_import_from(Path.cwd())
    loaded = foreign(f"{kind.noun} {name!r} cannot be loaded from {entry.value!r}", entry.load)
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
    return foreign(f"{noun} {name!r} cannot be imported", lambda: importlib.import_module(module))


def _can_import_from(directory: Path) -> None:
    """Modules there can be imported, after all that are installed."""
    here = str(directory)
    if here not in sys.path and (directory != Path.cwd() or "" not in sys.path):
        sys.path.append(here)


def function_of(path: str) -> Callable[..., Any]:
    """The function of "pkg.module.function", "pkg.module:function" or "path/file.py:function".

    Raises ConfigError when there is none.
    """
    module, colon, name = path.rpartition(":") if ":" in path else path.rpartition(".")
    if not module or not name:
        raise ConfigError(
            f"{path!r} is no function: write pkg.module.function, pkg.module:function or file.py:function"
        )

    def load() -> Any:
        if colon and module.endswith(".py"):
            return getattr(file_module(Path(module).absolute(), Path(module).read_bytes()), name)
        _can_import_from(Path.cwd())
        return getattr(importlib.import_module(module), name)

    found = foreign(f"{path!r} cannot be loaded", load)
    if not callable(found):
        raise ConfigError(f"{path!r} is no function, but {type(found).__name__}")
    return cast(Callable[..., Any], found)


def file_module(file: Path, source: bytes) -> ModuleType:
    """A Python file as a module of its own, made of `source`, the bytes read; its neighbours can be imported.

    Raises whatever its code does.
    """
    name = f"forkyard_file_{hashlib.sha256(bytes(file) + source).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(file)
    _can_import_from(file.parent)

    def run() -> None:
        exec(compile(source, file, "exec", dont_inherit=True), vars(module))

    return _made_by(run, module)


def package_module(directory: Path) -> ModuleType:
    """The very package of an absolute directory, whatever else is called like it. Raises ConfigError."""
    name, file, what = directory.name, directory / "__init__.py", f"{directory} cannot be imported"
    if not name.isidentifier():
        raise ConfigError(f"{what}: {name!r} is no name of a package; use letters, digits and _")
    _can_import_from(directory.parent)
    if (held := sys.modules.get(name)) is not None:
        if held.__file__ is None or Path(held.__file__).resolve() != file.resolve():
            raise ConfigError(f"{what}: the name {name!r} is that of {held.__file__ or 'another'}")
        return held
    spec = spec_from_file_location(name, file, submodule_search_locations=[str(directory)])
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = module_from_spec(spec)
    return foreign(what, partial(_made_by, partial(spec.loader.exec_module, module), module))


def _made_by(run: Callable[[], None], module: ModuleType) -> ModuleType:
    """The module, run; it can be found by its name meanwhile, as classes look theirs up, and not when it failed."""
    sys.modules[module.__name__] = module
    try:
        run()
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def foreign(what: str, code: Callable[[], T], file: Path | None = None) -> T:
    """Run code of somebody else's. Raises ConfigError with the place for whatever it raises, `file` being `what`'s."""
    try:
        return code()
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as err:
        said = f"{type(err).__name__}: {err.msg if isinstance(err, SyntaxError) else err}"
        lines = [(at.filename, at.lineno) for at in traceback.extract_tb(err.__traceback__)]
        if isinstance(err, SyntaxError):
            lines.append((err.filename or "", err.lineno))
        if file is not None:
            within = [line for name, line in lines if name == str(file.absolute())]
            raise ConfigError(f"{what}{f', line {within[-1]}' if within else ''}: {said}") from err
        outside = [(name, line) for name, line in lines if name not in _NOT_THEIRS and not name.startswith("<")]
        at = " ({}, line {})".format(*outside[-1]) if outside else ""
        raise ConfigError(f"{what}: {said}{at}") from err


def is_module(module: str) -> bool:
    """Whether it can be imported; a directory without `__init__.py` is no module of anybody's."""
    _can_import_from(Path.cwd())
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
