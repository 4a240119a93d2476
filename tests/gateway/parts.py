"""A gateway over a scripted provider, served on a port of this machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from forkyard.gateway import NO_BUDGET, Bounds, Budget, Gateway, Route
from forkyard.gateway.gateway import PATIENT
from forkyard.gateway.listening import serve
from forkyard.gateway.serving import App
from forkyard.trace import ModelCall, Trace
from tests.gateway.upstream import Play, Provider, gateway_to, providing

TALK = [{"role": "user", "content": "hello"}]


@dataclass
class Stage:
    provider: Provider
    gateway: Gateway
    route: Route
    trace: Trace
    url: str
    client: httpx2.AsyncClient
    ended: asyncio.Semaphore

    @property
    def call(self) -> ModelCall:
        (call,) = self.trace.calls
        return call

    async def chat(self, **body: Any) -> httpx2.Response:
        return await self.client.post("/v1/chat/completions", json={"model": "m", "messages": TALK, **body})


@asynccontextmanager
async def served(route: Route) -> AsyncIterator[str]:
    sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener = await serve(App(lambda _: route), sock)
    try:
        yield f"http://127.0.0.1:{listener.port}"
    finally:
        listener.close()


@asynccontextmanager
async def stage(
    *plays: Play,
    model: str | None = "m",
    run: Budget = NO_BUDGET,
    bounds: Bounds = PATIENT,
    upstream: dict[str, Any] | None = None,
    answer: Any = None,
    **terms: Any,
) -> AsyncIterator[Stage]:
    async with providing(*plays, answer=answer) as provider, gateway_to(provider, run, bounds, **upstream or {}) as gw:
        trace = Trace()
        ended = asyncio.Semaphore(0)
        route = gw.open(trace, model, on_call=lambda *call: ended.release(), **terms)
        async with (
            served(route) as url,
            httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
        ):
            yield Stage(provider, gw, route, trace, url, client, ended)
            await route.close()
