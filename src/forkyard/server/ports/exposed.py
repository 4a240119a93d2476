"""The ports that are exposed, as part of a sandbox's record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forkyard.sandbox import Feature
from forkyard.server.envelope import not_here
from forkyard.server.ports.names import hostname
from forkyard.server.ports.tokens import PortTokens
from forkyard.server.sandboxes import Attendant, CreateSandbox, Life, Record

if TYPE_CHECKING:
    from forkyard.server.serving import Server


class Exposed(Attendant):
    """Sees to the ports of sandboxes."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def refuse_without_ports(self) -> None:
        """Raise ApiError 501 where no port inside a sandbox can be reached."""
        if Feature.CONNECT not in self._server.provider.features:
            raise not_here(f"ports of sandboxes with the provider {self._server.provider.name}")

    async def accept(self, asked: CreateSandbox, name: str) -> Mapping[str, Any]:
        """The ports that were asked for."""
        if not asked.ports:
            return {}
        self.refuse_without_ports()
        return {"ports": list(dict.fromkeys(asked.ports))}

    async def gone(self, life: Life) -> None:
        """Its tokens open nothing."""
        self._server.the(PortTokens).forget(life.id)

    def shown(self, record: Record) -> Mapping[str, Any]:
        """Where its ports are reached."""
        return {"endpoints": self.endpoints(record)}

    def endpoints(self, record: Record) -> list[dict[str, Any]]:
        """Its ports with their host names."""
        return [{"port": port, "hostname": self.hostname(record, port)} for port in record.ports]

    def hostname(self, record: Record, port: int) -> str:
        """Where a port of it is reached."""
        return hostname(port, record.sandbox_id, self._server.zone)
