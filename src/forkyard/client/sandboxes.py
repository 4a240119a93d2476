"""A sandbox as a program has it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from forkyard.client.files import Files
from forkyard.client.mounts import Mount, as_sent
from forkyard.client.processes import SandboxProcess, attached, started
from forkyard.client.talk import Talk, understood
from forkyard.client.values import ExecResult, Port, PortToken, SandboxFacts, SandboxStartError
from forkyard.client.verbs import verb
from forkyard.sandbox import Terminal

_LOOK_AGAIN = 0.25
_ON_THE_WAY = ("pending", "pausing", "stopping", "deleting")


class Sandbox:
    """One sandbox. Each method blocks, and has `.aio` to be awaited; `facts` are as of the latest answer."""

    def __init__(self, talk: Talk, facts: SandboxFacts) -> None:
        self._talk = talk
        self.facts = facts
        self.files = Files(talk, facts.sandbox_id)

    @property
    def id(self) -> str:
        """Its id."""
        return self.facts.sandbox_id

    @property
    def name(self) -> str:
        """Its name."""
        return self.facts.name

    @property
    def status(self) -> str:
        """As the server last said: running, paused, stopped, ..."""
        return self.facts.status

    def __repr__(self) -> str:
        return f"<sandbox {self.name} {self.status}>"

    @verb
    async def refresh(self) -> Sandbox:
        """Ask what has become of it."""
        return self._hear(await self._ask("GET"))

    @verb
    async def exec(
        self,
        command: str,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_seconds: float | None = None,
    ) -> ExecResult:
        """Run a command, a text for `sh -c`, to its end; its input is at its end."""
        process = await started(self._talk, self.id, command, env, cwd, timeout_seconds)
        try:
            await process.close_stdin.aio()
            return await process.wait.aio()
        finally:
            await process.disconnect.aio()

    @verb
    async def run(
        self,
        command: str,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_seconds: float | None = None,
        terminal: Terminal | Mapping[str, int] | None = None,
    ) -> SandboxProcess:
        """Start a command, and return once it has started; in a terminal of that size, if one is given."""
        return await started(self._talk, self.id, command, env, cwd, timeout_seconds, terminal)

    @verb
    async def attach(self, process_id: str, *, offset: int = 0) -> SandboxProcess:
        """Look on at a process that was started before, from an offset of its output on."""
        return await attached(self._talk, self.id, process_id, offset)

    @verb
    async def start(self, *, mounts: Sequence[Mount | Mapping[str, Any]] | None = None, wait: bool = True) -> Sandbox:
        """Bring it up on its disk; `mounts` take the place of those it had. SandboxStartError."""
        body = None if mounts is None else {"mounts": await as_sent(self._talk, mounts)}
        self._hear(await self._ask("POST", "start", body, wait=wait))
        return await self.up() if wait else self

    @verb
    async def stop(self) -> Sandbox:
        """End its processes and seal its disk."""
        return await self._settled(await self._ask("POST", "stop"))

    @verb
    async def pause(self) -> Sandbox:
        """Bring its processes to a halt."""
        return await self._settled(await self._ask("POST", "pause"))

    @verb
    async def resume(self, *, wait: bool = True) -> Sandbox:
        """Let its processes go on."""
        self._hear(await self._ask("POST", "resume", wait=wait))
        return await self.up() if wait else self

    @verb
    async def fork(
        self,
        name: str | None = None,
        *,
        storage_mib: int | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        wait: bool = True,
    ) -> Sandbox:
        """A running copy of it, whatever its state, which may write as much to its disk unless that is said."""
        headers = {"idempotency-key": idempotency_key} if idempotency_key else None
        asked = {"name": name, "storage_mib": storage_mib, "labels": None if labels is None else dict(labels)}
        made = sandbox_from(self._talk, await self._ask("POST", "fork", asked, wait=wait, headers=headers))
        return await made.up() if wait else made

    @verb
    async def delete(self, *, cascade: bool = False) -> None:
        """Forget it and its disk: it is stopped, and has no forks. With `cascade` those go as well, running or not."""
        await self._talk.ask("DELETE", self._path(), query={"cascade": "true"} if cascade else None)

    @verb
    async def set_timeout(self, timeout: int | None = None, *, idle_ttl_seconds: int | None = None) -> Sandbox:
        """Change in how many seconds its lifetime ends, or after how many idle ones."""
        asked = {"timeout": timeout, "idle_ttl_seconds": idle_ttl_seconds}
        return self._hear(await self._ask("POST", "timeout", asked))

    @verb
    async def get_network(self) -> Any:
        """What it may reach, as the server has it."""
        return await self._ask("GET", "network")

    @verb
    async def update_network(self, network: Mapping[str, Any]) -> Any:
        """Have it reach something else from now on."""
        return await self._ask("PUT", "network", dict(network))

    @verb
    async def expose_port(self, port: int) -> Port:
        """Have a port of it reached through the server."""
        return understood(Port, await self._ask("PUT", f"ports/{port:d}"))

    @verb
    async def list_ports(self) -> list[Port]:
        """The ports that are exposed."""
        found = await self._ask("GET", "ports")
        rows = found.get("ports", ()) if isinstance(found, dict) else found
        return [understood(Port, each) for each in rows]

    @verb
    async def unexpose_port(self, port: int) -> None:
        """Have a port reached no more."""
        await self._ask("DELETE", f"ports/{port:d}")

    @verb
    async def create_port_token(self, port: int, *, ttl: str | None = None) -> PortToken:
        """What lets in to one port; for a while, as "90s", "1h", if that is said."""
        return understood(PortToken, await self._ask("POST", "port-tokens", {"port": port, "ttl": ttl}))

    @verb
    async def delete_port_token(self, token_id: str) -> None:
        """Let nobody in by a token any more."""
        await self._ask("DELETE", f"port-tokens/{quote(token_id, safe='')}")

    async def up(self) -> Sandbox:
        """It, once it runs; awaited. SandboxStartError when it does not come up."""
        while self.status == "pending":
            await asyncio.sleep(_LOOK_AGAIN)
            self._hear(await self._ask("GET"))
        if self.status != "running":
            why = f": {self.facts.exit_reason}" if self.facts.exit_reason else ""
            raise SandboxStartError(f"sandbox {self.name} is {self.status}{why}")
        return self

    async def _settled(self, data: Any) -> Sandbox:
        self._hear(data)
        while self.status in _ON_THE_WAY:
            await asyncio.sleep(_LOOK_AGAIN)
            self._hear(await self._ask("GET"))
        return self

    def _hear(self, data: Any) -> Sandbox:
        self.facts = understood(SandboxFacts, data)
        return self

    async def _ask(
        self,
        method: Literal["GET", "POST", "PUT", "DELETE"],
        what: str = "",
        body: Any = None,
        *,
        wait: bool | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        query = None if wait is None else {"wait": "true" if wait else "false"}
        return await self._talk.ask(method, self._path(what), body, query=query, headers=headers)

    def _path(self, what: str = "") -> str:
        return f"/api/sandboxes/{quote(self.id, safe='')}" + (f"/{what}" if what else "")


def sandbox_from(talk: Talk, data: Any) -> Sandbox:
    """The sandbox that a server tells of."""
    return Sandbox(talk, understood(SandboxFacts, data))
