"""A toolset that runs in the agent's sandbox: a program there, fed and heard through its own streams.

Agents call it where they call all tools, through the host, so the gate stands before it and nobody can take its place.
What comes out of it is hostile: bounded, nothing but a tool's result and values of the state, and no end of a rollout.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from forkyard.errors import ForkyardError, SandboxError, ToolsetError, boundary
from forkyard.model import ToolSpec
from forkyard.sandbox import Sandbox
from forkyard.sandbox.abilities import StandsApart
from forkyard.sandbox.protocol import Process
from forkyard.task import AnyToolset, State, TaskData, Toolset
from forkyard.task.generics import type_argument
from forkyard.tools.inside import LINE_LIMIT
from forkyard.tools.python import COMMAND
from forkyard.tools.servers import ToolsetServer
from forkyard.tools.sources import sources_of
from forkyard.values import tail

AT_ONCE = 64
"""Calls of one program that are under way at once."""
_STDERR_KEPT = 4096
_MISSING = 127


class Quarters:
    """Where the programs of one rollout live in its sandbox: apart from the agent, where the provider can do that."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._apart: Sandbox | None = None
        self._servers: list[ColocatedServer] = []

    async def server(self, toolset: AnyToolset, task: TaskData, state: State) -> ColocatedServer:
        """A program for a toolset, set up. Raises ToolsetError, and ConfigError for what cannot be taken inside."""
        if not self._servers and isinstance(self._sandbox, StandsApart):
            self._apart = await self._sandbox.apart(())
        server = ColocatedServer(toolset, state)
        self._servers.append(server)
        await server.open(self._apart or self._sandbox, task)
        return server

    async def close(self) -> None:
        """End all of them, and what they started."""
        servers, self._servers = self._servers, []
        try:
            await asyncio.gather(*(server.close() for server in servers))
        finally:
            apart, self._apart = self._apart, None
            if apart is not None:
                await apart.close()


