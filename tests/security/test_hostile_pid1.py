"""A PID 1 that lies: whatever it answers, its own sandbox is all it harms, and the host keeps no descriptor of it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.inside import wire
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.live import Live


class Liar:
    """The far end of a sandbox's socket, in the hands of a test."""

    def __init__(self, sandbox: Sandbox, sock: socket.socket) -> None:
        self.sandbox = sandbox
        self.sock = sock

    async def hear(self) -> int:
        """Wait for the next request; returns its id."""
        loop = asyncio.get_running_loop()
        buffer = bytearray()
        while True:
            ready = asyncio.Event()
            loop.add_reader(self.sock.fileno(), ready.set)
            await ready.wait()
            loop.remove_reader(self.sock.fileno())
            data, control = wire.receive_some(self.sock, 1 << 16)
            for fd in wire.received_fds(control):
                os.close(fd)
            buffer += data
            for message in wire.split(buffer, 1 << 20):
                return int(message["id"])

    def say(self, data: bytes, fds: list[int] | None = None) -> None:
        """Send bytes, and descriptors with them."""
        self.sock.sendmsg([data], wire.ancillary(fds or []))


@asynccontextmanager
async def liar(local: LocalProvider) -> AsyncIterator[Liar]:
    """A sandbox whose PID 1 has been replaced by one that says what a test has it say."""
    sandbox = await local.create(SandboxSpec(image="scratch"))
    honest: Live = sandbox._live  # type: ignore[attr-defined]
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with subprocess.Popen(["sleep", "1000"]) as process, theirs:
        sandbox._live = Live(process.pid, os.pidfd_open(process.pid), ours, honest.group)  # type: ignore[attr-defined]
        await honest.kill("it is replaced")
        try:
            yield Liar(sandbox, theirs)
        finally:
            process.kill()
            process.wait()
            await sandbox.close()


