"""Files of a running sandbox: its PID 1 opens them, and the bytes go through the descriptor, if it can be trusted."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import stat
from contextlib import suppress
from typing import Any

from forkyard.errors import NotAFile, SandboxError, TooLarge
from forkyard.sandbox.common import path_error
from forkyard.sandbox.held.channel import Channel
from forkyard.values import MIB, new_id

_libc = ctypes.CDLL(None)
_PROC_MAGIC, _SYS_MAGIC = 0x9FA0, 0x62656572


async def read_file(channel: Channel, path: str, inside: str, max_bytes: int) -> bytes:
    """As `Sandbox.read` of `path`, which is `inside` when told from "/"."""
    fd = await _open(channel, "read", path, inside)
    size = os.fstat(fd).st_size
    try:
        if size <= MIB:
            return read_all(fd, max_bytes, path, size)
        # The thread owns the descriptor: a cancelled read goes on in it, and must not meet another's number.
        return await asyncio.shield(asyncio.to_thread(read_all, fd, max_bytes, path, size))
    except OSError as err:
        raise SandboxError(f"cannot read {path}: {err.strerror}") from err


async def write_file(channel: Channel, path: str, inside: str, data: bytes, mode: int) -> None:
    """As `Sandbox.write` to `path`, which is `inside` when told from "/"."""
    new = f".{new_id()}"  # beside the old one, whose place it takes when it is whole
    try:
        fd = await _open(channel, "write", path, inside, mode=mode, new=new)
        try:
            if len(data) <= MIB:
                write_all(fd, data)
            else:
                await asyncio.shield(asyncio.to_thread(write_all, fd, data))
        except OSError as err:
            raise SandboxError(f"cannot write {path}: {err.strerror}") from err
        await _place(channel, path, inside, new)
    except BaseException:
        with suppress(SandboxError, OSError):
            await _place(channel, path, inside, new, keep=False)
        raise


async def _place(channel: Channel, path: str, inside: str, new: str, keep: bool = True) -> None:
    try:
        await channel.request("place", path=inside, new=new, keep=keep)
    except OSError as err:
        raise path_error(err, path) from err


async def _open(channel: Channel, op: str, path: str, inside: str, **fields: Any) -> int:
    try:
        _, fds = await channel.request(op, path=inside, **fields)
    except OSError as err:
        raise path_error(err, path) from err
    if len(fds) != 1 or not is_plain_file(fds[0]):
        for fd in fds:
            os.close(fd)
        raise NotAFile(f"{path} is not a regular file")
    os.set_blocking(fds[0], True)
    return fds[0]


def is_plain_file(fd: int) -> bool:
    """A regular file of a disk: /proc and /sys hold "regular" files that are windows into processes."""
    if not stat.S_ISREG(os.fstat(fd).st_mode) or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:
        return False
    buffer = ctypes.create_string_buffer(256)
    if _libc.fstatfs(fd, buffer) != 0:
        return False
    return ctypes.c_long.from_buffer(buffer).value not in (_PROC_MAGIC, _SYS_MAGIC)


def read_all(fd: int, limit: int, path: str, size: int) -> bytes:
    """The content of `fd`, which is closed; TooLarge when there is more than `limit`."""
    with os.fdopen(fd, "rb", buffering=0) as file:
        if size > limit:
            raise TooLarge(f"{path} has {size} bytes, over the {limit} byte limit")
        chunks, size = [], 0
        while data := file.read(MIB):
            size += len(data)
            if size > limit:
                raise TooLarge(f"{path} grew over the {limit} byte limit while it was read")
            chunks.append(data)
    return b"".join(chunks)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` to `fd`, which is closed."""
    with os.fdopen(fd, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) or 0 :]
