"""The endpoints of sandboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer, ApiError
from forkyard.server.images import Images
from forkyard.server.sandboxes.attendants import attendants
from forkyard.server.sandboxes.idempotency import HEADER, RepeatedError, Repeats
from forkyard.server.sandboxes.life import Life
from forkyard.server.sandboxes.registry import Made, Sandboxes
from forkyard.server.sandboxes.states import Action, Phase
from forkyard.server.sandboxes.values import (
    CreateSandbox,
    Deletion,
    ForkSandbox,
    Listing,
    SandboxList,
    SandboxObject,
    StartSandbox,
    TimeoutSandbox,
    Waiting,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from forkyard.server.serving import Server

_ONE = "/api/sandboxes/{sandbox_id}"
_CHANGING = (404, 409, 503)


@asynccontextmanager
async def lifetime(server: Server) -> AsyncIterator[None]:
    """Recover what was; at the end, bring what runs to rest."""
    images, others = server.the(Images), attendants(server)
    bound = server.storage_mib or None
    sandboxes = server.keep(Sandboxes(server.provider, server.state, images, others, storage_mib=bound))
    await sandboxes.recover()
    try:
        yield
    finally:
        await sandboxes.close()


def endpoints(server: Server) -> list[Endpoint]:
    """What can be asked of sandboxes."""
    ask = _Asked(server.the(Sandboxes), Repeats(server.state))
    one = SandboxObject
    return [
        Endpoint("GET", "/api/sandboxes", ask.list, "List sandboxes, oldest first", query=Listing, data=SandboxList),
        Endpoint(
            "POST",
            "/api/sandboxes",
            ask.create,
            "Create a sandbox",
            body=CreateSandbox,
            query=Waiting,
            data=one,
            success=(202,),
            errors=_CHANGING,
            headers=(HEADER,),
        ),
        Endpoint("GET", _ONE, ask.get, "Get a sandbox", data=one, errors=(404,)),
        Endpoint(
            "DELETE",
            _ONE,
            ask.delete,
            "Delete a sandbox that does not run and has no forks",
            query=Deletion,
            success=(204,),
            errors=_CHANGING,
        ),
        Endpoint(
            "POST",
            f"{_ONE}/start",
            ask.start,
            "Start a sandbox on its disk",
            body=StartSandbox,
            body_optional=True,
            query=Waiting,
            data=one,
            success=(200, 202),
            errors=_CHANGING,
        ),
        Endpoint(
            "POST",
            f"{_ONE}/stop",
            ask.stop,
            "End the processes of a sandbox and seal its disk",
            data=one,
            success=(200, 202),
            errors=_CHANGING,
        ),
        Endpoint(
            "POST",
            f"{_ONE}/pause",
            ask.pause,
            "Bring the processes of a sandbox to a halt",
            data=one,
            success=(200, 202),
            errors=_CHANGING,
        ),
        Endpoint(
            "POST",
            f"{_ONE}/resume",
            ask.resume,
            "Let the processes of a paused sandbox go on",
            query=Waiting,
            data=one,
            success=(200, 202),
            errors=_CHANGING,
        ),
        Endpoint(
            "POST",
            f"{_ONE}/fork",
            ask.fork,
            "Make a running copy of a sandbox",
            body=ForkSandbox,
            body_optional=True,
            query=Waiting,
            data=one,
            success=(202,),
            errors=_CHANGING,
            headers=(HEADER,),
        ),
        Endpoint(
            "POST",
            f"{_ONE}/timeout",
            ask.timeout,
            "Change the lifetime and the idle time of a sandbox",
            body=TimeoutSandbox,
            data=one,
            errors=_CHANGING,
        ),
    ]


class _Asked:
    """The handlers."""

    def __init__(self, sandboxes: Sandboxes, repeats: Repeats) -> None:
        self._sandboxes = sandboxes
        self._repeats = repeats

    async def list(self, call: Call) -> Answer:
        wanted: Listing = call.query
        found = [
            self._sandboxes.shown(life)
            for life in self._sandboxes
            if life.record.has_labels(wanted.label)
            and (not wanted.filesystem or life.record.mounts_disk(wanted.filesystem))
        ]
        return Answer(SandboxList(sandboxes=found))

    async def get(self, call: Call) -> Answer:
        return Answer(self._sandboxes.shown(self._of(call)))

    async def create(self, call: Call) -> Answer:
        return await self._once(call, lambda made: self._sandboxes.create(call.body, wait=call.query.wait, made=made))

    async def fork(self, call: Call) -> Answer:
        source = self._of(call)
        asked = call.body or ForkSandbox()
        return await self._once(call, lambda made: self._sandboxes.fork(source, asked, made=made))

    async def _once(self, call: Call, make: Callable[[Made], Awaitable[Life]]) -> Answer:
        """The sandbox that is made, or that the same request has made already."""
        repeat = self._repeats.of(call)
        if repeat is None:
            return Answer(self._sandboxes.shown(await make(lambda _: None)), 202)
        if (found := self._repeats.find(repeat)) is None:
            try:
                return Answer(self._sandboxes.shown(await make(lambda life: self._repeats.note(repeat, life))), 202)
            except RepeatedError:  # the same request, sent twice at once, was faster
                found = self._repeats.find(repeat)
            except ApiError:
                self._repeats.forget_unless(repeat, self._sandboxes.has)  # nothing came of it
                raise
        return Answer(self._sandboxes.shown(await self._sandboxes.again(found)), 202)

    async def start(self, call: Call) -> Answer:
        life = self._of(call)
        if call.body is not None and call.body.mounts is not None:
            await self._sandboxes.change_mounts(life, call.body.mounts)
        return await self._done(life, Action.START, wait=call.query.wait)

    async def resume(self, call: Call) -> Answer:
        return await self._done(self._of(call), Action.RESUME, wait=call.query.wait)

    async def stop(self, call: Call) -> Answer:
        return await self._done(self._of(call), Action.STOP)

    async def pause(self, call: Call) -> Answer:
        """Clients know by the word `pausing` that it was they who brought it to rest, and resume it after a fork."""
        life = self._of(call)
        through = await life.do(Action.PAUSE)
        return Answer(self._sandboxes.shown(life, through), 202 if through is Phase.PAUSING else 200)

    async def timeout(self, call: Call) -> Answer:
        life = self._of(call)
        asked: TimeoutSandbox = call.body
        if asked.timeout is None and asked.idle_ttl_seconds is None:
            raise ApiError(400, "give timeout, idle_ttl_seconds, or both")
        await life.rule(Action.TIMEOUT)
        life.set_timeout(asked.timeout, asked.idle_ttl_seconds)
        return Answer(self._sandboxes.shown(life))

    async def delete(self, call: Call) -> Answer:
        await self._sandboxes.delete(self._of(call), cascade=call.query.cascade)
        return Answer(status=204)

    async def _done(self, life: Life, action: Action, *, wait: bool = True) -> Answer:
        before = life.record.phase
        await life.do(action, wait=wait)
        return Answer(self._sandboxes.shown(life), 200 if life.record.phase is before else 202)

    def _of(self, call: Call) -> Life:
        return self._sandboxes.get(call.path["sandbox_id"])
