"""The one function that every request goes through, from a sandbox's loopback and from harnesses in this process.

A call is admitted (limits, budgets), goes to the provider as the client wrote it but for credentials and what the run
decides, is watched while its reply comes back, and is on the record before the client can know that it is over. It is
never tried again here: what failed is the client's to judge.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from forkyard.gateway.call import GONE, Call
from forkyard.gateway.capabilities import confined, within
from forkyard.gateway.dialects import CHAT, DIALECTS, MESSAGES, Dialect, dialect_at
from forkyard.gateway.dialects.base import Body
from forkyard.gateway.exchange import Incoming, Outgoing, read_body, read_reply, send, written
from forkyard.gateway.headers import back, value_of
from forkyard.gateway.holding import held
from forkyard.gateway.hooks import looks_at
from forkyard.gateway.observer import Guard, StreamObserver, read_whole
from forkyard.gateway.pool import Reply
from forkyard.gateway.streamed import Streamed
from forkyard.gateway.terms import Draft, RefusedError
from forkyard.gateway.upstreams import Upstream

if TYPE_CHECKING:
    from forkyard.gateway.route import Route

COUNT = "/messages/count_tokens"


async def relay(route: Route, request: Incoming) -> Outgoing:
    """Carry one request to a provider. Raises RefusedError and UpstreamError, which clients are told of."""
    route.check_open()
    dialect = dialect_at(request.path)
    if dialect is None or request.method != "POST":
        async with route.beside():
            return await side_door(route, request)
    body: Body = {}
    try:
        body = read_body(request)
        draft = route.draft(dialect, body)
    except RefusedError as err:
        route.note_refusal(err, dialect, body.get("model"))
        raise
    return await route.replays.answered(
        route, request, lambda: _called(route, request, draft), streamed=draft.asked.streamed
    )


async def _called(route: Route, request: Incoming, draft: Draft) -> tuple[Call, Outgoing]:
    """One call, and the reply it brings."""
    hide_usage = _ask_for_usage(draft)
    call = await route.admit(draft)
    response: Reply | None = None
    try:
        content = written(draft.body, draft.changes, anew=draft.anew)
        response = await send(route, request, draft.upstream, draft.dialect, content, plain=hide_usage)
        call.replied(response.status)
        if response.status == 200 and looks_at(route.terms, "response"):
            return call, await held(route, call, response, hide_usage)
        observed = _observed(response, draft.dialect, route, hide_usage)
        if observed is None:
            return call, await _whole(route, call, response)
    except BaseException as err:
        refused = err.code if isinstance(err, RefusedError) else None
        call.end(error=GONE if isinstance(err, asyncio.CancelledError) else str(err), refused=refused)
        if response is not None:
            await response.aclose()
        raise
    headers = back(response.headers, rewritten=observed.rewrites)
    return call, Outgoing(response.status, headers, Streamed(route, call, response, observed))


async def side_door(route: Route, request: Incoming) -> Outgoing:
    """What is relayed beside calls and costs nothing: counted tokens, and the provider's models."""
    if request.path == COUNT and request.method == "POST":
        body = read_body(request)
        model, upstream = route.upstream_for(body, MESSAGES)
        body, _ = within(route.terms, MESSAGES, body)
        content = written(body, {"model": upstream.alias or model}, anew=confined(route.terms))
        response = await send(route, request, upstream, MESSAGES, content)
    elif request.method == "GET" and (path := _path_of_models(request.path)) is not None:
        dialect, upstream = _of_models(route, request)
        response = await send(route, replace(request, path=path), upstream, dialect, None)
    else:
        raise RefusedError(404, f"there is no {request.method} {request.path[:200]} here", "not_found")
    raw, _ = await read_reply(route, upstream, response)
    return Outgoing(response.status, back(response.headers, rewritten=False), raw)


def _path_of_models(path: str) -> str | None:
    """The path of the models, or of one of them, that leads nowhere else; None for any other."""
    names = path.split("/")[2:]
    if path.split("/")[:2] != ["", "models"] or not {"", ".", ".."}.isdisjoint(names):
        return None
    return "/".join(["/models", *(quote(name, safe=":@") for name in names)])


def _of_models(route: Route, request: Incoming) -> tuple[Dialect, Upstream]:
    """Who is asked for its models: the provider of the route's own, in the dialect that the client seems to speak."""
    likely = MESSAGES if value_of(request.headers, b"anthropic-version") else CHAT
    for dialect in (likely, *DIALECTS):
        with suppress(RefusedError):
            return dialect, route.upstream(route.terms.model or "*", dialect)
    raise RefusedError(404, "no upstream is known whose models could be listed", "not_found")


def _ask_for_usage(draft: Draft) -> bool:
    """Have a streamed chat completion tell its usage; whether that is our wish and not the client's."""
    given: Any = draft.body.get("stream_options")
    options = given if isinstance(given, dict) else {}
    streamed = draft.dialect is CHAT and draft.asked.streamed
    if not streamed or not draft.upstream.stream_usage or options.get("include_usage"):
        return False
    draft.changes["stream_options"] = options | {"include_usage": True}
    return True


def _observed(response: Reply, dialect: Dialect, route: Route, hide_usage: bool) -> StreamObserver | None:
    """What watches a streamed reply; None for one that comes whole, as errors do."""
    streamed = value_of(response.headers, b"content-type").lower().startswith("text/event-stream")
    if response.status != 200 or not streamed:
        return None
    encoding = value_of(response.headers, b"content-encoding")
    try:
        return StreamObserver(dialect, encoding, Guard(route.gateway.keys), hide_usage)
    except ValueError:
        return None  # compressed in a way that is not read here: told when it has come whole


async def _whole(route: Route, call: Call, response: Reply) -> Outgoing:
    raw, plain = await read_reply(route, call.draft.upstream, response)
    answered, problem = read_whole(call.draft.dialect, plain)
    if response.status != 200:
        problem = f"{call.draft.upstream.place} answered {response.status}: {plain[:2000].decode('utf-8', 'replace')}"
    call.end(answered, problem)
    return Outgoing(response.status, back(response.headers, rewritten=False), raw)
