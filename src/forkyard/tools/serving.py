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
from forkyard.gateway.listening import Listener, serve_inside
from forkyard.gateway.serving import Receive, Scope, Send, until_gone
from forkyard.harness import Server, Toolbox
from forkyard.harness.toolbox import ENDED
from forkyard.sandbox import Sandbox
from forkyard.task import ToolServer
from forkyard.tools.requests import AT_ONCE, TOO_MUCH, read_request, refuse
from forkyard.trace import Messages, Tool, ToolCall, Trace

PORT = 9180
_log = logging.getLogger(__name__)
logging.getLogger("mcp.server").setLevel(logging.CRITICAL)  # what a hostile client provokes is not for the log

OnEnd = Callable[[ForkyardError], object]
"""Told of what ends the rollout."""


class Serving:
    """The servers of one rollout, each at its name on one port."""

    def __init__(self, toolbox: Toolbox, trace: Trace, on_end: OnEnd) -> None:
        self._served = {server.name: _OneServer(server, toolbox, trace, on_end) for server in toolbox.servers}
        self._listener: Listener | None = None
        self._running: asyncio.Task[None] | None = None
        self._busy = 0

    async def listen(self, sandbox: Sandbox) -> Mapping[str, ToolServer]:
        """Serve inside a sandbox; the servers by name. Raises SandboxError."""
        ready = asyncio.Event()
        self._running = asyncio.create_task(self._run(ready))
        await ready.wait()
        self._listener = await serve_inside(sandbox, self, PORT, "the task's tools")
        return {name: ToolServer(f"http://127.0.0.1:{self._listener.port}/{name}") for name in self._served}

    async def _run(self, ready: asyncio.Event) -> None:
        """The life of what answers, in one task, as the library wants it."""
        async with AsyncExitStack() as stack:
            for one in self._served.values():
                await stack.enter_async_context(one.manager.run())
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
        one = self._served.get(scope["path"].strip("/"))
        if one is None:
            return await refuse(send, 404, f"there is no such server of tools; there is {', '.join(self._served)}")
        if scope["method"] != "POST":  # nothing is pushed to clients, and there are no sessions to end
            return await refuse(send, 405, "only POST is served")
        if self._busy >= AT_ONCE:
            return await refuse(send, 503, "too many requests at once")
        self._busy += 1
        try:
            body = await read_request(scope, receive)
            if body is None:
                return await refuse(send, 413, TOO_MUCH)
            answering = asyncio.create_task(one.manager.handle_request(scope, _replayed(body), send))
            await until_gone(answering, receive)
        finally:
            self._busy -= 1
        return None


class _OneServer:
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
