"""Bodies in aws-chunked form, decoded as they arrive; each chunk, and each trailer, is held to its signature.

    <size in hex>[;chunk-signature=<hex>] CRLF <bytes> CRLF   ... as often as wanted, then
    0[;chunk-signature=<hex>] CRLF  [<name>:<value> CRLF]... [x-amz-trailer-signature:<hex> CRLF]  CRLF

The bytes of a chunk are handed on before its signature is known to be right, since a chunk may be as large as the
object. Whoever takes them must let nothing of them count before the iterator has come to its end.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.sigv4 import EMPTY_SHA256, Scope, same, sign

TRAILER_SIGNATURE = "x-amz-trailer-signature"

_HEAD = re.compile(rb"([0-9a-fA-F]{1,12})(?:;chunk-signature=([0-9a-f]{64}))?")
_LONGEST_LINE = 4096
_MOST_TRAILERS = 16


@dataclass(slots=True)
class Chain:
    """The signatures of a body: each one signs a chunk and the signature before it, the first the request's."""

    key: bytes
    time: str
    scope: Scope
    last: str

    def follow(self, kind: str, given: str, *digests: str) -> None:
        """Take the next signature of the chain. Raises S3Error when it is not the right one."""
        text = "\n".join((f"AWS4-HMAC-SHA256-{kind}", self.time, str(self.scope), self.last, *digests))
        if not same(sign(self.key, text), given):
            raise S3Error("SignatureDoesNotMatch", "a signature inside the body is wrong; nothing was written")
        self.last = given


@dataclass(frozen=True, slots=True)
class Form:
    """How a body was announced: its size when decoded, its chain when it is signed, the names of its trailers."""

    size: int
    chain: Chain | None
    announced: frozenset[str]
    trailers: dict[str, str] = field(default_factory=dict)  # filled when the body has come to its end


async def decoded(source: AsyncIterator[bytes], form: Form) -> AsyncIterator[bytes]:
    """The bytes of a body in chunks. Raises S3Error, at its end if need be, when they are not what was announced."""
    pieces = _Pieces(source)
    left = form.size
    while True:
        size, signature = _head(await pieces.line(), form)
        last = size == 0
        if size > left:
            raise S3Error("IncompleteBody", "the body is longer than x-amz-decoded-content-length says")
        left -= size
        digest = hashlib.sha256()
        while size:
            piece = await pieces.some(size)
            size -= len(piece)
            if form.chain:
                digest.update(piece)
            yield piece
        if form.chain:
            form.chain.follow("PAYLOAD", signature, EMPTY_SHA256, digest.hexdigest())
        if last:
            break
        if await pieces.line():
            raise S3Error("IncompleteBody", "a chunk of the body is longer than its head says")
    if left:
        raise S3Error("IncompleteBody", "the body is shorter than x-amz-decoded-content-length says")
    await _take_trailers(pieces, form)


def _head(line: bytes, form: Form) -> tuple[int, str]:
    found = _HEAD.fullmatch(line)
    if found is None or (found[2] is None) == (form.chain is not None):
        wanted = "size;chunk-signature=..." if form.chain else "size"
        raise S3Error("IncompleteBody", f"each chunk of the body must begin with a line '{wanted}', the size in hex")
    return int(found[1], 16), (found[2] or b"").decode()


async def _take_trailers(pieces: _Pieces, form: Form) -> None:
    given: dict[str, str] = {}
    while line := await pieces.line():
        name, colon, value = line.decode("latin-1").partition(":")
        name = name.strip(" \t").lower()
        if not colon or name in given or len(given) > _MOST_TRAILERS:
            raise S3Error("MalformedTrailerError", "the trailers of the body are no lines of name:value")
        given[name] = value.strip(" \t")
    signature = given.pop(TRAILER_SIGNATURE, "")
    if given.keys() != form.announced:
        raise S3Error("MalformedTrailerError", "the trailers of the body are not those x-amz-trailer announced")
    if form.chain and form.announced:
        text = "".join(f"{name}:{given[name]}\n" for name in sorted(given))
        form.chain.follow("TRAILER", signature, hashlib.sha256(text.encode("latin-1")).hexdigest())
    if await pieces.more():
        raise S3Error("IncompleteBody", "there are bytes after the end of the body")
    form.trailers.update(given)


class _Pieces:
    """Lines and runs of bytes out of pieces of any size, holding no more than one piece and one line."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._piece = b""
        self._at = 0

    async def more(self) -> bool:
        """Whether there is another byte."""
        while self._at == len(self._piece):
            piece = await anext(self._source, None)
            if piece is None:
                return False
            self._piece, self._at = piece, 0
        return True

    async def some(self, limit: int) -> bytes:
        """At least one byte and at most `limit`. Raises S3Error at the end."""
        if not await self.more():
            raise S3Error("IncompleteBody", "the body ends in the middle of a chunk")
        start = self._at
        self._at = min(len(self._piece), start + limit)
        return self._piece[start : self._at]

    async def line(self) -> bytes:
        """A line without its end; the empty one, too, at the very end."""
        line = bytearray()
        while await self.more():
            end = self._piece.find(b"\n", self._at)
            line += await self.some(_LONGEST_LINE if end < 0 else end + 1 - self._at)
            if line.endswith(b"\n"):
                return bytes(line[:-1]).removesuffix(b"\r")
            if len(line) > _LONGEST_LINE:
                raise S3Error("IncompleteBody", "a line between the chunks of the body is too long")
        if line:
            raise S3Error("IncompleteBody", "the body ends in the middle of a line")
        return b""
