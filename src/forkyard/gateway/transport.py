"""The way of a harness in this process: its HTTP client hands requests to the relay, and no socket lies in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2

from forkyard.errors import KeyReturnedError, StoppedError
from forkyard.gateway.dialects import CHAT
from forkyard.gateway.exchange import Incoming, Outgoing, whole
from forkyard.gateway.observer import LeakError
from forkyard.gateway.pool import FAILURES
from forkyard.gateway.relay import relay
from forkyard.gateway.terms import RefusedError, UpstreamError

if TYPE_CHECKING:
    from forkyard.gateway.route import Route


class RouteTransport(httpx2.AsyncBaseTransport):
    """Carries chat completions over a route. A refusal that stops the agent is raised as StoppedError."""

    def __init__(self, route: Route) -> None:
        self._route = route

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """One request and its whole reply; failures are those of a direct connection to the provider."""
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        incoming = Incoming(request.method, CHAT.path, "", headers, await request.aread())
        try:
            reply = await self._route.carry(self._whole(incoming))
        except RefusedError as err:
            if err.condition is not None:
                raise StoppedError(str(err), err.condition) from None
            return httpx2.Response(err.status, content=CHAT.error(err.status, str(err), err.code))
        except UpstreamError as err:
            if isinstance(err.cause, LeakError):
                raise KeyReturnedError(str(err)) from None
            raise _twin(err) from None
        return httpx2.Response(reply.status, headers=reply.headers, content=reply.body)

    async def _whole(self, incoming: Incoming) -> Outgoing:
        return await whole(await relay(self._route, incoming))


def _twin(err: UpstreamError) -> httpx2.TransportError:
    """The failure as a direct connection would have raised it: httpx names its errors as httpcore does."""
    if isinstance(err.cause, FAILURES):
        kind: type[httpx2.TransportError] = getattr(httpx2, type(err.cause).__name__)
        return kind(str(err.cause))
    return (httpx2.ReadTimeout if err.status == 504 else httpx2.RemoteProtocolError)(str(err))
