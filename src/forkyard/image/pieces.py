"""Tar archives in pieces: a stream of members becomes several whole archives of bounded size."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Generator, Iterable
from typing import IO

from forkyard.sandbox import Sandbox
from forkyard.values import MIB

PIECE_BYTES = 64 * MIB

Member = tuple[tarfile.TarInfo, IO[bytes] | None]
"""A member and, for a regular file, where its bytes are read from."""


def pieces(members: Iterable[Member], limit: int = PIECE_BYTES) -> Generator[bytes, None, None]:
    """Archives that together hold the members in order, each at most `limit` bytes long or of one member."""
    buffer, archive = _empty()
    filled = False
    for info, content in members:
        if filled and buffer.tell() + info.size + tarfile.RECORDSIZE > limit:
            archive.close()
            yield buffer.getvalue()
            buffer, archive = _empty()
        archive.addfile(info, content)
        filled = True
    archive.close()
    if filled:
        yield buffer.getvalue()


def _empty() -> tuple[io.BytesIO, tarfile.TarFile]:
    buffer = io.BytesIO()
    # GNU headers hold names, links and owners of any size, and bytes that are not UTF-8.
    archive = tarfile.open(  # noqa: SIM115 - `pieces` closes it; what is dropped holds nothing but memory
        fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    )
    return buffer, archive


async def push_members(sandbox: Sandbox, members: Generator[Member, None, None], path: str) -> None:
    """Unpack members into the directory `path` of a sandbox, with one piece in memory at a time.

    The members are read in another thread, so that files and decompression do not hold up the event loop. Raises
    what `Sandbox.push` and the members raise.
    """
    archives = pieces(members)
    try:
        while (archive := await in_thread(archives)) is not None:
            await sandbox.push(archive, path)
    finally:
        archives.close()
        members.close()


async def in_thread(archives: Generator[bytes, None, None]) -> bytes | None:
    """The next archive, made in another thread; None after the last."""
    step = asyncio.ensure_future(asyncio.to_thread(next, archives, None))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait([step])  # a generator cannot be closed while a thread is inside it
        raise
