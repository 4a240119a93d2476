"""A server in this process, asked as clients ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from forkyard.sandbox import Provider
from forkyard.sandbox.local import LocalProvider
from forkyard.server.main import application
from forkyard.server.sandboxes import Life, Sandboxes
from forkyard.server.serving import Server, opened

HOST = {"base_image": "host"}


@dataclass(frozen=True, slots=True)
class Site:
    """A server, and a client that has a key."""

    server: Server
    http: httpx2.AsyncClient

    def life(self, sandbox: dict[str, Any]) -> Life:
        return self.server.the(Sandboxes).get(sandbox["sandbox_id"])

    async def ask(self, method: str, path: str, status: int = 200, body: Any = None, **headers: str) -> Any:
        """The data of an answer that has that status, or the text and code of a refusal."""
        response = await self.http.request(method, f"/api/sandboxes{path}", json=body, headers=headers)
        assert response.status_code == status, (method, path, response.status_code, response.text)
        if not response.content:
            return None
        whole = response.json()
        assert whole["success"] is (status < 400)
        return whole["data"] if status < 400 else whole

    async def create(self, name: str | None = None, **more: Any) -> dict[str, Any]:
        """A running sandbox of the image `host`."""
        made = await self.ask("POST", "?wait=true", 202, {**HOST, **({"name": name} if name else {}), **more})
        assert made["status"] == "running", made
        return dict(made)

    async def do(self, sandbox: dict[str, Any], action: str, status: int = 200, body: Any = None) -> Any:
        """One action; `action` may have a query."""
        return await self.ask("POST", f"/{sandbox['sandbox_id']}/{action}", status, body)

    async def get(self, sandbox: dict[str, Any]) -> dict[str, Any]:
        return dict(await self.ask("GET", f"/{sandbox['sandbox_id']}"))

    async def delete(self, sandbox: dict[str, Any], status: int = 204, query: str = "") -> Any:
        return await self.ask("DELETE", f"/{sandbox['sandbox_id']}{query}", status)

    async def sh(self, sandbox: dict[str, Any], script: str) -> str:
        """The output of a script in a running sandbox."""
        result = await self.life(sandbox).sandbox.run(script, timeout=100)
        assert result.ok, result
        return result.stdout


@asynccontextmanager
async def site(home: Path, provider: Provider | None = None) -> AsyncIterator[Site]:
    """A server over a home; it borrows `provider`, or has one of its own."""
    if provider is None:
        async with LocalProvider(home) as own, site(home, own) as made:
            yield made
            return
    async with opened(home, provider) as server:
        existing = server.keys.get("tests")
        if existing is not None:
            server.keys.revoke(existing.id)
        _, key = server.keys.create("tests")
        transport = httpx2.ASGITransport(application(server))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:1", headers={"authorization": key}, timeout=30
        ) as http:
            yield Site(server, http)
