"""Messages between the host process and PID 1: a length, JSON, and descriptors beside it.

To the host everything that arrives is hostile: `split` and `answer_to` let pass what the protocol knows, nothing else.
"""

from __future__ import annotations

import array
import errno
import json
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

_LENGTH = struct.Struct("<I")
_SCAN: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]
MAX_FDS = 6
SPAWN = b'{"op": "spawn"}'  # to the spawner, as all its requests with descriptors beside it
# Plain numbers: what Python makes of two flags of an enumeration takes longer than the call they are for.
_CLOEXEC, _LOST, _WHOLE = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC), int(socket.MSG_WAITALL)
_SOCKET, _RIGHTS = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)
_ROOM = socket.CMSG_SPACE(4 * MAX_FDS)


def _encoder() -> Callable[[Any], str]:
    """One encoder for all messages: a JSONEncoder makes a new one for each, in a twentieth of PID 1's memory."""
    plain = json.JSONEncoder()
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    encode = make(None, plain.default, json.encoder.encode_basestring_ascii, None, ": ", ", ", False, False, True)
    return lambda message: "".join(encode(message, 0))


_ENCODE = _encoder()


class Operation(NamedTuple):
    """What belongs to a request, and to the answer to it, if it does not fail."""

    event: str  # of the answer
    brings: int = 0  # descriptors beside the request
    opens: int = 0  # descriptors beside the answer
    waits: bool = False  # for as long as every process is halted


OPERATIONS = {
    "ping": Operation("done", waits=True),
    "mount": Operation("done", brings=1),
    "boot": Operation("done"),
    "run": Operation("exited", brings=3, waits=True),
    "pull": Operation("exited", brings=3, waits=True),
    "push": Operation("exited", brings=3, waits=True),
    "kill": Operation("done"),
    "clear": Operation("done"),
    "read": Operation("opened", opens=1),
    "write": Operation("opened", opens=1, waits=True),
    "place": Operation("done", waits=True),
    "listen": Operation("opened", opens=1),
    "connect": Operation("opened", opens=1),
    "terminal": Operation("opened", opens=2),
    "namespaces": Operation("opened", opens=2),
    "apart": Operation("opened", opens=6),
    "halt": Operation("done"),
    "go": Operation("done"),
    "quiet": Operation("done"),
}
UNKNOWN = Operation("failed")  # whatever it is, it can be answered by that alone


def encode(message: dict[str, Any]) -> bytes:
    """A message with its length in front."""
    payload = _ENCODE(message).encode()
    return _LENGTH.pack(len(payload)) + payload


def decode(payload: bytes | bytearray) -> Any:
    """What one message says; ValueError when it is not one JSON value and nothing else."""
    text = payload.decode()
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:
        raise ValueError("a message that is no JSON") from None
    if end != len(text):
        raise ValueError("a message with something behind it")
    return value


def split(buffer: bytearray, limit: int) -> list[dict[str, Any]]:
    """Take every whole message off the front of `buffer`; ValueError over `limit` or when it is not an object."""
    messages = []
    while len(buffer) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer)
        if length > limit:
            raise ValueError(f"a message of {length} bytes")
        if len(buffer) < _LENGTH.size + length:
            break
        try:
            message = decode(buffer[_LENGTH.size : _LENGTH.size + length])
        except RecursionError:
            raise ValueError("a message of too many levels") from None
        if not isinstance(message, dict):
            raise ValueError("a message that is not an object")
        messages.append(message)
        del buffer[: _LENGTH.size + length]
    return messages


def answer_to(op: str, message: dict[str, Any]) -> int:
    """How many descriptors belong to this answer to a request; ValueError when it is none that `op` can have."""
    event, operation = message.get("event"), OPERATIONS.get(op, UNKNOWN)
    if event == "failed":
        number = message.get("errno")
        if number is not None and (not _is_number(number) or not 0 < number < 4096):
            raise ValueError("an error that is no number")
    elif event != operation.event:
        raise ValueError(f"an answer that is none to {op!r}")
    elif event == "exited" and not (_is_number(message.get("status")) and -128 < message["status"] < 256):
        raise ValueError("a status that is none")
    count = operation.opens if event == "opened" else 0
    if message.get("fds", 0) != count:
        raise ValueError(f"an answer with {str(message.get('fds'))[:20]} descriptors")
    return count


def _is_number(value: Any) -> bool:
    return type(value) is int  # neither a bool nor a float, which may be an infinite one


def ancillary(fds: list[int]) -> list[tuple[int, int, bytes]]:
    """Control data that carries descriptors."""
    return [(_SOCKET, _RIGHTS, array.array("i", fds).tobytes())] if fds else []


def received_fds(control: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors in received control data."""
    if not control:
        return []
    fds = array.array("i")
    for level, kind, data in control:
        if level == _SOCKET and kind == _RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def receive_some(sock: socket.SocketType, size: int, flags: int = 0) -> tuple[bytes, list[tuple[int, int, bytes]]]:
    """recvmsg(2) with room for descriptors, which no program executed later inherits."""
    data, control, told, _ = sock.recvmsg(size, _ROOM, flags | _CLOEXEC)
    if told & _LOST:  # this process has no room for them: a command would get the wrong ones
        for fd in received_fds(control):
            os.close(fd)
        raise OSError(errno.EMFILE, "descriptors were lost")
    return data, control


def send(sock: socket.SocketType, message: dict[str, Any], fds: list[int]) -> None:
    """Send one message from a blocking socket."""
    data = encode(message)
    sent = sock.sendmsg([data], ancillary(fds))
    if sent < len(data):
        sock.sendall(data[sent:])


def receive(sock: socket.SocketType) -> tuple[dict[str, Any], list[int]] | None:
    """Receive one message on a blocking socket; None at end of file."""
    head, control = receive_some(sock, _LENGTH.size, _WHOLE)
    if len(head) < _LENGTH.size:
        return None
    (left,) = _LENGTH.unpack(head)
    payload = sock.recv(left, _WHOLE)
    while left > len(payload):  # a signal may cut a waiting receive short
        piece = sock.recv(left - len(payload), _WHOLE)
        if not piece:
            return None
        payload += piece
    return decode(payload), received_fds(control)
