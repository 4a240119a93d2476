"""A Toolset: methods that an agent can call as tools, wherever they are served."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Self, cast, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from typing_extensions import TypeVar

from forkyard.errors import ForkyardError, ToolsetError, boundary
from forkyard.task.data import Frozen, TaskData
from forkyard.task.generics import type_argument
from forkyard.task.hooks import signals_of
from forkyard.task.state import State
from forkyard.values import nearest, strict_json


class SharedToolsetConfig(Frozen):
    """A server that all rollouts of a run share. `url` is one that runs already."""

    url: str | None = None


class ToolsetConfig(SharedToolsetConfig):
    """A server that each rollout has for itself; `colocated` puts it into the agent's sandbox."""

    colocated: bool = False

    @model_validator(mode="after")
    def _is_at_one_place(self) -> Self:
        if self.colocated and self.url is not None:
            raise ValueError("`colocated` starts a server in the sandbox, and `url` is one that runs already: say one")
        return self


ToolsetConfigT_co = TypeVar("ToolsetConfigT_co", bound=SharedToolsetConfig, covariant=True, default=ToolsetConfig)
ToolStateT_co = TypeVar("ToolStateT_co", bound=State, covariant=True, default=State)


@dataclass(frozen=True, slots=True)
class ToolMethod:
    """One tool: its name, what a model is told of it, and the method behind it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    method: str
    arguments: type[BaseModel]

    def spec(self, name: str) -> dict[str, Any]:
        """The tool under a name, as chat completions describe it."""
        function = {"name": name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolServer:
    """An MCP server as a program in the sandbox has it: at a URL it can reach, or a command it starts itself.

    One with `secrets`, headers that hold what the host alone may know, is outside: programs reach it through the host,
    which adds them.
    """

    url: str = ""
    transport: Literal["streamable-http", "sse", "stdio"] = "streamable-http"
    headers: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    args: Sequence[str] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


_log = logging.getLogger(__name__)
_state: ContextVar[State | None] = ContextVar("forkyard_tool_state", default=None)
_FOUND: WeakKeyDictionary[type, tuple[ToolMethod, ...]] = WeakKeyDictionary()


class Toolset(Generic[ToolsetConfigT_co, ToolStateT_co]):
    """Subclass it and mark methods with `@tool`; `self.state` is the rollout's state, `self.config` its config.

    `TOOL_PREFIX` and "_" stand before every tool's name; "" is the class's own name, None is no prefix. An instance
    serves one rollout, or, when it is shared, every rollout with the state of each.
    """

    TOOL_PREFIX: ClassVar[str | None] = ""
    _state: State | None = None
    _set_up: asyncio.Future[None] | None = None

    def __init__(self, config: ToolsetConfigT_co | None = None) -> None:
        self.config = config or cast(ToolsetConfigT_co, type_argument(type(self), SharedToolsetConfig, ToolsetConfig)())

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        tools_of(cls)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a server: a copy of a task that has it is offered the same one

    @property
    def state(self) -> ToolStateT_co:
        """The state of the rollout that the call under way is for; outside of calls one of its own."""
        given = _state.get() or self._state
        if given is None:
            given = self._state = type_argument(type(self), State)()
        return cast(ToolStateT_co, given)

    @property
    def server_name(self) -> str:
        """The name of its server, which stands before its tools' names; "" for none."""
        if self.TOOL_PREFIX is None:
            return ""
        return self.TOOL_PREFIX or re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def colocated(self) -> bool:
        """Whether it runs in the agent's sandbox: this instance is then only what is known of it outside."""
        return bool(getattr(self.config, "colocated", False))

    async def setup(self) -> None:
        """Get ready, once, before the first call."""

    async def setup_task(self, task: TaskData) -> None:
        """Get ready for a rollout of a task, before its first call."""

    @property
    def tools(self) -> tuple[ToolMethod, ...]:
        """Its tools by the names that models call."""
        return tools_of(type(self))

    def specs(self) -> list[dict[str, Any]]:
        """Its tools as chat completions describe them."""
        return [tool.spec(f"{self._prefix}{tool.name}") for tool in self.tools]

    @property
    def _prefix(self) -> str:
        return f"{self.server_name}_" if self.server_name else ""

    async def call(self, name: str, arguments: Mapping[str, Any] | str, state: State | None = None) -> str:
        """The result of a tool as text; `name` with the prefix or without, `arguments` as values or JSON text.

        `state` is what `self.state` is meanwhile. What went wrong is answered in a sentence that begins with
        "error:": an unknown tool, arguments that are no JSON or of other types, whatever the method raised. Errors
        of this package pass: a method that raises ToolsetError ends the rollout.
        """
        known = {f"{self._prefix}{tool.name}": tool for tool in self.tools}
        tool = known.get(name) or known.get(f"{self._prefix}{name}")
        if tool is None:
            near = nearest(name, known)
            return f"error: there is no tool {name!r}{f'; did you mean {near!r}?' if near else ''}"
        try:
            with _called_for(state):
                result = getattr(self, tool.method)(**_values(tool, arguments))
                return _text(await result if inspect.isawaitable(result) else result)
        except _WrongArgumentsError as err:
            return f"error: {tool.name} was called with wrong arguments: {err}"
        except ForkyardError:
            raise
        except Exception as err:  # noqa: BLE001 - the model is told, as by any server of tools
            _log.info("tool %s of %s raised", tool.name, type(self).__name__, exc_info=err)
            return f"error: {type(err).__name__}: {err}"