def framed(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def message(**fields: Any) -> bytes:
    return framed(json.dumps(fields).encode())


NONSENSE: dict[str, Callable[[int], bytes]] = {
    "a giant": lambda _: struct.pack("<I", 0xFFFFFFFF) + bytes(100),
    "one byte too many": lambda _: struct.pack("<I", (64 << 10) + 1),
    "no JSON": lambda _: framed(b"\xff\xfe{"),
    "nothing": lambda _: framed(b""),
    "a list": lambda _: framed(b"[]"),
    "a number": lambda _: framed(b"7"),
    "too deep": lambda _: framed(b"[" * 60_000),
    "too deep objects": lambda _: framed(b'{"a":' * 12_000),
    "a number of many digits": lambda _: framed(b'{"id": ' + b"9" * 60_000 + b"}"),
    "no id": lambda _: message(event="done", fds=0),
    "an infinite id": lambda _: framed(b'{"id": Infinity, "event": "done"}'),
    "an id that is not a number": lambda _: framed(b'{"id": NaN, "event": "done"}'),
    "a fraction": lambda id: message(id=id + 0.5, event="opened", fds=0),
    "an id as text": lambda id: message(id=str(id), event="opened", fds=0),
    "an id as a list": lambda id: message(id=[id], event="opened", fds=0),
    "true as an id": lambda _: message(id=True, event="done", fds=0),
    "an id of nobody": lambda id: message(id=id + 1000, event="opened", fds=0),
    "a negative id": lambda _: message(id=-1, event="opened", fds=0),
    "no event": lambda id: message(id=id),
    "an unknown event": lambda id: message(id=id, event="exploded", fds=0),
    "an event that is no text": lambda id: message(id=id, event={"a": 1}, fds=0),
    "another event": lambda id: message(id=id, event="exited", status=0, fds=0),
    "a descriptor it did not send": lambda id: message(id=id, event="opened", fds=1),
    "fewer than none": lambda id: message(id=id, event="opened", fds=-1),
    "too many": lambda id: message(id=id, event="opened", fds=10**30),
    "as text": lambda id: message(id=id, event="opened", fds="1"),
    "an error by name": lambda id: message(id=id, event="failed", errno="ENOENT", fds=0),
    "an error of many digits": lambda id: message(id=id, event="failed", errno=10**40, fds=0),
    "an error that is true": lambda id: message(id=id, event="failed", errno=True, fds=0),
    "a preparation that failed": lambda _: message(id=0, event="failed", message=["x"] * 9000),
}


def held(fd: int) -> int:
    """How many descriptors this process has of what `fd` is one of."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += os.path.samestat(entry.stat(), os.fstat(fd))
    return found


@pytest.mark.parametrize("what", NONSENSE)
async def test_nonsense_ends_the_sandbox_and_nothing_else(local: LocalProvider, what: str) -> None:
    async with liar(local) as pid1:
        reading = asyncio.create_task(pid1.sandbox.read("/x"))
        request = await pid1.hear()
        pid1.say(NONSENSE[what](request))
        with pytest.raises(SandboxLost) as raised:
            await reading
        assert len(str(raised.value)) < 5000
        with pytest.raises(SandboxLost):
            await pid1.sandbox.read("/x")


def descriptors(tmp_path: Path) -> dict[str, int]:
    (tmp_path / "file").write_text("content")
    left, right = os.pipe()
    os.close(right)
    return {
        "a directory": os.open(tmp_path, os.O_RDONLY),
        "a device": os.open("/dev/zero", os.O_RDONLY),
        "a terminal": os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY),
        "a pipe": left,
        "a socket": socket.socket().detach(),
        "a window into a process": os.open("/proc/self/maps", os.O_RDONLY),
        "a window into the kernel": os.open("/sys/kernel/uevent_seqnum", os.O_RDONLY),
        "a path": os.open(tmp_path / "file", os.O_PATH),
        "one to write": os.open(tmp_path / "file", os.O_WRONLY),
        "a process": os.pidfd_open(os.getpid()),
    }


async def test_only_a_plain_file_is_read(local: LocalProvider, tmp_path: Path) -> None:
    async with liar(local) as pid1:
        for what, fd in descriptors(tmp_path).items():
            before = held(fd)
            reading = asyncio.create_task(pid1.sandbox.read("/x"))
            pid1.say(message(id=await pid1.hear(), event="opened", fds=1), [fd])
            with pytest.raises(SandboxError) as raised:
                await reading
            assert not isinstance(raised.value, SandboxLost), what
            assert held(fd) == before, what
            os.close(fd)


async def test_a_file_that_cannot_be_written_is_a_failed_write(local: LocalProvider, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    async with liar(local) as pid1:
        fd = os.open(tmp_path / "file", os.O_RDONLY)
        writing = asyncio.create_task(pid1.sandbox.write("/x", b"data"))
        pid1.say(message(id=await pid1.hear(), event="opened", fds=1), [fd])
        pid1.say(message(id=await pid1.hear(), event="done", fds=0))  # that what was begun is taken away again
        with pytest.raises(SandboxError, match="cannot write"):
            await writing
        os.close(fd)


async def test_only_a_tcp_socket_is_listened_on(local: LocalProvider, tmp_path: Path) -> None:
    fds = descriptors(tmp_path)
    fds["a socket of this machine"] = socket.socket(socket.AF_UNIX).detach()
    fds["a datagram socket"] = socket.socket(type=socket.SOCK_DGRAM).detach()
    del fds["a socket"]
    async with liar(local) as pid1:
        for what, fd in fds.items():
            before = held(fd)
            listening = asyncio.create_task(pid1.sandbox.listen(80))
            pid1.say(message(id=await pid1.hear(), event="opened", fds=1), [fd])
            with pytest.raises(SandboxError):
                await listening
            assert held(fd) == before, what
            os.close(fd)


@pytest.mark.parametrize("status", [None, "0", True, 0.0, 10**40, -(10**9), [], {}])
async def test_a_status_that_is_none_is_no_result(local: LocalProvider, status: object) -> None:
    async with liar(local) as pid1:
        running = asyncio.create_task(pid1.sandbox.run(["true"]))
        pid1.say(message(id=await pid1.hear(), event="exited", status=status, fds=0))
        with pytest.raises(SandboxLost):
            await running


async def test_descriptors_nobody_asked_for_end_the_sandbox(local: LocalProvider) -> None:
    async with liar(local) as pid1:
        reading = asyncio.create_task(pid1.sandbox.read("/x"))
        await pid1.hear()
        left, right = os.pipe()
        for _ in range(20):
            pid1.say(b"\0", [right])  # the start of a message, over and over
        with pytest.raises(SandboxLost):
            await reading
        assert held(right) == 2
        os.close(left)
        os.close(right)


async def test_a_flood_of_answers_ends_the_sandbox(local: LocalProvider) -> None:
    async with liar(local) as pid1:
        reading = asyncio.create_task(pid1.sandbox.read("/x"))
        request = await pid1.hear()
        refusal = message(id=request, event="failed", errno=2, message="no", fds=0)
        pid1.say(refusal * 100)
        with pytest.raises((FileNotFoundError, SandboxLost)):
            await reading
        with pytest.raises(SandboxLost):
            await pid1.sandbox.read("/x")


async def test_a_long_reason_is_cut(local: LocalProvider) -> None:
    async with liar(local) as pid1:
        reading = asyncio.create_task(pid1.sandbox.read("/x"))
        pid1.say(message(id=await pid1.hear(), event="failed", errno=None, message="x" * 60_000, fds=0))
        with pytest.raises(SandboxError) as raised:
            await reading
        assert len(str(raised.value)) < 5000


async def test_a_liar_harms_no_other_sandbox(local: LocalProvider) -> None:
    other = await local.create(SandboxSpec())
    async with liar(local) as pid1:
        reading = asyncio.create_task(pid1.sandbox.read("/x"))
        await pid1.hear()
        pid1.say(framed(b"]"))
        with pytest.raises(SandboxLost):
            await reading
        assert (await other.run(["echo", "fine"])).stdout == "fine\n"
    await other.close()
