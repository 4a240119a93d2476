"""What is answered: a status, headers and a body, whole or in pieces."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

from forkyard.disk import Disk, Reading
from forkyard.server.s3.auth import Caller
from forkyard.server.s3.request import Request
from forkyard.server.s3.xml import Tree, document

OWNER = "forkyard"
"""The owner of everything, as S3's documents name one."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `reading` is an object that is sent as the body, and closed in any case; `work` ends in the answer."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    reading: Reading | None = None
    work: Coroutine[Any, Any, Reply] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was let in, with the disk it is about."""

    request: Request
    caller: Caller
    disk: Disk

    @property
    def key(self) -> str:
        """The key it is about; "" for the disk itself."""
        return self.request.key


def told(name: str, tree: Tree, headers: dict[str, str] | None = None) -> Reply:
    """A document as an answer."""
    return Reply(200, {"Content-Type": "application/xml", **(headers or {})}, document(name, tree))


def http_date(moment: float) -> str:
    """As in a Last-Modified header."""
    return formatdate(int(moment), usegmt=True)


def iso_date(moment: float) -> str:
    """As in a listing."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def quoted(etag: str) -> str:
    """An ETag as it is sent."""
    return f'"{etag}"'
