"""Hooks of a task: the decorators that mark methods, how these are found, how any hook is called.

A hook is called by parameter name: it declares those of `task` (the task's data), `trace` and `runtime` that it
wants, in any order, and is given exactly these. Interceptors and stops are given what their annotations name: a
`Request`, a `Response`, the `Trace`. A hook may be a coroutine function or a plain one.
"""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Literal, TypeVar, overload
from weakref import WeakKeyDictionary

from forkyard.task.intercept import Request, Response
from forkyard.trace import Trace

Kind = Literal["reward", "metric", "stop", "intercept", "tool"]
Hook = TypeVar("Hook", bound=Callable[..., Any])

AVAILABLE = ("task", "trace", "runtime")
KINDS: tuple[Kind, ...] = ("reward", "metric", "stop", "intercept", "tool")
_MARK = "_forkyard_signal"
_FOUND: WeakKeyDictionary[type, dict[str, tuple[Signal, ...]]] = WeakKeyDictionary()
_PASSING = {"Request": "request", "Response": "response", "Trace": "trace"}


@dataclass(frozen=True, slots=True)
class Signal:
    """A marked method: what it delivers under which name, its weight and its place in the order.

    `at` says what a stop or an interceptor looks at, `given` which of its parameters is given what. `plugged` is a
    function that a task's config puts in the method's place; it has no `self`.
    """

    kind: Kind
    name: str
    weight: float = 1.0
    priority: int = 0
    takes_runtime: bool = False  # it looks into the sandbox that grades
    needs_runtime: bool = False  # its `runtime` parameter has no default: without a sandbox it is skipped
    at: str = ""
    given: tuple[tuple[str, str], ...] = ()
    plugged: Callable[..., Any] | None = None

    def bound(self, owner: object) -> Callable[..., Any]:
        """What to call for `owner`, the object whose class was searched."""
        return self.plugged or getattr(owner, self.name)


@overload
def reward(fn: Hook, /) -> Hook: ...
@overload
def reward(*, weight: float = 1.0, priority: int = 0) -> Callable[[Hook], Hook]: ...
def reward(fn: Hook | None = None, /, *, weight: float = 1.0, priority: int = 0) -> Hook | Callable[[Hook], Hook]:
    """Mark a method as a reward: its number times `weight` is part of the trace's reward."""
    if not math.isfinite(weight):
        raise ValueError(f"the weight of a reward must be a finite number, not {weight}")
    return _marker(Signal("reward", "", float(weight), priority), fn)


@overload
def metric(fn: Hook, /) -> Hook: ...
@overload
def metric(*, priority: int = 0) -> Callable[[Hook], Hook]: ...
def metric(fn: Hook | None = None, /, *, priority: int = 0) -> Hook | Callable[[Hook], Hook]:
    """Mark a method as a metric: its number is recorded and never trained on."""
    return _marker(Signal("metric", "", priority=priority), fn)


@overload
def stop(fn: Hook, /) -> Hook: ...
@overload
def stop(*, priority: int = 0) -> Callable[[Hook], Hook]: ...
def stop(fn: Hook | None = None, /, *, priority: int = 0) -> Hook | Callable[[Hook], Hook]:
    """Mark a method that says, looking at a Request, a Response or the Trace, whether the agent is to stop."""
    return _marker(Signal("stop", "", priority=priority), fn)


@overload
def intercept(fn: Hook, /) -> Hook: ...
@overload
def intercept(*, priority: int = 0) -> Callable[[Hook], Hook]: ...
def intercept(fn: Hook | None = None, /, *, priority: int = 0) -> Hook | Callable[[Hook], Hook]:
    """Mark a method that may put a changed copy in the place of a Request or a Response; None leaves it as it is."""
    return _marker(Signal("intercept", "", priority=priority), fn)


@overload
def tool(fn: Hook, /) -> Hook: ...
@overload
def tool(*, name: str | None = None) -> Callable[[Hook], Hook]: ...
def tool(fn: Hook | None = None, /, *, name: str | None = None) -> Hook | Callable[[Hook], Hook]:
    """Mark a method of a Toolset as a tool; its parameters and its docstring are what the model is told."""
    return _marker(Signal("tool", "", at=name or ""), fn)


def _marker(signal: Signal, fn: Hook | None) -> Hook | Callable[[Hook], Hook]:
    def mark(hook: Hook) -> Hook:
        setattr(hook, _MARK, signal)
        return hook

    return mark if fn is None else mark(fn)


