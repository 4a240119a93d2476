"""For whom a TLS connection is made out: the server name in its first message, read without decrypting anything."""

from __future__ import annotations

import asyncio

_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
_RECORD_LIMIT = 16 << 10
HELLO_LIMIT = 64 << 10
UNRECOGNIZED_NAME = bytes((21, 3, 1, 0, 2, 2, 112))  # the alert that says so to a client


class NotTlsError(Exception):
    """What came is not the beginning of a TLS connection, or not a whole one; the message says what it is."""


async def read_client_hello(reader: asyncio.StreamReader) -> tuple[bytes, str | None]:
    """The bytes of the first message, and the one server name in it (lower case), if it has any. Raises NotTlsError."""
    raw, message = bytearray(), bytearray()
    while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
        try:
            head = await reader.readexactly(5)
            length = int.from_bytes(head[3:], "big")
            if head[0] != _HANDSHAKE or head[1] != 3 or not 0 < length <= _RECORD_LIMIT:
                raise NotTlsError("what is sent is not TLS")
            piece = await reader.readexactly(length)
        except asyncio.IncompleteReadError:
            raise NotTlsError("it ended before it said for whom it is") from None
        raw += head + piece
        message += piece
        if len(raw) > HELLO_LIMIT:
            raise NotTlsError("its first message is too long")
    if message[0] != _CLIENT_HELLO:
        raise NotTlsError("it does not begin as TLS does")
    try:
        return bytes(raw), server_name(bytes(message[4 : 4 + int.from_bytes(message[1:4], "big")]))
    except IndexError:
        raise NotTlsError("its first message is broken") from None


class _Cursor:
    """Reads length-prefixed pieces; IndexError past the end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) < count:
            raise IndexError
        self._at += count
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def piece(self, size: int) -> bytes:
        return self.take(self.number(size))


def server_name(hello: bytes) -> str | None:
    """The server name of a ClientHello's body. NotTlsError when there are several, IndexError when it is broken."""
    body = _Cursor(hello)
    body.take(2 + 32)  # version, random
    body.piece(1)  # session
    body.piece(2)  # ciphers
    body.piece(1)  # compression
    names: list[bytes] = []
    extensions = _Cursor(body.piece(2) if body else b"")
    while extensions:
        kind, content = extensions.number(2), extensions.piece(2)
        if kind == _SERVER_NAME:
            listed = _Cursor(_Cursor(content).piece(2))
            while listed:
                if listed.number(1) != _HOST_NAME:
                    raise NotTlsError("it names its server in an unknown way")
                names.append(listed.piece(2))
    if len(names) > 1:
        raise NotTlsError("it names several servers")
    return names[0].decode("ascii", "replace").lower().removesuffix(".") if names else None
