"""What is said on one process socket: one request, and for those who look on, the process until its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from forkyard.errors import SandboxError, SandboxLost
from forkyard.server.envelope import ApiError, as_json
from forkyard.server.processes.registry import SandboxProcesses
from forkyard.server.processes.served import Exit, Reader, ServedProcess
from forkyard.server.processes.values import Attach, First, Kill, Resize, Start, first_message, later_message

FIRST_SECONDS = 30.0  # for a client to say what it wants
STALLED_SECONDS = 60.0  # for a process to take some of the input it was sent
_NORMAL, _REFUSED, _BROKEN, _LATE = 1000, 1008, 1011, 1013


async def conversed(socket: WebSocket, processes: SandboxProcesses) -> None:
    """Serve an accepted socket until either side leaves it; whatever it was about goes on."""
    with suppress(WebSocketDisconnect):
        try:
            await _answered(socket, processes, await _first(socket))
        except ApiError as err:
            await _say(socket, type="error", error=err.code or "refused", message=str(err))
            await socket.close(_REFUSED)


async def _first(socket: WebSocket) -> First:
    try:
        async with asyncio.timeout(FIRST_SECONDS):
            message = await socket.receive()
    except TimeoutError:
        raise ApiError(408, f"nothing was said for {FIRST_SECONDS:.0f} seconds", "timeout") from None
    return first_message(_text(message))


def _text(message: Any) -> str:
    """A message that must be text."""
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    text = message.get("text")
    if text is None:
        raise ApiError(400, "this message has to be text: a JSON object with a type", "invalid_message")
    return str(text)


async def _answered(socket: WebSocket, processes: SandboxProcesses, asked: First) -> None:
    match asked:
        case Start():
            with processes.seat():
                served = await _started(processes, asked)
                await _say(socket, type="started", process_id=served.id)
                await _looked_on(socket, served, 0)
        case Attach():
            served = processes.get(asked.process_id)
            with processes.seat():
                await _say(socket, type="attached", process_id=served.id)
                await _looked_on(socket, served, asked.offset)
        case Kill():
            await processes.get(asked.process_id).kill()
            await _say(socket, type="killed")
            await socket.close(_NORMAL)
        case Resize():
            await _resized(processes.get(asked.process_id), asked)
            await _say(socket, type="resized")
            await socket.close(_NORMAL)


async def _started(processes: SandboxProcesses, asked: Start) -> ServedProcess:
    try:
        return await processes.start(asked)
    except ApiError:
        raise
    except OSError as err:  # as of a cwd that is missing
        raise ApiError(400, f"cwd {err.filename or asked.cwd}: {err.strerror or err}", "invalid_cwd") from err
    except ValueError as err:
        raise ApiError(400, str(err), "invalid_request") from err
    except SandboxLost as err:
        processes.lost(str(err))
        raise ApiError(409, f"the sandbox has ended: {err}", "sandbox_ended") from err
    except SandboxError as err:
        raise ApiError(500, str(err), "sandbox_error") from err


async def _resized(served: ServedProcess, asked: Resize) -> None:
    try:
        await served.resize(asked.cols, asked.rows)
    except ValueError as err:
        raise ApiError(400, str(err), "no_terminal") from err


async def _looked_on(socket: WebSocket, served: ServedProcess, offset: int) -> None:
    """Pass output to the client and input from it, until the process ends or the client goes."""
    with served.read_from(offset) as reader:
        telling = asyncio.create_task(_told(socket, served, reader))
        try:
            await _hear(socket, served)  # which hears that the socket was closed, whoever did it
        finally:
            if not telling.done():
                telling.cancel()
                await asyncio.wait([telling])
            # When a client goes both may fail of it, and an error that nobody looks at is logged as a fault of ours.
            error = None if telling.cancelled() else telling.exception()
        if error is not None:
            raise error


async def _told(socket: WebSocket, served: ServedProcess, reader: Reader) -> None:
    try:
        await _tell(socket, served, reader)
    except WebSocketDisconnect:
        raise
    except Exception:
        await socket.close(_BROKEN)
        raise


async def _tell(socket: WebSocket, served: ServedProcess, reader: Reader) -> None:
    while True:
        news = served.news
        if (frame := served.log.frame(reader.cursor)) is not None:
            message, cursor = frame
            await socket.send_bytes(message)
            served.taken(reader, cursor)
        elif served.exit is not None:
            await _say_exit(socket, served.exit, served.log.end)
            return
        else:
            await news.wait()


async def _say_exit(socket: WebSocket, end: Exit, cursor: int) -> None:
    beside = {"exit_code": end.code, "exit_reason": end.reason}
    given = {name: value for name, value in beside.items() if value is not None}
    await _say(socket, type="exit", status=end.status, cursor=cursor, **given)
    told = f"process exited with code {end.code}" if end.code is not None else f"process {end.status}"
    await socket.close(_NORMAL, told)


async def _hear(socket: WebSocket, served: ServedProcess) -> None:
    while True:
        message = await socket.receive()
        data = message.get("bytes")
        if data is None:
            later_message(_text(message))
        try:
            async with asyncio.timeout(STALLED_SECONDS):
                await served.put(data)
        except TimeoutError:
            await socket.close(_LATE, "the process does not read its input")
            return


async def _say(socket: WebSocket, **message: Any) -> None:
    await socket.send_text(as_json(message).decode())