def discover(cls: type, kind: Kind) -> tuple[Signal, ...]:
    """The marked methods of a class, higher priority first, then by name.

    The first class of the method resolution order that defines a name decides, so an undecorated override removes
    an inherited one. Raises TypeError for a method that asks for something no hook is given.
    """
    seen: set[str] = set()
    found: list[Signal] = []
    for base in cls.__mro__:
        for name, member in vars(base).items():
            mark = getattr(member, _MARK, None)
            if name not in seen and isinstance(mark, Signal) and mark.kind == kind:
                found.append(_described(replace(mark, name=name), cls))
            seen.add(name)
    return in_order(found)


def in_order(signals: list[Signal]) -> tuple[Signal, ...]:
    """Higher priority first, then by name."""
    return tuple(sorted(signals, key=lambda signal: (-signal.priority, signal.name)))


def signals_of(cls: type, kind: Kind) -> tuple[Signal, ...]:
    """The same as `discover`, looked up once for each class."""
    found = _FOUND.setdefault(cls, {})
    if kind not in found:
        found[kind] = discover(cls, kind)
    return found[kind]


def plugged(signal: Signal, fn: Callable[..., Any]) -> Signal:
    """The signal with a function in the method's place. Raises TypeError as `discover` does."""
    if not callable(fn):
        raise TypeError(f"{fn!r} is no function")
    parameters = list(inspect.signature(fn).parameters.values())
    return _checked(replace(signal, plugged=fn), fn, parameters, getattr(fn, "__qualname__", repr(fn)))


def _described(signal: Signal, cls: type) -> Signal:
    if signal.kind == "tool":
        return signal
    hook, parameters = _parameters(cls, signal.name)
    return _checked(signal, hook, parameters, f"{cls.__name__}.{signal.name}")


def _checked(signal: Signal, hook: Any, parameters: list[inspect.Parameter], where: str) -> Signal:
    if signal.kind in ("stop", "intercept"):
        return _passing(signal, hook, parameters, where)
    takes = any(parameter.name == "runtime" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return replace(signal, takes_runtime=takes, needs_runtime="runtime" in _required(parameters, where))


def _passing(signal: Signal, hook: Any, parameters: list[inspect.Parameter], where: str) -> Signal:
    """A stop or an interceptor with what it looks at."""
    given = {parameter.name: _meant(parameter, hook) for parameter in parameters}
    looks = [kind for kind in given.values() if kind in ("request", "response")]
    if signal.kind == "stop":
        looks = [kind for kind in given.values() if kind in _PASSING.values()]
    if len(looks) != 1:
        of = "exactly one of Request, Response and Trace" if signal.kind == "stop" else "a Request or a Response"
        raise TypeError(f"{where}: a parameter of @{signal.kind} is to be annotated as {of}; annotated are {looks}")
    _required([parameter for parameter in parameters if given[parameter.name] not in _PASSING.values()], where)
    at = tuple((name, kind) for name, kind in given.items() if kind)
    return replace(signal, at=looks[0], given=at)


def _meant(parameter: inspect.Parameter, hook: Any) -> str:
    """Which value a parameter's annotation names; those of any hook go by their name."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, dict(getattr(hook, "__globals__", {})))
        except Exception:  # noqa: BLE001 - a name of a type checker alone: its last word says what it is
            words = re.findall(r"\w+", annotation.partition("[")[0])
            annotation = words[-1] if words else ""
    annotation = typing.get_origin(annotation) or annotation
    for cls in (Request, Response, Trace):
        if annotation in (cls, cls.__name__):
            return _PASSING[cls.__name__]
    return parameter.name if parameter.name in ("task", "trace") else ""


def required_parameters(cls: type, name: str) -> set[str]:
    """The parameters without a default of a hook; TypeError when one of them is not given to hooks."""
    return _required(_parameters(cls, name)[1], f"{cls.__name__}.{name}")


def _parameters(cls: type, name: str) -> tuple[Any, list[inspect.Parameter]]:
    hook = getattr(cls, name)
    parameters = list(inspect.signature(hook).parameters.values())
    return hook, parameters[1:] if isinstance(inspect.getattr_static(cls, name), FunctionType) else parameters


def _required(parameters: list[inspect.Parameter], where: str) -> set[str]:
    required = {p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    by_position = {p.name for p in parameters if p.kind is p.POSITIONAL_ONLY}
    for parameter in sorted(required - set(AVAILABLE) | by_position):
        raise TypeError(
            f"{where} has the parameter {parameter!r}, which no hook is given; "
            f"a hook takes any of {', '.join(AVAILABLE)} by name"
        )
    return required


async def invoke(hook: Callable[..., Any], **available: Any) -> Any:
    """Call a bound hook with those of the `available` values it declares, and await it if it is a coroutine."""
    declared = inspect.signature(hook).parameters
    result = hook(**{name: value for name, value in available.items() if name in declared})
    return await result if inspect.isawaitable(result) else result
