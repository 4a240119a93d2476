"""`forkyard gateway`: routes by token, one line for each call."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.gateway.parts import TALK
from tests.gateway.upstream import KEY, Provider, chat_body, chat_chunks, events, providing, whole


@dataclass
class Alone:
    process: asyncio.subprocess.Process
    client: httpx2.AsyncClient
    token: str
    base_url: str

    async def chat(self, token: str | None = None, **more: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {token or self.token}"}
        return await self.client.post(
            "/v1/chat/completions", json={"model": "m", "messages": TALK, **more}, headers=headers
        )

    async def open(self, token: str | None = None, **wanted: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {token or self.token}"}
        return await self.client.post("/rollouts", json=wanted, headers=headers)

    async def end(self) -> str:
        self.process.send_signal(signal.SIGINT)
        _, said = await self.process.communicate()
        assert self.process.returncode == 0, said
        return said.decode()


@asynccontextmanager
async def alone(provider: Provider, *options: str) -> AsyncIterator[Alone]:
    env = os.environ | {"OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": KEY}
    command = [sys.executable, "-m", "forkyard.cli", "gateway", "--port", "0", *options]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    try:
        lines = [(await process.stdout.readline()).decode().split() for _ in range(2)]
        assert [line[:-1] for line in lines] == [["base", "URL"], ["token"]], await process.communicate()
        async with httpx2.AsyncClient(base_url=lines[0][-1], trust_env=False, timeout=30) as client:
            yield Alone(process, client, lines[1][-1], lines[0][-1])
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_calls_are_lines_and_rollouts_have_tokens(tmp_path: Path) -> None:
    record = tmp_path / "calls.jsonl"
    plays = (whole(chat_body()), events(*chat_chunks({"content": "a"})))
    async with providing(*plays) as provider, alone(provider, "--record", str(record)) as at:
        assert (await at.chat()).status_code == 200
        opened = (await at.open(model="other", calls=1)).json()
        assert (await at.chat(opened["token"], stream=True)).status_code == 200
        refused = await at.chat(opened["token"])
        assert refused.status_code == 400 and "rollout stopped: budget" in refused.text
        ended = await at.client.delete(f"/rollouts/{opened['id']}", headers={"x-api-key": at.token})
        assert ended.json() == {"id": opened["id"], "calls": 1, "tokens": 110, "usd": 0.0}
        assert (await at.chat(opened["token"])).status_code == 401
        assert "2 calls" in await at.end()
    assert [seen.json["model"] for seen in provider.seen] == ["m", "other"]
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["reply"]["content"] for line in lines] == ["hi", "a"]
    assert [line["usage"]["input"] for line in lines] == [100, 100]
    assert lines[1]["rollout"] == opened["id"] != lines[0]["rollout"]
    assert lines[0]["messages"] == TALK
    assert KEY not in record.read_text()


NOTHING = ("/", "/v1/nothing", "/v1/chat/completions")


async def test_only_the_gateways_own_token_opens_rollouts(tmp_path: Path) -> None:
    async with providing(whole(chat_body())) as provider, alone(provider) as at:
        opened = (await at.open()).json()
        statuses = [
            (await at.chat("wrong")).status_code,
            (await at.client.post("/v1/messages", json={})).status_code,
            (await at.open(opened["token"])).status_code,
            (await at.open("wrong")).status_code,
            (await at.open(sum=3)).status_code,
            (await at.open(usd=1.0, model="nameless")).status_code,
            (await at.client.delete(f"/rollouts/{opened['id']}")).status_code,
            (await at.client.delete("/rollouts/x", headers={"x-api-key": at.token})).status_code,
        ]
        statuses += [(await at.client.get(path, headers={"x-api-key": at.token})).status_code for path in NOTHING]
    assert statuses == [401, 401, 401, 401, 400, 400, 401, 404, 404, 404, 404]
    assert provider.seen == []


async def test_what_cannot_work_is_said_before_it_serves(tmp_path: Path) -> None:
    async def said(*options: str, **env: str) -> str:
        command = [sys.executable, "-m", "forkyard.cli", "gateway", "--port", "0", *options]
        clean = {name: value for name, value in os.environ.items() if "OPENAI" not in name and "ANTHROPIC" not in name}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, env=clean | env, stdout=pipe, stderr=pipe)
        _, errors = await process.communicate()
        assert process.returncode == 1
        return errors.decode()

    table = tmp_path / "up.toml"
    table.write_text('[[upstream]]\nmodel = "x-*"\nbase_url = "http://127.0.0.1:9/v1"\napi_key_env = "NO_SUCH_KEY"\n')
    bare, keyless, unknown = await asyncio.gather(
        said(),
        said("--upstreams", str(table)),
        said("--upstreams", str(table), "-m", "y", NO_SUCH_KEY="k" * 9),
    )
    assert "OPENAI_BASE_URL" in bare and "NO_SUCH_KEY is not set" in keyless
    assert "no upstream is known for model 'y'" in unknown
