"""The checksums S3 clients send with a body, and hold it to."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import anycrc  # type: ignore[import-untyped]

from forkyard.server.s3.errors import S3Error

PREFIX = "x-amz-checksum-"


class Sum(Protocol):
    """A checksum under way."""

    def update(self, data: bytes, /) -> object:
        """Take further bytes in."""

    def digest(self) -> bytes:
        """The checksum of the bytes so far."""


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


class _Crc:
    def __init__(self, model: str, size: int) -> None:
        self._model: Any = anycrc.Model(model)
        self._size = size
        self._value: int = self._model.calc(b"")

    def update(self, data: bytes, /) -> None:
        self._value = self._model.calc(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


_MAKERS: dict[str, Callable[[], Sum]] = {
    "crc32": _Crc32,
    "crc32c": lambda: _Crc("CRC32-ISCSI", 4),
    "crc64nvme": lambda: _Crc("CRC64-NVME", 8),
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
}
ALGORITHMS = ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")
"""Those of `x-amz-checksum-<name>`."""


def new_sum(algorithm: str) -> Sum:
    """A checksum of no bytes yet."""
    return _MAKERS[algorithm]()


@dataclass(slots=True)
class Promise:
    """One checksum that a client gave for its body: by which algorithm, which, and the code of its breach."""

    name: str
    sum: Sum
    expected: bytes
    breach: str = "BadDigest"

    def hold(self) -> None:
        """Raises S3Error when the bytes taken in are not those the client meant."""
        if self.sum.digest() != self.expected:
            raise S3Error(self.breach, f"the body that arrived is not the one its {self.name} is of; send it again")


@dataclass(slots=True)
class Sums:
    """All that is checked of one body, and what is told to the client about it."""

    promises: list[Promise] = field(default_factory=list)
    awaited: dict[str, Sum] = field(default_factory=dict)  # of trailers, by algorithm
    told: dict[str, str] = field(default_factory=dict)

    def update(self, piece: bytes) -> None:
        """Take further bytes of the body in."""
        for promise in self.promises:
            promise.sum.update(piece)
        for one in self.awaited.values():
            one.update(piece)

    def hold(self, trailers: Mapping[str, str]) -> None:
        """Raises S3Error when a checksum of the head or of the trailers is broken."""
        for algorithm, one in self.awaited.items():
            name = PREFIX + algorithm
            self.promises.append(Promise(name, one, read_digest(name, trailers[name], len(one.digest()))))
            self.told[name] = trailers[name]
        for promise in self.promises:
            promise.hold()


def sums_of(headers: Mapping[str, str], announced: frozenset[str]) -> Sums:
    """What a request's headers and announced trailers promise of its body. Raises S3Error when they are malformed."""
    sums = Sums()
    if "content-md5" in headers:
        expected = read_digest("Content-MD5", headers["content-md5"], 16)
        sums.promises.append(Promise("Content-MD5", new_sum("md5"), expected))
    for algorithm in ALGORITHMS:
        name = PREFIX + algorithm
        one = new_sum(algorithm)
        if name in announced:
            sums.awaited[algorithm] = one
        elif name in headers:
            sums.promises.append(Promise(name, one, read_digest(name, headers[name], len(one.digest()))))
            sums.told[name] = headers[name]
    if len(sums.told) + len(sums.awaited) > 1:
        raise S3Error("InvalidRequest", "a body has one x-amz-checksum header or trailer")
    return sums


def read_digest(name: str, text: str, size: int) -> bytes:
    """The bytes of a checksum in base64. Raises S3Error when it is none of this size."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != size:
        raise S3Error("InvalidDigest", f"{name} is not the base64 of {size} bytes")
    return found
