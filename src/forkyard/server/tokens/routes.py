"""/api/tokens: a key makes, lists and revokes keys. The first is made by `forkyard key create`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer, ApiError, not_here
from forkyard.server.keys import Key
from forkyard.server.paging import LIMIT, page
from forkyard.server.state import TakenError
from forkyard.server.wording import Spelled

if TYPE_CHECKING:
    from forkyard.server.serving import Server

_NAME = Spelled(r"^[^\x00-\x1f\x7f]{1,100}$", "1 to 100 characters, none of them a control character")


class TokenQuery(BaseModel):
    """Which keys."""

    limit: int = Field(LIMIT, ge=1)
    cursor: str | None = None


class TokenRequest(BaseModel):
    """A key to make."""

    name: Annotated[str, _NAME]
    description: str = Field("", max_length=1000)
    permissions: list[str] | None = Field(None, description="Not offered: every key may do everything.")


class Token(BaseModel):
    """A key as listings show it."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    id: str
    name: str
    description: str
    token_suffix: str
    created_at: datetime


class NewToken(Token):
    """A key with its text, which is shown this once."""

    token: str


class TokenList(BaseModel):
    """Keys, oldest first."""

    tokens: list[Token]


def endpoints(server: Server) -> list[Endpoint]:
    """The rows of this part."""
    keys = server.keys

    async def list_tokens(call: Call) -> Answer:
        query: TokenQuery = call.query
        found = keys.list(query.cursor, min(query.limit, LIMIT) + 1)
        return page(found, query.limit, lambda key: key.id, lambda page: TokenList(tokens=[*map(_token, page)]))

    async def create_token(call: Call) -> Answer:
        body: TokenRequest = call.body
        if body.permissions is not None:
            raise not_here("keys with fewer permissions")
        try:
            key, text = keys.create(body.name, body.description)
        except TakenError:
            raise ApiError(409, f"there is a key named {body.name!r}: choose another name", "name_taken") from None
        return Answer(NewToken(**_token(key).model_dump(), token=text), 201)

    async def delete_token(call: Call) -> Answer:
        if not keys.revoke(call.path["id"]):
            raise ApiError(404, "there is no key with that id: GET /api/tokens lists them", "not_found")
        return Answer()

    return [
        Endpoint("GET", "/api/tokens", list_tokens, "API keys, oldest first", query=TokenQuery, data=TokenList),
        Endpoint(
            "POST",
            "/api/tokens",
            create_token,
            "Make an API key; its text is shown this once",
            body=TokenRequest,
            data=NewToken,
            success=(201,),
            errors=(409, 501),
        ),
        Endpoint("DELETE", "/api/tokens/{id}", delete_token, "Revoke an API key", errors=(404,)),
    ]


def _token(key: Key) -> Token:
    return Token(
        id=key.id,
        name=key.name,
        description=key.description,
        token_suffix=key.suffix,
        created_at=datetime.fromtimestamp(key.created, UTC),
    )
