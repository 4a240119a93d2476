"""What a sandbox opened for the host: whether to trust the descriptor, and the bytes behind it."""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat

from forkyard.errors import SandboxError
from forkyard.values import MIB

_libc = ctypes.CDLL(None)
_PROC_MAGIC, _SYS_MAGIC = 0x9FA0, 0x62656572


def is_plain_file(fd: int) -> bool:
    """A regular file of a disk: /proc and /sys hold "regular" files that are windows into processes."""
    if not stat.S_ISREG(os.fstat(fd).st_mode) or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:
        return False
    buffer = ctypes.create_string_buffer(256)
    if _libc.fstatfs(fd, buffer) != 0:
        return False
    return ctypes.c_long.from_buffer(buffer).value not in (_PROC_MAGIC, _SYS_MAGIC)


def read_all(fd: int, limit: int, path: str, size: int) -> bytes:
    """The content of `fd`, which is closed; SandboxError when there is more than `limit`."""
    with os.fdopen(fd, "rb", buffering=0) as file:
        if size > limit:
            raise SandboxError(f"{path} has {size} bytes, over the {limit} byte limit")
        chunks, size = [], 0
        while data := file.read(MIB):
            size += len(data)
            if size > limit:
                raise SandboxError(f"{path} grew over the {limit} byte limit while it was read")
            chunks.append(data)
    return b"".join(chunks)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` to `fd`, which is closed."""
    with os.fdopen(fd, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) or 0 :]
