"""Routes inside real sandboxes: reached at their own loopback, known by their listener, sealed before grading."""

from __future__ import annotations

import asyncio

from forkyard.model import Endpoint
from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.trace import Trace
from tests.gateway.upstream import KEY, Play, chat_body, gateway_to, providing, whole

ASK = r"""
body='{"model":"m","messages":[{"role":"user","content":"hello"}]}'
exec 3<>/dev/tcp/127.0.0.1/"$1" || exit 1
printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' \
    "${#body}" "$body" >&3
cat <&3
"""


async def ask(box: Sandbox, endpoint: Endpoint) -> str:
    return (await box.run(["bash", "-c", ASK, "ask", port_of(endpoint)], timeout=30)).stdout


def port_of(endpoint: Endpoint) -> str:
    return endpoint.base_url.rpartition(":")[2]


async def test_a_program_in_a_sandbox_without_network_asks_its_model(local: LocalProvider) -> None:
    async with providing(whole(chat_body("from outside"))) as provider, gateway_to(provider) as gateway:
        trace = Trace()
        route = gateway.open(trace, "m")
        box = await local.create(SandboxSpec())
        endpoint = await route.listen(box)
        answer = await ask(box, endpoint)
        environment = (await box.run("env; cat /proc/*/environ")).stdout
        await route.close()
        await box.close()
    assert answer.startswith("HTTP/1.1 200") and "from outside" in answer
    assert KEY not in answer + environment
    assert trace.calls[0].usage.input == 100


async def test_a_request_never_reaches_another_rollouts_route(local: LocalProvider) -> None:
    async with providing(whole(chat_body())) as provider, gateway_to(provider) as gateway:
        traces = [Trace(), Trace()]
        routes = [gateway.open(trace, "m") for trace in traces]
        boxes = [await local.create(SandboxSpec()) for _ in routes]
        endpoints = [await route.listen(box) for route, box in zip(routes, boxes, strict=True)]
        assert port_of(endpoints[0]) == port_of(endpoints[1])  # each on a loopback of its own
        await asyncio.gather(ask(boxes[0], endpoints[0]), ask(boxes[0], endpoints[0]), ask(boxes[1], endpoints[1]))
        await routes[0].close()
        assert await ask(boxes[0], endpoints[0]) == ""
        assert "200" in await ask(boxes[1], endpoints[1])
        await routes[1].close()
        for box in boxes:
            await box.close()
    assert [len(trace.calls) for trace in traces] == [2, 2]


async def test_a_left_over_process_that_goes_on_calling_gets_nothing_after_the_seal(local: LocalProvider) -> None:
    async with providing(whole(chat_body())) as provider, gateway_to(provider) as gateway:
        trace = Trace()
        heard = asyncio.Semaphore(0)
        route = gateway.open(trace, "m", on_call=lambda *call: heard.release())
        box = await local.create(SandboxSpec())
        port = port_of(await route.listen(box))
        loop = f"(while :; do ask {port} >/dev/null 2>&1 && echo ok >>/tmp/ok || echo no >>/tmp/no; done) &"
        await box.run(["bash", "-c", f"ask() {{ ({ASK}) ; }}; {loop}"])
        for _ in range(3):
            await heard.acquire()
        await route.close()
        recorded, asked = len(trace.calls), len(provider.seen)
        await box.run("rm -f /tmp/no; while [ ! -s /tmp/no ]; do sleep 0.01; done", timeout=30)
        connected = await ask(box, Endpoint(f"http://127.0.0.1:{port}", "m"))
        await box.close()
    assert connected == ""
    assert (len(trace.calls), len(provider.seen)) == (recorded, asked)
    assert recorded >= 3


async def test_a_call_under_way_when_the_route_is_sealed_is_cancelled_upstream(local: LocalProvider) -> None:
    async with providing(Play(hold_at=-1)) as provider, gateway_to(provider) as gateway:
        trace = Trace()
        route = gateway.open(trace, "m")
        box = await local.create(SandboxSpec())
        endpoint = await route.listen(box)
        asking = asyncio.create_task(ask(box, endpoint))
        await provider.held.wait()
        await route.close()
        await provider.cut.wait()
        assert await asking == ""
        await box.close()
    assert len(trace.calls) == 1 and trace.calls[0].error


async def test_a_task_that_holds_the_port_does_not_keep_the_model_away(local: LocalProvider) -> None:
    async with providing(whole(chat_body())) as provider, gateway_to(provider) as gateway:
        route = gateway.open(Trace(), "m")
        box = await local.create(SandboxSpec())
        taken = await box.listen(9170)
        endpoint = await route.listen(box)
        assert port_of(endpoint) != "9170" and "200" in await ask(box, endpoint)
        taken.close()
        await route.close()
        await box.close()
