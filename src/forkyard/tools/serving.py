"""A rollout's tools as MCP servers (streamable HTTP, without sessions) on the loopback of its sandbox.

Everything that arrives is hostile: it is read within bounds before the library sees it, and it is this rollout's only.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from mcp.server.lowlevel import Server as McpServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent
from mcp.types import Tool as McpTool

from forkyard.errors import ForkyardError, StoppedError
from forkyard.gateway.headers import Headers, value_of
from forkyard.gateway.listening import Listener, serve_inside
from forkyard.gateway.serving import Receive, Scope, Send, read_body, send_json, until_gone
from forkyard.harness import Server, Toolbox
from forkyard.harness.toolbox import ENDED
from forkyard.sandbox import Sandbox
from forkyard.task import ToolServer
from forkyard.trace import Messages, Tool, ToolCall, Trace
from forkyard.values import MIB

PORT = 9180
BODY_LIMIT = MIB
AT_ONCE = 64
"""Requests of one rollout that are in hand at once, so that they hold 64 MiB at most."""
_SECONDS = 30.0
_log = logging.getLogger(__name__)
logging.getLogger("mcp.server").setLevel(logging.CRITICAL)  # what a hostile client provokes is not for the log

OnEnd = Callable[[ForkyardError], object]
"""Told of what ends the rollout."""


class Serving:
    """The servers of one rollout, each at its name on one port."""

    def __init__(self, toolbox: Toolbox, trace: Trace, on_end: OnEnd) -> None:
        self._desks = {server.name: _Desk(server, toolbox, trace, on_end) for server in toolbox.servers}
        self._listener: Listener | None = None
        self._running: asyncio.Task[None] | None = None
        self._busy = 0

    async def listen(self, sandbox: Sandbox) -> Mapping[str, ToolServer]:
        """Serve inside a sandbox; the servers by name. Raises SandboxError."""
        ready = asyncio.Event()
        self._running = asyncio.create_task(self._run(ready))
        await ready.wait()
        self._listener = await serve_inside(sandbox, self, PORT, "the task's tools")
        return {name: ToolServer(f"http://127.0.0.1:{self._listener.port}/{name}") for name in self._desks}

    async def _run(self, ready: asyncio.Event) -> None:
        """The life of what answers, in one task, as the library wants it."""
        async with AsyncExitStack() as stack:
            for desk in self._desks.values():
                await stack.enter_async_context(desk.manager.run())
            ready.set()
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Cut every connection and cancel every call."""
        if self._listener is not None:
            self._listener.close()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request as ASGI gives it."""
        if scope["type"] != "http":
            return None
        desk = self._desks.get(scope["path"].strip("/"))
        if desk is None:
            return await _refuse(send, 404, f"there is no such server of tools; there is {', '.join(self._desks)}")
        if scope["method"] != "POST":  # nothing is pushed to clients, and there are no sessions to end
            return await _refuse(send, 405, "only POST is served")
        if self._busy >= AT_ONCE:
            return await _refuse(send, 503, "too many requests at once")
        self._busy += 1
        try:
            body = await _body(list(scope["headers"]), receive)
            if body is None:
                return await _refuse(send, 413, f"a request is at most {BODY_LIMIT} bytes, in {_SECONDS:g} seconds")
            answering = asyncio.create_task(desk.manager.handle_request(scope, _replayed(body), send))
            await until_gone(answering, receive)
        finally:
            self._busy -= 1
        return None


class _Desk:
    """One server of tools behind the library's."""

    def __init__(self, server: Server, toolbox: Toolbox, trace: Trace, on_end: OnEnd) -> None:
        self._server = server
        self._toolbox = toolbox
        self._trace = trace
        self._on_end = on_end
        self._answered: set[str] = set()
        app: McpServer[Any] = McpServer(server.name, on_list_tools=self._list, on_call_tool=self._call)
        self.manager = StreamableHTTPSessionManager(app, json_response=True, stateless=True)

    async def _list(self, context: Any, params: Any) -> ListToolsResult:
        tools = [
            McpTool(name=name, description=Tool.of(spec).description, input_schema=Tool.of(spec).parameters)
            for name, spec in self._server.specs.items()
        ]
        return ListToolsResult(tools=tools)

    async def _call(self, context: Any, params: CallToolRequestParams) -> CallToolResult:
        try:
            text = await self._answer(params.name, params.arguments or {})
        except ForkyardError as err:
            if not (isinstance(err, StoppedError) and err.condition == ENDED):
                self._on_end(err)
            text = f"error: {err}"
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=text.startswith("error:"))

    async def _answer(self, name: str, arguments: Mapping[str, Any]) -> str:
        spec = self._server.specs.get(name)
        if spec is None:
            return f"error: there is no tool {name!r}; there is {', '.join(self._server.specs)}"
        called = Tool.of(spec).name
        main = self._trace.graph.main
        talk, offered = (main.messages, main.tools) if main else ([], ())
        said = await self._toolbox.gate(self._asked(called, name, arguments, talk), talk, offered)
        return said if said is not None else await self._toolbox.call(called, arguments)

    def _asked(self, called: str, name: str, arguments: Mapping[str, Any], talk: Messages) -> ToolCall:
        """The call as its model made it: MCP says nothing of that, so it is the next of that name in the last reply."""
        last = talk[-1] if talk else {}
        for call in last.get("tool_calls") or ():
            ident = str(call.get("id"))
            if ident not in self._answered and str(call.get("function", {}).get("name", "")).endswith(name):
                self._answered.add(ident)
                return ToolCall(ident, called, json.dumps(arguments))
        return ToolCall("mcp", called, json.dumps(arguments))


async def _body(headers: Headers, receive: Receive) -> bytes | None:
    """A request's body; None for one that is too large, too slow, or broken off."""
    announced = value_of(headers, b"content-length")
    if announced.isdigit() and int(announced) > BODY_LIMIT:
        return None
    try:
        async with asyncio.timeout(_SECONDS):
            return await read_body(receive, BODY_LIMIT)
    except TimeoutError:
        return None


def _replayed(body: bytes) -> Receive:
    """A body that was read, as ASGI gives it; after it the client seems to stay, and `until_gone` sees when not."""
    given = False

    async def receive() -> dict[str, Any]:
        nonlocal given
        if given:
            await asyncio.Event().wait()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _refuse(send: Send, status: int, message: str) -> None:
    await send_json(send, status, json.dumps({"error": message}).encode())
