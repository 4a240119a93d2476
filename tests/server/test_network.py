"""The network of a sandbox over HTTP: what is reached, headers nobody is told, changes at run time, drained pauses."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forkyard.sandbox.local import LocalProvider
from tests.server.sandboxing import Site, site
from tests.support.web import Web, certificate, served

SECRET = "sk-0123456789-of-nobody"
MASK = "[redacted]"


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """What a server that is called localhost speaks TLS with; this machine trusts it."""
    context, file = certificate(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    return context


@pytest_asyncio.fixture(loop_scope="module")
async def at(tmp_path: Path, local: LocalProvider) -> AsyncIterator[Site]:
    async with site(tmp_path / "home", local) as made:
        yield made
        for sandbox in reversed((await made.ask("GET", ""))["sandboxes"]):
            await made.do(sandbox, "stop", 200 if sandbox["status"] in ("stopped", "failed", "exited") else 202)
            await made.delete(sandbox)


def policy(port: int, value: str = f"Bearer {SECRET}", **more: Any) -> dict[str, Any]:
    rule = {"target": f"localhost:{port}", "transform": {"headers": {"Authorization": value}}}
    return {
        "egress": {"default": "deny", "allow": [rule, f"127.0.0.0/8:{port}"], "deny": [], "drain_on_pause": [], **more}
    }


async def curl(at: Site, sandbox: dict[str, Any], url: str) -> str:
    return await at.sh(sandbox, f"no_proxy= NO_PROXY= curl -sS {url} 2>&1 || true")


async def test_the_secret_of_a_header_is_used_and_told_to_nobody(
    at: Site, tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    web = Web()
    async with served(web, tls) as port:
        box = await at.create("secretive", network=policy(port))
        assert SECRET not in str(box) and SECRET not in str(await at.get(box))
        shown = await at.ask("GET", f"/{box['sandbox_id']}/network")
        assert shown["egress"]["allow"][0]["transform"]["headers"] == {"Authorization": MASK}
        assert await curl(at, box, f"https://localhost:{port}/ -H 'Authorization: mine'") == "hello "
        assert f"Authorization: Bearer {SECRET}\r\n".encode() in web.heard[0] and b"mine" not in web.heard[0]
        child = await at.ask("POST", f"/{box['sandbox_id']}/fork?wait=true", 202)
        assert await curl(at, child, f"https://localhost:{port}/") == "hello "
        assert "may not be reached" in await curl(at, child, "http://example.com/")
        await at.ask("POST", "", 400, {"base_image": "host", "network": policy(port, f"{SECRET}\nX: y")})
        for sandbox in (box, child):
            assert SECRET not in await at.sh(sandbox, "env; cat /proc/*/environ /proc/*/cmdline || true")
            assert await at.sh(sandbox, "grep -rlsF sk-0123456789 /etc /root /tmp /var /usr/local || true") == ""
    assert SECRET not in caplog.text


async def test_a_running_sandbox_gets_another_network(at: Site, tls: ssl.SSLContext) -> None:
    web = Web()
    async with served(web, tls) as port:
        box = await at.create("changing")
        assert await at.ask("GET", f"/{box['sandbox_id']}/network") == {
            "egress": {"default": "deny", "allow": [], "deny": [], "drain_on_pause": []}
        }
        assert "HTTP" not in await curl(at, box, f"https://localhost:{port}/")
        shown = await at.ask("PUT", f"/{box['sandbox_id']}/network", 200, policy(port))
        assert SECRET not in str(shown)
        assert await curl(at, box, f"https://localhost:{port}/") == "hello "
        shown["egress"]["allow"].append("example.com")  # as a client that read, changed and wrote it
        assert await at.ask("PUT", f"/{box['sandbox_id']}/network", 200, shown) == shown
        assert await curl(at, box, f"https://localhost:{port}/") == "hello "
        assert SECRET.encode() in web.heard[1]
        refused = await at.ask("PUT", f"/{box['sandbox_id']}/network", 400, policy(port + 1, MASK))
        assert "had no value that could stay" in refused["error"]
        shown["egress"]["deny"] = ["localhost"]
        await at.ask("PUT", f"/{box['sandbox_id']}/network", 200, shown)
        assert "response 403" in await curl(at, box, f"https://localhost:{port}/")
        await at.ask("PUT", f"/{box['sandbox_id']}/network", 200, {})
        assert "proxy" not in (await at.sh(box, "env")).lower()
        await at.do(box, "stop", 202)
        assert (await at.ask("PUT", f"/{box['sandbox_id']}/network", 409, policy(port)))["code"] == "invalid_state"


async def test_it_is_the_same_after_a_stop_and_in_the_next_server(tmp_path: Path, tls: ssl.SSLContext) -> None:
    web = Web()
    async with served(web, tls) as port:
        async with site(tmp_path / "home") as before:
            box = await before.create("lasting", network=policy(port))
            await before.do(box, "stop", 202)
            await before.do(box, "start?wait=true", 202)
            assert await curl(before, box, f"https://localhost:{port}/") == "hello "
        async with site(tmp_path / "home") as after:
            child = await after.ask("POST", f"/{box['sandbox_id']}/fork?wait=true", 202)
            await after.do(box, "start?wait=true", 202)
            for each in (box, child):
                assert await curl(after, each, f"https://localhost:{port}/") == "hello "
            for each in (child, box):
                await after.do(each, "stop", 202)
                await after.delete(each)
    assert [SECRET.encode() in head for head in web.heard] == [True] * 3


async def test_a_pause_waits_for_connections_that_are_named_and_a_stop_does_not(at: Site) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        await end.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone")
        await writer.drain()

    async with served(slow) as port:
        rules = {"default": "deny", "allow": [f"127.0.0.0/8:{port}"], "drain_on_pause": ["127.0.0.0/8"]}
        box = await at.create("draining", network={"egress": rules})
        loading = asyncio.create_task(curl(at, box, f"http://127.0.0.1:{port}/"))
        await begun.wait()
        pausing = asyncio.create_task(at.do(box, "pause", 202))
        while (await at.get(box))["status"] != "pausing":
            await asyncio.sleep(0)
        end.set()
        assert (await pausing)["status"] == "pausing"
        assert await at.get(box) | {"status": "paused"} == await at.get(box)
        await at.do(box, "resume?wait=true", 202)
        assert await loading == "done"

        end.clear()
        begun.clear()
        loading = asyncio.create_task(curl(at, box, f"http://127.0.0.1:{port}/"))
        await begun.wait()
        pausing = asyncio.create_task(at.do(box, "pause", 202))
        while (await at.get(box))["status"] != "pausing":
            await asyncio.sleep(0)
        assert (await asyncio.wait_for(at.do(box, "stop", 202), 100))["status"] == "stopped"
        await pausing
        await asyncio.gather(loading, return_exceptions=True)


@pytest.mark.parametrize(
    ("egress", "told"),
    [
        ({}, "default"),
        ({"default": "maybe"}, "default"),
        ({"default": "deny", "allow": ["http://example.com"]}, "no host a network can name"),
        ({"default": "deny", "allow": [{"target": "a.example"}, {}]}, "target"),
        ({"default": "allow", "deny": ["10.0.0.1/8"]}, "no host a network can name"),
        ({"default": "allow", "drain_on_pause": [""]}, "drain_on_pause"),
        (
            {"default": "deny", "allow": [{"target": "a.example", "forward_url": "file:///etc"}]},
            "no address to forward",
        ),
        ({"default": "deny", "allow": [{"target": "a.example", "transform": {"headers": {"Host": SECRET}}}]}, "'Host'"),
        ({"default": "deny", "allow": [{"target": "a.example", "transform": {"headers": {"K": 5}}}]}, "headers"),
    ],
)
async def test_what_is_no_network_is_refused(at: Site, egress: dict[str, Any], told: str) -> None:
    refused = await at.ask("POST", "", 400, {"base_image": "host", "network": {"egress": egress}})
    assert told in refused["error"] and SECRET not in refused["error"]
    assert (await at.ask("GET", ""))["sandboxes"] == []


async def test_a_default_of_allow_reaches_public_addresses_alone(at: Site, tls: ssl.SSLContext) -> None:
    async with served(Web()) as port:
        box = await at.create("open", network={"egress": {"default": "allow", "deny": ["example.com"]}})
        said = await curl(at, box, f"http://127.0.0.1:{port}/")
        assert "is not a public one" in said
        assert "block list names it" in await curl(at, box, "http://example.com/")
