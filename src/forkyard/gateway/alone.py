"""The gateway by itself: routes for harnesses outside, each known by a token, each call a line of a file.

    POST /rollouts                  {"model"?, "usd"?, "tokens"?, "calls"?} -> {"id", "token"}
    DELETE /rollouts/ID             ends it -> {"id", "calls", "tokens", "usd"}

Both want the gateway's own token. So does everything else that names no rollout's.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forkyard.errors import ConfigError
from forkyard.gateway.budget import Budget
from forkyard.gateway.dialects import Answered, Asked
from forkyard.gateway.gateway import Gateway
from forkyard.gateway.headers import Headers, token_of
from forkyard.gateway.route import Route
from forkyard.gateway.serving import App, Receive, Scope, Send, read_body, send_json
from forkyard.gateway.terms import RefusedError
from forkyard.secrets import redact
from forkyard.trace import Graph, ModelCall, Trace
from forkyard.values import new_id, strict_json

PATH = "/rollouts"
BODY_LIMIT = 65_536
ROLLOUTS = 10_000

Keep = Callable[[str], object]
"""Given each call as a line of JSON."""


class _Wanted(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    model: str | None = None
    usd: float | None = Field(None, gt=0)
    tokens: int | None = Field(None, gt=0)
    calls: int | None = Field(None, gt=0)


class Alone:
    """Opens routes by token over one gateway; an ASGI app. `token` is its own, and is a rollout's as well.

    Construction raises ConfigError when `model`, which is asked for in the place of the client's, cannot be.
    """

    def __init__(self, gateway: Gateway, model: str | None, keep: Keep) -> None:
        self._gateway = gateway
        self._keep = keep
        self._routes: dict[str, Route] = {}
        self._ids: dict[str, str] = {}
        self._model = model
        self._app = App(self._find)
        self.token = self._open(_Wanted(model=model))["token"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request as ASGI gives it."""
        path: str = scope.get("path", "")
        if scope["type"] != "http" or not (path == PATH or path.startswith(PATH + "/")):
            await self._app(scope, receive, send)
            return
        try:
            reply = await self._rollouts(scope["method"], path, list(scope["headers"]), receive)
        except RefusedError as err:
            status, reply = err.status, {"error": {"message": str(err), "code": err.code}}
        else:
            status = 200
        await send_json(send, status, json.dumps(reply).encode())

    async def close(self) -> None:
        """End every route."""
        await asyncio.gather(*(route.close() for route in self._routes.values()))

    def _find(self, headers: Headers) -> Route:
        route = self._routes.get(token_of(headers))
        if route is None:
            raise RefusedError(401, "the key is no rollout's token", "invalid_api_key")
        return route

    async def _rollouts(self, method: str, path: str, headers: Headers, receive: Receive) -> dict[str, Any]:
        if not hmac.compare_digest(token_of(headers).encode(), self.token.encode()):
            raise RefusedError(401, "only the gateway's own token opens and ends rollouts", "invalid_api_key")
        if method == "POST" and path == PATH:
            if len(self._routes) >= ROLLOUTS:
                raise RefusedError(429, f"{ROLLOUTS} rollouts are open: end some", "too_many")
            body = await read_body(receive, BODY_LIMIT)
            if body is None:
                raise RefusedError(413, "the request is too large", "too_large")
            wanted = _wanted(body)
            try:
                return self._open(wanted)
            except ConfigError as err:
                raise RefusedError(400, str(err), "bad_rollout") from None
        token = self._ids.get(path.removeprefix(PATH + "/"))
        if method != "DELETE" or token is None or token == self.token:
            raise RefusedError(404, f"there is no {method} {path[:200]}", "not_found")
        route = self._routes.pop(token)
        await route.close()
        del self._ids[route.terms.trace.id]
        spent = route.admission.spent
        return {"id": route.terms.trace.id, "calls": spent.calls, "tokens": spent.tokens, "usd": spent.usd}

    def _open(self, wanted: _Wanted) -> dict[str, str]:
        trace, token = Trace(id=new_id()), f"fy-{secrets.token_urlsafe(24)}"

        def ended(call: ModelCall, asked: Asked, answered: Answered) -> None:
            self._keep(self._line(trace.id, call, asked, answered))
            trace.calls.clear()  # the line is the record; nothing is to grow here
            trace.graph = Graph()

        budget = Budget(wanted.usd, wanted.tokens, wanted.calls)
        route = self._gateway.open(trace, wanted.model or self._model, budget=budget, on_call=ended)
        self._routes[token] = route
        self._ids[trace.id] = token
        return {"id": trace.id, "token": token}

    def _line(self, rollout: str, call: ModelCall, asked: Asked, answered: Answered) -> str:
        told = {name: value for name, value in asdict(call).items() if value is not None and name != "node"}
        talk = {"messages": asked.messages, "tools": asked.tools, "reply": answered.message}
        return strict_json(redact({"rollout": rollout, **told, **talk}, self._gateway.secrets))


def _wanted(body: bytes) -> _Wanted:
    try:
        return _Wanted.model_validate_json(body or b"{}")
    except ValidationError as err:
        said = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'the body'}: {item['msg']}" for item in err.errors())
        raise RefusedError(400, said, "bad_rollout") from None
