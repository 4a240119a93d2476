"""Links to one file of a disk, for whoever has them, until they expire."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from forkyard.disk import DEFAULT_TYPE, Disk, DiskError, Reading
from forkyard.server.disks.access import check_address, disk_of, told
from forkyard.server.disks.values import Share, ShareUrl
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer, ApiError

if TYPE_CHECKING:
    from forkyard.server.serving import Server

_LONGEST = 8192
_SAFE = {
    "x-content-type-options": "nosniff",  # a file of anybody's must not act as a page of this server's
    "content-security-policy": "sandbox; default-src 'none'",
    "cache-control": "private, no-store",
}


@dataclass(frozen=True, slots=True)
class Link:
    """What a token says."""

    disk_id: str
    key: str
    expires: int


def endpoints(server: Server) -> list[Endpoint]:
    """The rows of links."""
    secret = hmac.new(server.secret, b"share", hashlib.sha256).digest()

    async def share(call: Call) -> Answer:
        disk, asked = disk_of(server, call), call.body
        with told():
            await disk.head(asked.key)
        token = token_of(Link(disk.info.id, asked.key, int(time.time()) + asked.expires_in), secret)
        url = f"{server.origin(call.request)}/api/shared/{token}"
        return Answer(ShareUrl(url=url, expires_in=asked.expires_in))

    async def redeem(call: Call) -> Response:
        link = link_of(call.path["token"], secret, time.time())
        disk = _disk(server, link)
        check_address(server, call.request, disk)
        with told():
            return _download(await disk.get(link.key))

    return [
        Endpoint(
            "POST",
            "/api/disks/{id}/share",
            share,
            "A link to one file, which needs no key",
            body=Share,
            data=ShareUrl,
            errors=(404, 503),
        ),
        Endpoint("GET", "/api/shared/{token}", redeem, "The file of a link", errors=(403, 404, 410, 503), public=True),
    ]


def token_of(link: Link, secret: bytes) -> str:
    """The text of a link."""
    said = _text(json.dumps([link.disk_id, link.key, link.expires], ensure_ascii=False).encode())
    return f"{said}.{_signature(said, secret)}"


def link_of(token: str, secret: bytes, now: float) -> Link:
    """What a token says. Raises ApiError: 404 for one that is not ours, 410 for one that has expired."""
    said, _, signature = token.partition(".")
    ascii_only = token.isascii() and len(token) <= _LONGEST
    if not ascii_only or not hmac.compare_digest(signature, _signature(said, secret)):
        raise ApiError(404, "this link is none of this server's: ask for a new one", "not_found")
    disk_id, key, expires = json.loads(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))
    if now >= expires:
        raise ApiError(410, "this link has expired: ask for a new one", "expired")
    return Link(disk_id, key, expires)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _signature(said: str, secret: bytes) -> str:
    return _text(hmac.new(secret, said.encode(), hashlib.sha256).digest())


def _disk(server: Server, link: Link) -> Disk:
    try:
        return server.disks.get(link.disk_id)
    except DiskError:
        raise ApiError(404, "the disk of this link was deleted", "not_found") from None


def _download(reading: Reading) -> Response:
    name = quote(reading.info.key.rstrip("/").rpartition("/")[2], safe="")
    headers = {
        **_SAFE,
        "content-length": str(reading.stop - reading.start),
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        "etag": f'"{reading.info.etag}"',
    }
    kind = reading.info.content_type or DEFAULT_TYPE
    headers["content-type"] = kind if kind.isascii() else DEFAULT_TYPE
    return StreamingResponse(_pieces(reading), headers=headers)


async def _pieces(reading: Reading) -> AsyncIterator[bytes]:
    try:
        async for piece in reading:
            yield piece
    finally:
        await reading.close()
