"""Tar archives in pieces: a stream of members becomes several whole archives of bounded size."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Generator, Iterable

from forkyard.image.members import Member, add_member, attributes
from forkyard.sandbox import Sandbox
from forkyard.values import MIB

PIECE_BYTES = 64 * MIB
_LONGEST_CHARACTER = 4  # bytes


def pieces(members: Iterable[Member], limit: int = PIECE_BYTES) -> Generator[bytes, None, None]:
    """Archives that together hold the members in order, each at most `limit` bytes long or of one member."""
    buffer, archive = _empty()
    filled = False
    for info, content in members:
        if filled and buffer.tell() + _room(info) > limit:
            archive.close()
            yield buffer.getvalue()
            buffer, archive = _empty()
        add_member(archive, info, content)
        filled = True
    archive.close()
    if filled:
        yield buffer.getvalue()


def _room(info: tarfile.TarInfo) -> int:
    """What a member takes at most, headers and the end of the archive with it."""
    values = attributes(info).values()
    return info.size + tarfile.RECORDSIZE + sum(_LONGEST_CHARACTER * len(value) for value in values)


def _empty() -> tuple[io.BytesIO, tarfile.TarFile]:
    buffer = io.BytesIO()
    archive = tarfile.open(  # noqa: SIM115 - `pieces` closes it; what is dropped holds nothing but memory
        fileobj=buffer, mode="w", encoding="utf-8", errors="surrogateescape"
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
