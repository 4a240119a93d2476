"""Servers of tools that want a credential of the host: it never enters the sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import forkyard as vf
from forkyard.errors import ConfigError
from forkyard.sandbox import Sandbox
from forkyard.sandbox.local import LocalProvider
from forkyard.task import ToolServer, load_task
from tests.env.parts import play, seat
from tests.tools.parts import Inside, ask

SECRET = "a-token-nobody-else-knows"


@dataclass
class Outside:
    """A server of this machine that keeps what it is sent; `says` is what it answers."""

    says: bytes = b'{"jsonrpc": "2.0", "id": 1, "result": {"tools": []}}'
    kind: str = "application/json"
    url: str = ""
    heard: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    streaming: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            pairs = [line.partition(":") for line in head[1:] if line]
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.heard.append((method, path, headers, body))
            if method == "GET":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
                writer.write(b"event: endpoint\ndata: /messages?session=7\n\n")
                self.streaming.set()
                await reader.read()
                self.gone.set()
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\nx-echo: %b\r\n" % SECRET.encode())
                about = f"content-type: {self.kind}\r\ncontent-length: {len(self.says)}\r\n\r\n"
                writer.write(about.encode() + self.says)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def outside(**fields: Any) -> AsyncIterator[Outside]:
    server = Outside(**fields)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()


def asking(*servers: ToolServer) -> vf.Task:
    class Asking(vf.Task):
        @property
        def tool_servers(self) -> Mapping[str, ToolServer]:
            return {f"s{number}": server for number, server in enumerate(servers)}

    return Asking(vf.TaskData(name="a", prompt="?"))


def secret(url: str, transport: Any = "streamable-http") -> ToolServer:
    return ToolServer(url, transport, {"X-Team": "red"}, secrets={"Authorization": f"Bearer {SECRET}"})


async def one(provider: LocalProvider, task: vf.Task, act: Any) -> vf.Trace:
    (trace,) = (await play(vf.SingleAgentEnv(), task, {"agent": seat(provider, Inside(act))})).traces
    return trace


async def test_a_program_without_network_asks_a_server_outside_and_never_sees_the_credential(
    local: LocalProvider,
) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        given.update(tools)
        told.append(await ask(box, tools["s0"].url, "tools/list"))
        told.append(await ask(box, tools["s0"].url.replace("/mcp", "/admin"), "tools/list"))
        headers = await box.run(f"curl -s -i -X POST -H 'Authorization: mine' -d x {tools['s0'].url}")
        told.append({"raw": headers.stdout})
        told.append(await ask(box, tools["s1"].url, "tools/list"))

    given: dict[str, ToolServer] = {}
    told: list[dict[str, Any]] = []
    async with outside() as server, outside() as other:
        trace = await one(local, asking(secret(f"{server.url}/mcp?v=1"), secret(f"{other.url}/mcp")), act)
    assert trace.errors == [], trace.errors
    assert told[0] == {"jsonrpc": "2.0", "id": 1, "result": {"tools": []}} == told[3]
    assert told[1]["status"] == 404
    assert [(method, path) for method, path, _, _ in server.heard] == [("POST", "/mcp?v=1")] * len(server.heard)
    for _, _, headers, _ in server.heard:
        assert (headers["authorization"], headers["x-team"]) == (f"Bearer {SECRET}", "red")
        assert headers["host"] == server.url.removeprefix("http://")
    assert SECRET not in repr(given) + json.dumps(told) + json.dumps(trace.to_record())
    assert given["s0"].url.startswith("http://127.0.0.1:") and given["s0"].headers == {}


async def test_a_reply_that_holds_the_credential_is_cut_off(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        said = await box.run(["curl", "-s", "-d", "x", tools["s0"].url])
        told.append((said.exit_code != 0, said.stdout))

    told: list[tuple[bool, str]] = []
    async with outside(says=f'{{"you sent": "{SECRET}"}}'.encode()) as server:
        await one(local, asking(secret(f"{server.url}/mcp")), act)
    assert told == [(True, "")]


async def test_by_sse_it_is_asked_where_it_says_and_let_go_when_the_agent_is_done(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        url = tools["s0"].url
        await box.run(f"curl -s -N {url} >/tmp/events 2>&1 & echo")
        await server.streaming.wait()
        await box.run("until grep -q messages /tmp/events; do sleep 0.02; done", timeout=20)
        posted = url.replace("/sse", "/messages?session=7")
        told.append(await ask(box, posted, "tools/list"))
        told.append(await ask(box, url.replace("/sse", "/other"), "tools/list"))

    told: list[dict[str, Any]] = []
    async with outside() as server:
        await one(local, asking(secret(f"{server.url}/sse", "sse")), act)
        await asyncio.wait_for(server.gone.wait(), 100)
    assert "result" in told[0] and told[1]["status"] == 404
    assert [(method, path) for method, path, _, _ in server.heard] == [("GET", "/sse"), ("POST", "/messages?session=7")]
    assert all(headers["authorization"] == f"Bearer {SECRET}" for _, _, headers, _ in server.heard)


async def test_a_server_that_cannot_be_asked_is_told(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        told.append(await ask(box, tools["s0"].url, "tools/list"))

    told: list[dict[str, Any]] = []
    await one(local, asking(secret("http://127.0.0.1:1/mcp")), act)
    assert told[0]["status"] == 502 and "the tool server s0 cannot be asked" in told[0]["body"]


TOML = """
[environment]
docker_image = "debian"

[[environment.mcp_servers]]
name = "wiki"
transport = "http"
url = "{url}"
headers = {{ Authorization = "Bearer ${{WIKI_TOKEN}}", X-Plain = "yes" }}
"""


def written(tmp_path: Path, url: str) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test.sh").write_text("true")
    (tmp_path / "instruction.md").write_text("?")
    (tmp_path / "task.toml").write_text(TOML.format(url=url))
    return tmp_path


def test_a_task_directory_names_the_hosts_variable_in_a_header(tmp_path: Path) -> None:
    task = load_task(written(tmp_path, "https://wiki.example.org/mcp"), {"WIKI_TOKEN": SECRET})
    assert task.unplayable == ()
    server = task.tool_servers["wiki"]
    assert (server.headers, server.secrets) == ({"X-Plain": "yes"}, {"Authorization": f"Bearer {SECRET}"})
    assert task.secrets.hide(f"it is {SECRET}") == "it is [redacted]" and SECRET not in repr(server)


def test_a_variable_that_the_host_lacks_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the header Authorization of wiki needs the host's variable WIKI_TOKEN"):
        load_task(written(tmp_path, "https://wiki.example.org/mcp"), {})


@pytest.mark.parametrize(
    "url", ["http://wiki:8000/mcp", "http://127.0.0.1:8000/", "http://[::1]/", "http://a.localhost/"]
)
def test_a_credential_for_a_server_inside_is_refused(tmp_path: Path, url: str) -> None:
    (told,) = load_task(written(tmp_path, url), {"WIKI_TOKEN": SECRET}).unplayable
    assert "environment.mcp_servers asks for credentials of the host for a tool server inside" in told
