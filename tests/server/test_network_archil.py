"""The vendor's own Python client on ports, their tokens, and networks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from forkyard.server.address import Address
from tests.support.web import Web, served

archil = pytest.importorskip("archil", reason="the package archil is not installed (PyPI: archil)")
SECRET = "sk-0123456789-of-nobody"


@pytest_asyncio.fixture(loop_scope="module")
async def client(address: Address, key: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    async with archil.Archil(api_key=key, region="local", base_url=address.origin, s3_base_url=address.origin) as made:
        yield made
        for sandbox in await made.sandboxes.list.aio():
            await sandbox.stop.aio()
            await sandbox.delete.aio()


async def visited(address: Address, hostname: str, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=address.origin, headers={"Host": hostname, **headers}, timeout=30) as guest:
        return await guest.get("/")


async def test_ports_and_their_tokens(client: Any, address: Address) -> None:
    box = await client.sandboxes.create.aio(name="served", base_image="host", ports=[8000])
    assert [(each.port, each.hostname) for each in box.endpoints] == [
        (each.port, each.hostname) for each in await box.list_ports.aio()
    ]
    server = await box.run.aio("mkdir /www; echo hello > /www/index.html; python3 -u -m http.server 9000 -d /www")
    hostname = await box.expose_port.aio(9000)
    while (answer := await visited(address, hostname)).status_code == 502:
        await asyncio.sleep(0)
    assert answer.text == "hello\n"
    await box.unexpose_port.aio(9000)
    assert (await visited(address, hostname)).status_code == 404
    token = await box.create_port_token.aio(9000, ttl="30m")
    assert token.hostname == hostname and token.expires_at > token.created_at
    assert (await visited(address, hostname, **{"X-Archil-Token": token.token})).text == "hello\n"
    assert [each.id for each in await box.list_port_tokens.aio()] == [token.id]
    assert (await box.get_port_token.aio(token.id)).port == 9000
    await box.delete_port_token.aio(token)
    assert (await visited(address, hostname, **{"X-Archil-Token": token.token})).status_code == 401
    await server.kill.aio()


async def test_networks(client: Any) -> None:
    web = Web()
    async with served(web) as port:
        rule = archil.SandboxEgressRule(
            f"127.0.0.1:{port}", archil.SandboxEgressTransform({"Authorization": f"Bearer {SECRET}"})
        )
        policy = archil.SandboxEgressPolicy("deny", allow=[rule], deny=["example.com"], drain_on_pause=["127.0.0.1"])
        box = await client.sandboxes.create.aio(base_image="host", network=archil.SandboxNetwork(policy))
        ask = f"no_proxy= NO_PROXY= curl -sS http://127.0.0.1:{port}/"
        assert (await box.exec.aio(ask)).stdout == "hello "
        assert f"Bearer {SECRET}".encode() in web.heard[0]
        network = await box.get_network.aio()
        assert network.egress.allow[0].transform.headers == {"Authorization": "[redacted]"}
        assert (network.egress.deny, network.egress.drain_on_pause) == (["example.com"], ["127.0.0.1"])
        assert await box.update_network.aio(network) == network
        assert (await box.exec.aio(ask)).stdout == "hello " and SECRET.encode() in web.heard[1]
        await box.update_network.aio(archil.SandboxNetwork(archil.SandboxEgressPolicy("deny")))
        assert (await box.exec.aio(ask)).exit_code == 7
        assert len(web.heard) == 2
