"""A sandbox of a server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from forkyard.errors import SandboxLost
from forkyard.sandbox.network import Network, Visit
from forkyard.sandbox.protocol import Process, Sandbox
from forkyard.sandbox.remote.connection import Connection, OnEvent
from forkyard.sandbox.remote.frames import Said
from forkyard.sandbox.remote.ports import InsidePort
from forkyard.sandbox.remote.process import RemoteProcess
from forkyard.sandbox.remote.values import (
    LARGE,
    SMALL,
    BrokenWire,
    changes_in,
    dumped,
    mapping,
    read,
    result_in,
    visits_in,
)
from forkyard.sandbox.values import (
    ARCHIVE_LIMIT,
    OUTPUT_LIMIT,
    READ_LIMIT,
    Change,
    OnOutput,
    ProgramResult,
    SandboxInfo,
    Terminal,
)


class RemoteSandbox:
    """A `Sandbox` (see the protocol), known to the server's session by a number."""

    def __init__(self, connection: Connection, number: int, info: SandboxInfo) -> None:
        self._connection = connection
        self._number = number
        self._info = info
        self._visits: tuple[Visit, ...] = ()
        self._ports: dict[int, InsidePort] = {}
        self._closed = False
        self._closing = asyncio.Lock()

    @property
    def id(self) -> str:
        """The identifier the server's provider gave it."""
        return self._info.id

    @property
    def info(self) -> SandboxInfo:
        """What was last heard of it."""
        return self._info

    @property
    def visits(self) -> tuple[Visit, ...]:
        """What was last heard of them: as of the end of the latest call."""
        return self._visits

    @property
    def number(self) -> int:
        """By which the session knows it."""
        return self._number

    async def run(
        self,
        argv: Sequence[str] | str,
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT,
        on_output: OnOutput | None = None,
    ) -> ProgramResult:
        """Run a command to its end (see the protocol)."""
        args = {
            **_command(argv, env, cwd, user),
            "timeout": timeout,
            "output_limit": output_limit,
            "told": on_output is not None,
        }
        said = await self._call("run", args, stdin, limit=2 * output_limit + SMALL, on_event=on_output)
        return result_in(said.value, said.data)

    async def spawn(
        self,
        argv: Sequence[str] | str,
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | None = None,
        user: str | None = None,
        terminal: Terminal | None = None,
    ) -> Process:
        """Start a command (see the protocol)."""
        size = None if terminal is None else [terminal.cols, terminal.rows]
        said = await self._call("spawn", {**_command(argv, env, cwd, user), "terminal": size})
        return RemoteProcess(self._connection, read(int, said.value))

    async def read(self, path: str, max_bytes: int = READ_LIMIT) -> bytes:
        """The content of a regular file (see the protocol)."""
        said = await self._call("read", {"path": path, "max_bytes": max_bytes}, limit=max_bytes + SMALL)
        return said.data

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole file (see the protocol)."""
        await self._call("write", {"path": path, "mode": mode}, data)

    async def pull(self, path: str, exclude: Sequence[str] = (), max_bytes: int = ARCHIVE_LIMIT) -> bytes:
        """A tar archive of a tree (see the protocol)."""
        args = {"path": path, "exclude": list(exclude), "max_bytes": max_bytes}
        return (await self._call("pull", args, limit=max_bytes + SMALL)).data

    async def push(self, archive: bytes, path: str = "/", *, layer: bool = False) -> None:
        """Unpack a tar archive (see the protocol)."""
        await self._call("push", {"path": path, "layer": layer}, archive)

    async def listen(self, port: int) -> socket.socket:
        """A socket that serves a port inside (see the protocol); each connection to it crosses the network."""
        before = self._ports.get(port)
        over = before is not None and before.fileno() < 0
        listener = read(int, (await self._call("listen", {"port": port, "again": over})).value)
        here = self._ports[port] = InsidePort(port)
        self._connection.on_stream(listener, lambda _, token: self._knocked(here, token))
        return here

    def _knocked(self, here: InsidePort, token: str) -> None:
        if (sock := here.knock()) is not None:
            self._connection.relay(token, sock)
        else:
            self._connection.refuse(token)

    async def connect(self, port: int) -> socket.socket:
        """A socket that reaches a port inside (see the protocol)."""
        token = read(str, (await self._call("connect", {"port": port})).value)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._connection.relay(token, ours)
        return theirs

    async def set_network(self, network: Network) -> None:
        """Reach another network from now on (see the protocol)."""
        await self._call("set_network", {"network": dumped(network)})

    async def fork(self, name: str | None = None) -> Sandbox:
        """A running copy (see the protocol)."""
        return made(self._connection, (await self._call("fork", {"name": name})).value)

    async def pristine(self) -> Sandbox:
        """A new sandbox as this one was at first (see the protocol)."""
        return made(self._connection, (await self._call("pristine")).value)

    async def apart(self, own: Sequence[str]) -> Sandbox | None:
        """The same machine for commands apart (see `StandsApart`); None also where the server's provider has none."""
        said = await self._call("apart", {"own": list(own)})
        return None if said.value is None else made(self._connection, said.value)

    async def is_quiet(self) -> bool:
        """Whether nobody's process runs in it (see the protocol)."""
        return read(bool, (await self._call("is_quiet")).value)

    async def changes(self) -> list[Change]:
        """What differs from what it started from (see the protocol)."""
        return changes_in((await self._call("changes", limit=LARGE)).value)

    async def pause(self) -> None:
        """Bring every process to a halt (see the protocol)."""
        await self._call("pause")

    async def resume(self) -> None:
        """Let every process go on (see the protocol)."""
        await self._call("resume")

    async def stop(self) -> None:
        """End every process and seal the disk (see the protocol)."""
        await self._call("stop")

    async def start(self) -> None:
        """Bring it up again (see the protocol)."""
        await self._call("start")

    async def close(self) -> None:
        """End it for good (see the protocol). One that was lost with its server is the server's to end."""
        async with self._closing:
            if not self._closed and not self._connection.lost:
                await self._connection.call("close", {"box": self._number})
            self._closed = True
        for port in self._ports.values():
            port.close()

    async def _call(
        self,
        do: str,
        args: Mapping[str, Any] | None = None,
        data: bytes = b"",
        *,
        limit: int = SMALL,
        on_event: OnEvent | None = None,
    ) -> Said:
        if self._closed:
            raise SandboxLost(f"sandbox {self.id[:12]} was closed")
        args = {"box": self._number, **(args or {})}
        said = await self._connection.call(do, args, data, limit=limit, on_event=on_event)
        if (state := said.head.get("state")) is not None:
            self._hear(mapping(state))
        return said

    def _hear(self, state: Mapping[str, Any]) -> None:
        info = read(SandboxInfo, state.get("info"))
        if info.id != self.id:
            raise BrokenWire("word of another sandbox")
        self._info = info
        if "visits" in state:
            self._visits = visits_in(state["visits"])


def _command(
    argv: Sequence[str] | str, env: Mapping[str, str] | None, cwd: str | None, user: str | None
) -> dict[str, Any]:
    return {
        "argv": argv if isinstance(argv, str) else list(argv),
        "env": None if env is None else dict(env),
        "cwd": cwd,
        "user": user,
    }


def made(connection: Connection, value: Any) -> RemoteSandbox:
    """The sandbox that a server says it has made."""
    value = mapping(value)
    return RemoteSandbox(connection, read(int, value.get("box")), read(SandboxInfo, value.get("info")))
