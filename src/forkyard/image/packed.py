"""Compressed files, known by how they begin, whatever they are called."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from forkyard.values import MIB

_GZIP, _BZIP2, _XZ, _ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_ZIP = b"PK\x03\x04"
_LONGEST = 6

# What reading an archive raises that is packed wrongly, cut, or none.
UNREADABLE = (
    tarfile.TarError,
    OSError,
    EOFError,
    ValueError,
    OverflowError,
    RecursionError,
    zlib.error,
    lzma.LZMAError,
)


def is_packed(stream: io.BufferedReader) -> bool:
    """Whether what comes next is compressed."""
    return _start(stream).startswith((_GZIP, _BZIP2, _XZ, _ZSTD))


@contextmanager
def unpacked(stream: io.BufferedReader) -> Iterator[IO[bytes]]:
    """The bytes of a stream with their compression, if there is one, taken off. Reading raises one of UNREADABLE."""
    start = _start(stream)
    if start.startswith(_ZIP):
        raise tarfile.ReadError("zip archives are not supported: unpack it and take a plain tar")
    if start.startswith(_ZSTD):
        with _zstd(stream) as plain:
            yield plain
    elif start.startswith(_GZIP):
        with gzip.GzipFile(fileobj=stream) as unzipped:
            yield unzipped  # type: ignore[misc]
    elif start.startswith(_BZIP2):
        with bz2.BZ2File(stream) as unzipped:
            yield unzipped
    elif start.startswith(_XZ):
        with lzma.LZMAFile(stream) as unzipped:
            yield unzipped
    else:
        yield stream


def _start(stream: io.BufferedReader) -> bytes:
    return stream.peek(_LONGEST)[:_LONGEST]


@contextmanager
def _zstd(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    import zstandard  # which takes its time to load, and few archives need it

    try:
        reader: IO[bytes] = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, closefd=False)
        yield io.BufferedReader(reader, MIB)  # type: ignore[type-var]
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
