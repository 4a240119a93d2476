"""Files into a sandbox and out of it: by a command that reads or writes them, so it takes sh, cat and mkdir inside."""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from forkyard.client.given import path_inside
from forkyard.client.processes import expected, frame, process_socket, said, started
from forkyard.client.talk import Talk
from forkyard.client.values import FileTransferError
from forkyard.client.verbs import verb
from forkyard.wire import ClosedError

_PIECE = 256 << 10
_BYTES_MODE = 0o644
_PUT = (
    'set -e; if [ -d "$TARGET" ]; then echo "it is a directory" >&2; exit 1; fi; mkdir -p -- "$PARENT"; '
    'trap \'rm -f -- "$TEMP"\' EXIT; cat > "$TEMP"; chmod "$MODE" "$TEMP"; mv -f -- "$TEMP" "$TARGET"; trap - EXIT'
)
_GET = 'exec cat < "$SOURCE"'


class Files:
    """The files of one sandbox."""

    def __init__(self, talk: Talk, sandbox_id: str) -> None:
        self._talk = talk
        self._sandbox_id = sandbox_id

    @verb
    async def upload_file(self, local: str | os.PathLike[str] | bytes, remote: str, *, mode: int | None = None) -> None:
        """Copy a file of this machine, or these bytes, to an absolute path inside, whole or not at all.

        Its mode is that of the file, 0o644 of bytes, unless one is given. FileTransferError; OSError when the local one
        cannot be read.
        """
        path_inside(remote)
        with await asyncio.to_thread(_opened, local) as file:
            bits = _mode_of(file) if mode is None else mode
            parent = remote.rpartition("/")[0] or "/"
            env = {
                "PARENT": parent,
                "TARGET": remote,
                "TEMP": f"{parent.rstrip('/')}/.forkyard-{secrets.token_hex(8)}",
                "MODE": f"{bits:o}",
            }
            process = await started(self._talk, self._sandbox_id, _PUT, env)
            try:
                with suppress(ClosedError):  # it has ended: its end says why
                    while piece := await asyncio.to_thread(file.read, _PIECE):
                        await process.send_input.aio(piece)
                    await process.close_stdin.aio()
                ended = await process.wait.aio()
            finally:
                await process.disconnect.aio()
        if not ended.ok:
            raise FileTransferError(f"{remote} was not written: {ended.stderr[-1000:].strip() or ended.status}")

    @verb
    async def download_file(self, remote: str, local: str | os.PathLike[str]) -> None:
        """Copy a file inside, by its absolute path, to this machine, whole or not at all. FileTransferError."""
        path_inside(remote)
        target = Path(local)
        draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with await asyncio.to_thread(draft.open, "xb") as file:
                await self._fetch(remote, file)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    async def _fetch(self, remote: str, file: BinaryIO) -> None:
        first = {"type": "start", "command": _GET, "terminal": False, "env": {"SOURCE": remote}}
        errors, cursor = b"", 0
        async with process_socket(self._talk, self._sandbox_id) as socket:
            await said(socket, first, "started")
            with suppress(ClosedError):  # it has ended: its end is still to be read
                await socket.send(json.dumps({"type": "close_stdin"}))
            while isinstance(message := await socket.receive(), bytes):
                stream, data, moved = frame(message, cursor)
                if moved is not None and moved != len(data):
                    raise FileTransferError(f"{remote} came too slowly: a part of it was lost")
                cursor += len(data)
                if stream == "stdout":
                    await asyncio.to_thread(file.write, data)
                else:
                    errors = (errors + data)[-1000:]
            end = expected(message, "exit")
        if end.get("status") != "completed" or end.get("exit_code") != 0:
            raise FileTransferError(f"{remote} was not read: {errors.decode(errors='replace').strip()}")


def _opened(local: str | os.PathLike[str] | bytes) -> BinaryIO:
    return io.BytesIO(local) if isinstance(local, bytes) else Path(local).open("rb")


def _mode_of(file: BinaryIO) -> int:
    return _BYTES_MODE if isinstance(file, io.BytesIO) else os.fstat(file.fileno()).st_mode & 0o7777
