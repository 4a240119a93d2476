"""A request's body as the bytes the client meant: taken out of its chunks, counted, and held to every promise."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from forkyard.server.s3.auth import UNSIGNED, Caller
from forkyard.server.s3.checksums import ALGORITHMS, PREFIX, Promise, Sums, new_sum, sums_of
from forkyard.server.s3.chunked import Form, decoded
from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.request import Request

LARGEST_PUT = 5 << 30
LARGEST_DOCUMENT = 4 << 20

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LENGTH = re.compile(r"[0-9]{1,18}")
_SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
_SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
_UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


@dataclass(slots=True)
class Body:
    """A body yet to be read; `size` is what it was announced to be, None when it comes in HTTP's own chunks."""

    size: int | None
    limit: int
    source: AsyncIterator[bytes]
    form: Form | None
    sums: Sums

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its bytes, once. Raises S3Error at the end when they are not those that were promised."""
        count = 0
        async for piece in decoded(self.source, self.form) if self.form else self.source:
            count += len(piece)
            if count > self.limit:
                raise too_large(self.limit)
            self.sums.update(piece)
            yield piece
        if self.size is not None and count != self.size:
            raise S3Error("IncompleteBody", f"{self.size} bytes were announced and {count} arrived")
        self.sums.hold(self.form.trailers if self.form else {})

    async def whole(self) -> bytes:
        """All of it at once, which is for small ones."""
        return b"".join([piece async for piece in self.pieces()])


def body_of(request: Request, caller: Caller, limit: int) -> Body:
    """The body of a request, of at most `limit` bytes. Raises S3Error when it is announced as what it cannot be."""
    streaming = caller.payload.startswith("STREAMING-")
    form = _form(request, caller) if streaming else None
    sums = sums_of(request.headers, form.announced if form else frozenset())
    if not streaming and caller.payload != UNSIGNED:
        if not _SHA256.fullmatch(caller.payload):
            raise S3Error("InvalidArgument", f"x-amz-content-sha256 is the body's SHA-256 in hex, or {UNSIGNED}")
        expected = bytes.fromhex(caller.payload)
        promise = Promise("x-amz-content-sha256", new_sum("sha256"), expected, "XAmzContentSHA256Mismatch")
        sums.promises.append(promise)
    size = form.size if form else _length(request, "content-length")
    if size is not None and size > limit:
        raise too_large(limit)
    return Body(size, limit, request.pieces(), form, sums)


def too_large(limit: int) -> S3Error:
    """The refusal of a body of more than `limit` bytes."""
    return S3Error("EntityTooLarge", f"the body has more than {limit} bytes", {"MaxSizeAllowed": str(limit)})


def _form(request: Request, caller: Caller) -> Form:
    if caller.payload not in (_SIGNED, _SIGNED_TRAILER, _UNSIGNED_TRAILER):
        raise S3Error("NotImplemented", f"bodies of the form {caller.payload[:80]} are not read")
    signed = caller.payload != _UNSIGNED_TRAILER
    if signed and caller.chain is None:
        raise S3Error("InvalidRequest", f"{caller.payload} needs a signed request")
    size = _length(request, "x-amz-decoded-content-length")
    if size is None:
        raise S3Error("MissingContentLength", "a body in chunks needs the header x-amz-decoded-content-length")
    named = request.header("x-amz-trailer").lower() if caller.payload != _SIGNED else ""
    announced = frozenset(name.strip() for name in named.split(",") if name.strip())
    if unknown := announced - {PREFIX + algorithm for algorithm in ALGORITHMS}:
        raise S3Error("InvalidRequest", f"x-amz-trailer names {min(unknown)[:80]}, and checksums are all that is read")
    return Form(size, caller.chain if signed else None, announced)


def _length(request: Request, name: str) -> int | None:
    text = request.header(name)
    if not text:
        return None
    if not _LENGTH.fullmatch(text):
        raise S3Error("InvalidArgument", f"{name} is a number of bytes")
    return int(text)
