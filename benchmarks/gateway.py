"""What the gateway adds to a call of a model, beside calls straight to the same provider.

    python -m benchmarks.gateway [--calls 400] [--streams 256]

The provider is a process of its own that answers at once, so everything measured is the way there and back. The client
is one process, the gateway another, as a harness inside a sandbox has it; `in process` is a harness of this process.
Calls straight and calls through the gateway take turns, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import httpx2

from forkyard.gateway import Budget, Gateway, Price, Prices, Upstream, Upstreams
from forkyard.gateway.listening import serve
from forkyard.gateway.serving import App
from forkyard.model import Place
from forkyard.trace import Trace

TALK = [{"role": "system", "content": "You are helpful. " * 50}, {"role": "user", "content": "hello " * 200}]
BODY = {"model": "m", "messages": TALK, "max_tokens": 100}
USAGE = {"prompt_tokens": 400, "completion_tokens": 30, "total_tokens": 430}
REPLY = json.dumps(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi " * 30}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
).encode()
CHUNKS = 50


def _chunk(**fields: Any) -> bytes:
    data = json.dumps({"id": "c", "object": "chat.completion.chunk", "model": "m"} | fields)
    framed = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(framed), framed)


def _words(pause: float) -> list[tuple[float, bytes]]:
    told = [(pause, _chunk(choices=[{"index": 0, "delta": {"content": "word "}}])) for _ in range(CHUNKS)]
    told.append((0.0, _chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])))
    told.append((0.0, _chunk(choices=[], usage=USAGE)))
    return [*told, (0.0, b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")]


async def _provide(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            body = await reader.readexactly(size)
            if b'"stream":true' in body:
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for pause, piece in _words(0.05):
                    await asyncio.sleep(pause)
                    writer.write(piece)
            else:
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(REPLY)
                )
                writer.write(REPLY)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _provider_process(ready: Connection) -> None:
    async def main() -> None:
        server = await asyncio.start_server(_provide, "127.0.0.1", 0, backlog=1024)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def _gateway_to(port: int) -> Gateway:
    upstreams = Upstreams((Upstream(Place(f"http://127.0.0.1:{port}/v1"), "a-key-of-some-length"),))
    return Gateway(upstreams, Prices((Price(model="m", input=1, output=2),)), Budget(usd=1e9))


def _gateway_process(ready: Connection, port: int) -> None:
    async def main() -> None:
        route = _gateway_to(port).open(Trace(), "m")
        sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
        listener = await serve(App(lambda _: route), sock)
        ready.send(listener.port)
        while True:
            await asyncio.sleep(1)
            route.terms.trace.calls.clear()

    asyncio.run(main())


def _started(target: Callable[..., None], *arguments: Any) -> tuple[multiprocessing.Process, int]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    return process, ours.recv()


async def _latency(calls: int, straight: int, through: int) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
        gateway = _gateway_to(straight)
        model = gateway.open(Trace(), "m").model()

        async def post(port: int) -> None:
            (await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=BODY)).json()

        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "straight": lambda: post(straight),
            "through the gateway": lambda: post(through),
            "in process": lambda: model.complete(TALK),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(calls):
            for name, way in ways.items():
                begun = time.perf_counter()
                await way()
                times[name].append((time.perf_counter() - begun) * 1000)
        await model.close()
        await gateway.close()
    base = statistics.median(times["straight"])
    print(f"{'one call, ms':<24}{'median':>8}{'p90':>8}{'added':>8}")
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:<24}{median:>8.2f}{statistics.quantiles(taken, n=10)[-1]:>8.2f}{median - base:>8.2f}")


async def _stream(client: httpx2.AsyncClient, port: int) -> tuple[float, float]:
    begun = time.perf_counter()
    first = 0.0
    size = 0
    async with client.stream(
        "POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=BODY | {"stream": True}
    ) as reply:
        async for piece in reply.aiter_raw():
            first = first or time.perf_counter() - begun
            size += len(piece)
    assert size > CHUNKS * 50, size
    return first * 1000, time.perf_counter() - begun


async def _streams(streams: int, straight: int, through: int) -> None:
    print(f"{f'{streams} streams of {CHUNKS} chunks, 20 a second each':<52}{'first byte ms':>15}{'last ends s':>13}")
    limits = httpx2.Limits(max_connections=streams)
    async with httpx2.AsyncClient(trust_env=False, timeout=120, limits=limits) as client:
        for name, port in (("straight", straight), ("through the gateway", through)):
            ends = await asyncio.gather(*(_stream(client, port) for _ in range(streams)))
            print(
                f"{name:<52}{statistics.median(first for first, _ in ends):>15.1f}{max(end for _, end in ends):>13.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--streams", type=int, default=256)
    chosen = parser.parse_args()
    provider, straight = _started(_provider_process)
    gateway, through = _started(_gateway_process, straight)
    try:
        asyncio.run(_latency(chosen.calls, straight, through))
        asyncio.run(_streams(chosen.streams, straight, through))
    finally:
        for process in (gateway, provider):
            process.kill()
            process.join()


if __name__ == "__main__":
    main()
