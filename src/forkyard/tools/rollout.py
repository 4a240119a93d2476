"""The tools of one rollout: those of its task, those its taskset shares, and those that its caller lends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forkyard.errors import ForkyardError, ToolsetError
from forkyard.harness import Server, Toolbox
from forkyard.harness.offering import toolsets_of
from forkyard.sandbox import Mount, Sandbox
from forkyard.task import AnyToolset, Task, ToolServer
from forkyard.task.toolset import own_of, set_up
from forkyard.tools.placing import tool_mounts
from forkyard.tools.servers import ToolsetServer
from forkyard.trace import Tool, Trace

if TYPE_CHECKING:
    from forkyard.tools.colocated import Quarters
    from forkyard.tools.relaying import Relay
    from forkyard.tools.remote import RemoteServer
    from forkyard.tools.serving import Serving


class RolloutTools:
    """Made for every rollout, and nothing but an empty list where there are no tools.

    `toolbox` is for harnesses in this process; `listen` serves the same tools to programs in the sandbox.
    """

    def __init__(self, task: Task[Any, Any, Any], trace: Trace, lent: Sequence[AnyToolset] = ()) -> None:
        self.toolbox: Toolbox | None = None
        self._task = task
        self._trace = trace
        self._lent = lent
        self._toolsets: Sequence[AnyToolset] | None = None
        self._quarters: Quarters | None = None
        self._remotes: list[RemoteServer] = []
        self._relays: list[Relay] = []
        self._serving: Serving | None = None
        self._ended: asyncio.Future[None] | None = None

    async def mounts(self) -> tuple[Mount, ...]:
        """What the rollout's sandbox has to have of the host for them. Raises ConfigError."""
        return await tool_mounts(self._offered())

    def _offered(self) -> Sequence[AnyToolset]:
        if self._toolsets is None:
            own, shared = toolsets_of(self._task)
            self._toolsets = (*(own_of(each, self._trace.state) for each in own), *shared, *self._lent)
        return self._toolsets

    async def open(self, sandbox: Sandbox) -> None:
        """Make every toolset ready, start what runs in the sandbox, and reach what runs elsewhere.

        Raises ToolsetError, and ConfigError for a toolset that cannot be taken into a sandbox.
        """
        toolsets = self._offered()
        if not toolsets:
            return
        servers: list[Server] = [await self._server(toolset, sandbox) for toolset in toolsets]
        twice = Counter(Tool.of(spec).name for server in servers for spec in server.specs.values())
        if names := [name for name, number in twice.items() if number > 1]:
            raise ToolsetError(f"several servers of {self._task.name} have tools called {', '.join(names)}")
        self.toolbox = Toolbox(self._task, self._trace, servers)

    async def _server(self, toolset: AnyToolset, sandbox: Sandbox) -> Server:
        if toolset.colocated:
            from forkyard.tools.colocated import Quarters  # few toolsets are

            self._quarters = self._quarters or Quarters(sandbox)
            return await self._quarters.server(toolset, self._task.data, self._trace.state)
        if toolset.config.url is None:
            await set_up(toolset, self._task.data, self._trace.state)
            return ToolsetServer(toolset, self._trace.state)
        from forkyard.tools.remote import RemoteServer  # the client of MCP, for those who need it

        remote = RemoteServer(toolset)
        self._remotes.append(remote)
        await remote.open()
        return remote

    async def listen(self, sandbox: Sandbox) -> Mapping[str, ToolServer]:
        """Serve the tools on the loopback inside a sandbox: the servers that programs in there may use, by name.

        Whoever calls there is this rollout. Raises SandboxError.
        """
        servers: dict[str, ToolServer] = {}
        if self.toolbox is not None:
            from forkyard.tools.serving import Serving

            self._ended = asyncio.get_running_loop().create_future()
            self._serving = Serving(self.toolbox, self._trace, self._end)
            servers.update(await self._serving.listen(sandbox))
        for name, server in self._task.tool_servers.items():
            servers[name] = await self._relayed(name, server, sandbox) if server.secrets else server
        return servers

    async def _relayed(self, name: str, server: ToolServer, sandbox: Sandbox) -> ToolServer:
        from forkyard.tools.relaying import Relay  # few tasks have credentials

        relay = Relay(name, server)
        self._relays.append(relay)
        return await relay.listen(sandbox, len(self._relays))

    async def guarding(self, launch: Coroutine[Any, Any, None]) -> None:
        """Let a harness act. What a tool called from inside the sandbox ends the rollout with is raised here."""
        if self._ended is None:
            await launch
            return
        acting = asyncio.create_task(launch)
        try:
            await asyncio.wait((acting, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)
        if self._ended.done():
            self._ended.result()
        acting.result()

    def _end(self, error: ForkyardError) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()  # looked at, also when the harness was done already

    async def close(self) -> None:
        """The seal: calls under way are cancelled, and nothing is called or reached any more."""
        if self.toolbox is not None:
            self.toolbox.close()
        serving, self._serving = self._serving, None
        relays, self._relays = self._relays, []
        remotes, self._remotes = self._remotes, []
        quarters, self._quarters = self._quarters, None
        try:
            if serving is not None:
                await serving.close()
            await asyncio.gather(*(relay.close() for relay in relays), *(remote.close() for remote in remotes))
        finally:
            if quarters is not None:
                await quarters.close()