class ColocatedServer:
    """One toolset's program. Whoever made it closes it."""

    def __init__(self, toolset: AnyToolset, state: State) -> None:
        self._toolset = toolset
        self._state = state
        self._own = set(type_argument(type(toolset), State).model_fields) - {"artifacts"}
        self._outside = ToolsetServer(toolset, state)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._lines: dict[int, bytes] = {}
        self._more = asyncio.Event()
        self._number = 0
        self._stderr = b""
        self._process: Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._gone = False

    @property
    def name(self) -> str:
        """What it is called where servers are configured."""
        return self._outside.name

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """Its tools, as its class outside says them."""
        return self._outside.specs

    async def open(self, sandbox: Sandbox, task: TaskData) -> None:
        """Start the program and set it up. Raises ToolsetError, and ConfigError for what cannot be taken inside."""
        start = {
            "sources": sources_of(self._toolset),
            "module": type(self._toolset).__module__,
            "toolset": type(self._toolset).__qualname__,
            "config": self._toolset.config.model_dump(mode="json"),
        }
        told = task.model_dump(mode="json") if _asks_for_task(self._toolset) else {}
        with boundary(ToolsetError, f"toolset {type(self._toolset).__name__} in the sandbox"):
            self._process = process = await sandbox.spawn(COMMAND)
            self._tasks = [asyncio.create_task(self._read(process)), asyncio.create_task(self._write(process))]
            self._say(0, start)
            answer = await self._ask({"op": "setup", "task": told})
            if self._gone and (await process.wait()).exit_code == _MISSING:
                raise ToolsetError(
                    f"toolset {type(self._toolset).__name__} is colocated, and the sandbox was made without this "
                    "machine's Python: provision it with a task that has the toolset"
                )
        if "failed" in answer:
            raise ToolsetError(f"toolset {type(self._toolset).__name__} in the sandbox: {answer['failed']}")

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> str:
        """The result of a tool as text; what went wrong inside is one that begins with "error:"."""
        given = arguments if isinstance(arguments, str) else dict(arguments)
        answer = await self._ask({"op": "call", "name": name, "arguments": given})
        return f"error: {answer['failed']}" if "failed" in answer else str(answer.get("text"))

    async def close(self) -> None:
        """End it with all that it started."""
        self._gone = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail("it was closed")
        if self._process is not None:
            with suppress(SandboxError):  # it ended with the sandbox
                await self._process.kill()

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer, its part of the state taken over; one that says "failed" when there is none."""
        if self._gone:
            return {"failed": self._ended}
        self._number = number = self._number + 1
        with boundary(ToolsetError, f"the state of the rollout cannot go to toolset {type(self._toolset).__name__}"):
            state = self._state.model_dump(mode="json", include=self._own)
        if len(self._waiting) >= AT_ONCE:
            return {"failed": "too many calls at once"}
        if self._say(number, {"id": number, "state": state, **request}) > LINE_LIMIT:
            del self._lines[number]
            return {"failed": f"a call and its state have more than {LINE_LIMIT} bytes"}
        self._waiting[number] = answered = asyncio.get_running_loop().create_future()
        try:
            answer = await answered
        except asyncio.CancelledError:
            if self._lines.pop(number, None) is None:  # it was told of the call
                self._say(-number, {"id": number, "op": "cancel"})
            raise
        finally:
            self._waiting.pop(number, None)
        return answer if "failed" in answer else self._taken_over(answer)

    def _say(self, key: int, message: Mapping[str, Any]) -> int:
        """Have a line written when the program takes it; its length."""
        self._lines[key] = line = json.dumps(message).encode() + b"\n"
        self._more.set()
        return len(line)

    def _taken_over(self, answer: dict[str, Any]) -> dict[str, Any]:
        changed = answer.get("changed")
        if not isinstance(changed, dict) or not self._own.issuperset(changed):
            return {"failed": "its answer is none"}
        draft = self._state.model_copy()
        try:
            for name, value in changed.items():
                draft.__pydantic_validator__.validate_assignment(draft, name, value)
        except Exception as err:  # noqa: BLE001 - validators are the task's code, and what they are given is hostile
            return {"failed": f"it left a state that is none: {err}"}
        for name in changed:
            setattr(self._state, name, getattr(draft, name))
        return answer

    @property
    def _ended(self) -> str:
        said = self._stderr.decode("utf-8", "replace").strip()
        return f"the server of tools {self.name} in the sandbox has ended{f': {tail(said, 500)}' if said else ''}"

    async def _write(self, process: Process) -> None:
        with suppress(OSError, ForkyardError):  # whoever reads finds it ended
            while True:
                while not self._lines:
                    self._more.clear()
                    await self._more.wait()
                await process.write(self._lines.pop(next(iter(self._lines))))

    async def _read(self, process: Process) -> None:
        """Hear it until it ends; what is no answer ends it."""
        buffer = bytearray()
        try:
            async for stream, piece in process.output():
                if stream == "stderr":
                    self._stderr = (self._stderr + piece)[-_STDERR_KEPT:]
                    continue
                buffer += piece
                while (end := buffer.find(b"\n", max(0, len(buffer) - len(piece) - 1))) >= 0:
                    self._hear(bytes(buffer[:end]))
                    del buffer[: end + 1]
                if len(buffer) > LINE_LIMIT:
                    raise ValueError("an endless answer")
        except (ForkyardError, ValueError, RecursionError, TypeError):
            with suppress(SandboxError):
                await process.kill()
        self._gone = True
        self._fail(self._ended)

    def _hear(self, line: bytes) -> None:
        """Give an answer to whoever waits for it. Raises ValueError for what is none."""
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError("no answer")
        json.dumps(answer, ensure_ascii=False).encode()  # half a surrogate is no text
        waiting = self._waiting.get(answer.get("id", 0))
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _fail(self, why: str) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result({"failed": why})


def _asks_for_task(toolset: AnyToolset) -> bool:
    """Whether a task's data goes inside: to toolsets that say they use it."""
    return type(toolset).setup_task is not Toolset.setup_task
