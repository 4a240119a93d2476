"""A toolbox: what an agent may call in one rollout beside what its harness offers, and the task's word on each call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from forkyard.errors import StoppedError
from forkyard.model import ToolSpec
from forkyard.task import Request, Task
from forkyard.task.boundary import gate_tool
from forkyard.trace import Message, Tool, ToolCall, Trace, messages
from forkyard.values import nearest, strict_json

Own = Mapping[str, Callable[[Mapping[str, Any]], Awaitable[str]]]
"""The tools of a harness itself: what runs a call, by name."""

ENDED = "rollout_ended"


class Server(Protocol):
    """Who answers tools: a toolset, or a server elsewhere."""

    @property
    def name(self) -> str:
        """What it is called where servers are configured."""
        ...

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """Its tools as models are told of them, by the names that the server itself has for them."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> str:
        """The result of a tool as text; `name` is the server's own. Raises ToolsetError, which ends the rollout."""
        ...


class Toolbox:
    """The tools of one rollout, and the gate that every call passes. Whoever made it closes it after the agent."""

    def __init__(self, task: Task[Any, Any, Any], trace: Trace, servers: Iterable[Server] = ()) -> None:
        self.servers = tuple(servers)
        self._at = {Tool.of(spec).name: (server, own) for server in self.servers for own, spec in server.specs.items()}
        self._task = task
        self._trace = trace
        self._closed = False
        self._watched = any(s.at == "request" for kind in ("intercept", "stop") for s in task.signals(kind))

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """All tools as models are told of them."""
        return tuple(spec for server in self.servers for spec in server.specs.values())

    def close(self) -> None:
        """From here on nothing is called any more."""
        self._closed = True

    async def answer(self, call: Mapping[str, Any], own: Own, offered: Sequence[ToolSpec]) -> Message:
        """The result, as a message, of a call that the trace's last reply makes of one of the tools `offered`.

        Raises StoppedError when a stop of the task forbids it, TaskError when the task's code fails, and ToolsetError.
        """
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        name, given = str(function.get("name")), function.get("arguments")
        try:
            text = given if isinstance(given, str) else strict_json(given)
        except RecursionError:
            text = ""
        asked = ToolCall(str(call.get("id") or ""), name, text)
        said = await self.gate(asked, self._trace.messages, offered)
        if said is None and name in own:
            said = await own[name](call)
        elif said is None and name in self._at:
            said = await self.call(name, given if isinstance(given, Mapping) else text)
        elif said is None:
            said = f"error: {_no_tool(name, [*own, *self._at])}"
        return messages.tool_result(asked["id"], said)

    async def gate(self, call: ToolCall, talk: Sequence[Message], offered: Sequence[ToolSpec]) -> str | None:
        """Show a call to the task's code before it runs: the result to stand in its place, None to run it.

        `talk` ends with the reply that makes the call. Raises StoppedError and TaskError.
        """
        self._check_open()
        if not self._watched:
            return None
        request = Request.model_validate({"messages": list(talk), "tools": list(map(dict, offered))})
        gate = await gate_tool(self._task, self._trace, request, call)
        if gate.action == "stop":
            raise StoppedError(f"rollout stopped: {gate.text}", gate.text)
        return gate.text if gate.action == "deny" else None

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> str:
        """The result of a tool that passed the gate, by the name that models call. Raises ToolsetError."""
        server, own = self._at[name]
        result = await server.call(own, arguments)
        self._check_open()
        return result

    def _check_open(self) -> None:
        if self._closed:
            raise StoppedError("this rollout has ended", ENDED)


def _no_tool(name: str, known: Sequence[str]) -> str:
    if len(known) == 1:
        return f"there is no tool {name!r}: the only tool is {known[0]}"
    near = nearest(name, known)
    return f"there is no tool {name!r}" + (f"; did you mean {near!r}?" if near else "")
