"""The endpoints of ports and of their tokens, and the face that ports are reached by."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from forkyard.server.endpoints import Call, Endpoint, Face
from forkyard.server.envelope import Answer, ApiError
from forkyard.server.paging import page
from forkyard.server.ports.exposed import Exposed
from forkyard.server.ports.face import PortsFace
from forkyard.server.ports.tokens import PortToken, PortTokens
from forkyard.server.ports.values import NewToken, PortList, Token, TokenList, TokenQuery, TokenRequest, seconds_of
from forkyard.server.sandboxes import Life, Sandboxes, attendants
from forkyard.server.sandboxes.values import Endpoint as PortEndpoint

if TYPE_CHECKING:
    from forkyard.server.serving import Server

_PORTS = "/api/sandboxes/{sandbox_id}/ports"
_TOKENS = "/api/sandboxes/{sandbox_id}/port-tokens"
_MOST = 64


@asynccontextmanager
async def lifetime(server: Server) -> AsyncIterator[None]:
    """See to the ports of sandboxes."""
    server.keep(PortTokens(server.state))
    attendants(server).append(server.keep(Exposed(server)))
    yield


def faces(server: Server) -> list[Face]:
    """Every name in the zone is a port's."""
    face = PortsFace(server)
    return [Face(face.takes, face)]


def endpoints(server: Server) -> list[Endpoint]:
    """What can be asked of ports."""
    ask = _Asked(server)
    return [
        Endpoint("GET", _PORTS, ask.list, "The ports everybody reaches", data=PortList, errors=(404,)),
        Endpoint(
            "PUT",
            f"{_PORTS}/{{port}}",
            ask.expose,
            "Let everybody reach a port, by a host name of its own",
            data=PortEndpoint,
            success=(200, 201),
            errors=(400, 404, 409, 501),
        ),
        Endpoint(
            "DELETE",
            f"{_PORTS}/{{port}}",
            ask.unexpose,
            "Let a port be reached by tokens alone",
            success=(204,),
            errors=(400, 404),
        ),
        Endpoint(
            "GET",
            _TOKENS,
            ask.tokens,
            "Tokens for ports, oldest first",
            query=TokenQuery,
            data=TokenList,
            errors=(404,),
        ),
        Endpoint(
            "POST",
            _TOKENS,
            ask.create_token,
            "Make a token for one port; its text is shown this once",
            body=TokenRequest,
            data=NewToken,
            success=(201,),
            errors=(404, 409, 501),
        ),
        Endpoint("GET", f"{_TOKENS}/{{token_id}}", ask.token, "Get a token for a port", data=Token, errors=(404,)),
        Endpoint(
            "DELETE",
            f"{_TOKENS}/{{token_id}}",
            ask.delete_token,
            "Let a token open no new connection",
            success=(204,),
            errors=(404,),
        ),
    ]


class _Asked:
    """What each of them does."""

    def __init__(self, server: Server) -> None:
        self._sandboxes = server.the(Sandboxes)
        self._exposed = server.the(Exposed)
        self._tokens = server.the(PortTokens)

    async def list(self, call: Call) -> Answer:
        return Answer({"ports": self._exposed.endpoints(self._of(call).record)})

    async def expose(self, call: Call) -> Answer:
        life, port = self._of(call), _port(call)
        self._exposed.refuse_without_ports()
        new = port not in life.record.ports
        if new:
            if len(life.record.ports) >= _MOST:
                raise ApiError(
                    409, f"sandbox {life.record.name!r} has {_MOST} exposed ports: take one back", "too_many"
                )
            life.note(ports=[*life.record.ports, port])
        shown = {"port": port, "hostname": self._exposed.hostname(life.record, port)}
        return Answer(shown, 201 if new else 200)

    async def unexpose(self, call: Call) -> Answer:
        life, port = self._of(call), _port(call)
        if port in life.record.ports:
            life.note(ports=[other for other in life.record.ports if other != port])
        return Answer(status=204)

    async def tokens(self, call: Call) -> Answer:
        query: TokenQuery = call.query
        found = self._tokens.of(self._of(call).id)
        if query.cursor is not None:
            after = next((at + 1 for at, token in enumerate(found) if token.id == query.cursor), len(found))
            found = found[after:]
        return page(found, query.limit, lambda token: token.id, lambda items: TokenList(tokens=[*map(_token, items)]))

    async def create_token(self, call: Call) -> Answer:
        life, body = self._of(call), call.body
        self._exposed.refuse_without_ports()
        seconds = None
        if body.ttl is not None and (seconds := seconds_of(body.ttl)) is None:
            raise ApiError(400, 'ttl: a duration such as "90s", "30m" or "1h30m", at most "8760h"', "invalid_request")
        token, text = self._tokens.create(life.id, body.port, seconds)
        where = self._exposed.hostname(life.record, body.port)
        return Answer(NewToken(**_token(token).model_dump(), hostname=where, token=text), 201)

    async def token(self, call: Call) -> Answer:
        return Answer(_token(self._tokens.get(self._of(call).id, call.path["token_id"])))

    async def delete_token(self, call: Call) -> Answer:
        self._tokens.delete(self._tokens.get(self._of(call).id, call.path["token_id"]))
        return Answer(status=204)

    def _of(self, call: Call) -> Life:
        return self._sandboxes.get(call.path["sandbox_id"])


def _port(call: Call) -> int:
    text = call.path["port"]
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= 65_535):
        raise ApiError(400, "a port is a number from 1 to 65535", "invalid_request")
    return int(text)


def _token(token: PortToken) -> Token:
    return Token(
        id=token.id,
        port=token.port,
        created_at=_time(token.created),
        expires_at=None if token.expires is None else _time(token.expires),
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
