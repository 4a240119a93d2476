"""A toolset that runs elsewhere: an MCP server by URL, asked from outside the sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from mcp import Client, MCPError
from mcp.types import CallToolResult

from forkyard.errors import ToolsetError
from forkyard.harness.offering import UNNAMED
from forkyard.model import ToolSpec
from forkyard.task import AnyToolset

PAGES = 100
"""How many pages of tools are read: a server that always has another does not hold up a rollout."""
CLOSING = 5.0
_BROKEN = (-32000, -32603)  # the connection has ended; the server could not be asked


class RemoteServer:
    """One rollout's connection to a toolset's `url`. Whoever opens it closes it."""

    def __init__(self, toolset: AnyToolset) -> None:
        self.name = toolset.server_name or UNNAMED
        self.specs: dict[str, ToolSpec] = {}
        self._prefix = f"{toolset.server_name}_" if toolset.server_name else ""
        self._url = str(toolset.config.url)
        self._client: Client | None = None
        self._over = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, and learn of its tools. Raises ToolsetError."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep(ready))
        await asyncio.wait((self._keeping, ready), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            error = self._keeping.exception()
            raise ToolsetError(f"the server of tools {self.name} at {self._url} cannot be used: {_words(error)}")

    async def _keep(self, ready: asyncio.Future[None]) -> None:
        """The connection's whole life in one task, as its client wants it."""
        async with Client(self._url) as client:
            self._client = client
            cursor: str | None = None
            for _ in range(PAGES):
                page = await client.list_tools(cursor=cursor)
                for tool in page.tools:
                    function = {
                        "name": f"{self._prefix}{tool.name}",
                        "description": tool.description or "",
                        "parameters": tool.input_schema,
                    }
                    self.specs[tool.name] = {"type": "function", "function": function}
                cursor = page.next_cursor
                if not cursor:
                    break
            ready.set_result(None)
            await self._over.wait()

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> str:
        """The result of a tool as text. Raises ToolsetError when the server cannot be asked any more."""
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError) as err:
                return f"error: {name} was called with arguments that are no JSON: {err}"
        if not isinstance(arguments, Mapping):
            return f"error: the arguments of {name} are to be a JSON object"
        if self._client is None or self._keeping is None or self._keeping.done():
            raise ToolsetError(f"the server of tools {self.name} at {self._url} has gone")
        try:
            return _text(await self._client.call_tool(name, dict(arguments)))
        except MCPError as err:
            if err.code in _BROKEN:
                raise ToolsetError(f"the server of tools {self.name} at {self._url} failed: {err.message}") from err
            return f"error: {err.message}"

    async def close(self) -> None:
        """End the connection, whatever the server does."""
        if self._keeping is None:
            return
        self._over.set()
        if self._client is not None:
            await asyncio.wait([self._keeping], timeout=CLOSING)
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)


def _text(result: CallToolResult) -> str:
    parts = [block.text if block.type == "text" else f"[{block.type}]" for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content)]
    text = "\n".join(parts)
    return f"error: {text}" if result.is_error and not text.startswith("error:") else text


def _words(error: BaseException | None) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if error else "it ended the connection"
