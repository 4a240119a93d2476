"""Questions to a server's control plane and to its S3 face, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote
from xml.etree import ElementTree

from pydantic import BaseModel, ValidationError

from forkyard.values import validation_problems
from forkyard.wire import RefusedError, Reply, Transport, data_of

T = TypeVar("T", bound=BaseModel)
Query = Mapping[str, str | int | Sequence[str]]
OBJECT_LIMIT = 5 << 30
_XML_LIMIT = 16 << 20


class Talk:
    """What sandboxes and disks of one client share."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The data of an answer. RefusedError. Of an object in `body` what is None is left out."""
        return data_of(await self._reply(method, path, body, query, headers))

    async def whole(self, method: str, path: str, *, query: Query | None = None) -> dict[str, Any]:
        """A page: the whole answer, `nextCursor` beside `data`."""
        reply = await self._reply(method, path, None, query, None)
        data_of(reply)
        whole: dict[str, Any] = json.loads(reply.body)
        return whole

    async def _reply(
        self, method: str, path: str, body: Any, query: Query | None, headers: Mapping[str, str] | None
    ) -> Reply:
        if isinstance(body, dict):
            body = {key: value for key, value in body.items() if value is not None}
        return await self.transport.request(method, path, json=body, query=query, headers=headers)

    async def s3(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int = OBJECT_LIMIT,
    ) -> Reply:
        """An answer of S3's. RefusedError with S3's code and text."""
        reply = await self.transport.request(method, path, query=query, content=content, headers=headers, limit=limit)
        if reply.status < 400:
            return reply
        code, text = None, f"the server answered with status {reply.status}"
        if reply.body:
            tree = xml(reply)
            code, text = tree.findtext("Code"), tree.findtext("Message") or text
        raise RefusedError(reply.status, text[:2000], code)


def understood(kind: type[T], data: Any) -> T:
    """What a server tells, as the value it should be. RefusedError when it is none."""
    try:
        return kind.model_validate(data)
    except ValidationError as err:
        raise RefusedError(0, f"the server's answer is not understood: {validation_problems(err)[0]}") from None


def object_path(disk: str, key: str) -> str:
    """Where an object is."""
    return f"/{quote(disk, safe='')}/{quote(key, safe='/')}"


def xml(reply: Reply) -> ElementTree.Element:
    """An answer in XML, names without their namespaces. RefusedError when it is none."""
    try:
        if len(reply.body) > _XML_LIMIT:
            raise ElementTree.ParseError("too long")
        tree = ElementTree.fromstring(reply.body)
    except ElementTree.ParseError as err:
        raise RefusedError(reply.status, f"the server's answer is no XML: {err}") from None
    for each in tree.iter():
        each.tag = each.tag.rpartition("}")[2]
    return tree