async def set_up(toolset: AnyToolset, task: TaskData, state: State) -> None:
    """Make a toolset ready for a rollout: its `setup` when nobody did it before, then its `setup_task`.

    Several rollouts may ask at once; a `setup` that failed is tried again by the next. Raises ToolsetError.
    """
    with boundary(ToolsetError, f"toolset {type(toolset).__name__} setup"):
        while toolset._set_up is not None and not toolset._set_up.done():
            await asyncio.wait([toolset._set_up])
        if toolset._set_up is None or toolset._set_up.cancelled():
            toolset._set_up = asyncio.get_running_loop().create_future()
            try:
                await toolset.setup()
                toolset._set_up.set_result(None)
            finally:
                toolset._set_up.cancel()  # unless it is done
        with _called_for(state):
            await toolset.setup_task(task)


def own_of(toolset: AnyToolset, state: State) -> AnyToolset:
    """The toolset as one rollout has it for itself: `self.state` is that rollout's, in `setup` too."""
    toolset._state = state
    return toolset


@contextmanager
def _called_for(state: State | None) -> Iterator[None]:
    token = _state.set(state)
    try:
        yield
    finally:
        _state.reset(token)


AnyToolset = Toolset[Any, Any]


class _WrongArgumentsError(ValueError):
    """A model called a tool with what it does not take."""


def _values(tool: ToolMethod, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    try:
        if isinstance(arguments, str):
            given = tool.arguments.model_validate_json(arguments or "{}")
        else:
            given = tool.arguments.model_validate(dict(arguments))
    except ValidationError as err:
        problems = [f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in err.errors()]
        raise _WrongArgumentsError("; ".join(problems)) from err
    return {field: getattr(given, field) for field in type(given).model_fields}


def tools_of(cls: type) -> tuple[ToolMethod, ...]:
    """The tools of a class by name. Raises TypeError for a method a model cannot call, and for two of one name."""
    if cls in _FOUND:
        return _FOUND[cls]
    tools: dict[str, ToolMethod] = {}
    for signal in signals_of(cls, "tool"):
        made = _tool(signal.at or signal.name, signal.name, getattr(cls, signal.name))
        if made.name in tools:
            raise TypeError(f"{cls.__name__} has two tools called {made.name!r}")
        tools[made.name] = made
    _FOUND[cls] = tuple(tools.values())
    return _FOUND[cls]


def _tool(name: str, method: str, function: Callable[..., Any]) -> ToolMethod:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {name!r}: {parameter} cannot be called by name")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as err:
        raise TypeError(f"tool {name!r} has a parameter of unknown type: {err}") from err
    fields: dict[str, Any] = {
        parameter.name: (
            hints.get(parameter.name, Any),
            Field() if parameter.default is parameter.empty else Field(default=parameter.default),
        )
        for parameter in parameters
    }
    arguments = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return ToolMethod(name, inspect.getdoc(function) or "", _schema(arguments), method, arguments)


def _schema(arguments: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments without titles, which say nothing that names do not."""
    from pydantic.json_schema import GenerateJsonSchema  # reading tasks does not wait for it

    class Plain(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    made = arguments.model_json_schema(schema_generator=Plain)
    return {key: value for key, value in made.items() if key != "title"}


def _text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, BaseModel):
        return result.model_dump_json()
    return "" if result is None else strict_json(result)
