"""A streamed reply on its way to the client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from forkyard.gateway.call import GONE, Call
from forkyard.gateway.exchange import failed
from forkyard.gateway.observer import StreamObserver
from forkyard.gateway.pool import FAILURES, Reply

if TYPE_CHECKING:
    from forkyard.gateway.route import Route


class Streamed:
    """The pieces of a reply as they come, each watched before it is passed on.

    The call is on the record before its last piece is. Raises UpstreamError when the provider breaks off. Closing it
    before its end lets the provider go, and says on the record that the client did not stay.
    """

    def __init__(self, route: Route, call: Call, response: Reply, observer: StreamObserver) -> None:
        self._call = call
        self._response = response
        self._observer = observer
        self._pieces = response.pieces
        response.end_by(asyncio.get_running_loop().time() + route.bounds.total)
        self._over = False
        self._error = GONE

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._over:
            try:
                piece = await anext(self._pieces, None)
                shown = self._observer.end() if piece is None else self._observer.feed(piece)
            except (*FAILURES, ValueError) as err:
                problem = failed(self._call.draft.upstream, err)
                self._error = str(problem)
                raise problem from None
            self._over = piece is None
            if self._over or self._observer.ended:
                self._call.end(*self._observer.answered())
            if shown:
                return shown
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Let go of the provider."""
        if not self._call.ended:
            self._call.end(self._observer.answered()[0], self._error)
        await self._response.aclose()
