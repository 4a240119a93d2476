"""The host's end of a sandbox's socket: messages that wait for room stay whole, and a wait can be ended early."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from forkyard.sandbox.held.channel import Channel, Interrupted, Reply
from forkyard.sandbox.held.orders import Order
from forkyard.sandbox.inside import wire

LARGE = "x" * (4 << 20)  # more than any socket takes at once


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def heard(sock: socket.socket, count: int) -> list[str]:
    """So many messages, read by and by, as their "say"."""
    sock.setblocking(False)
    buffer = bytearray()
    found: list[str] = []
    while len(found) < count:
        buffer += await asyncio.get_running_loop().sock_recv(sock, 1 << 16)
        found += [str(message["say"]) for message in wire.split(buffer, 8 << 20)]
    assert not buffer
    return found


async def test_messages_that_wait_for_room_arrive_whole_and_in_turn(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    channel = Channel(ours, lambda: None)
    said = [LARGE, "a", LARGE + "b", "c", "d", LARGE]
    sending = [asyncio.create_task(channel.send({"say": say}, [])) for say in said]
    await asyncio.sleep(0)
    assert await heard(theirs, len(said)) == said
    await asyncio.gather(*sending)
    await channel.send({"say": "at once"}, [])
    assert await heard(theirs, 1) == ["at once"]
    channel.end("the test is over")


async def test_a_sender_that_is_cancelled_garbles_nothing_of_those_who_wait(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    channel = Channel(ours, lambda: None)
    begun = asyncio.create_task(channel.send({"say": LARGE}, []))
    waiting = [asyncio.create_task(channel.send({"say": say}, [])) for say in ("one", "two", "three")]
    await asyncio.sleep(0)
    for task in (begun, waiting[1]):  # the first is under way, and goes on
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert await heard(theirs, 3) == [LARGE, "one", "three"]
    channel.end("the test is over")


async def test_an_interrupted_wait_ends_once_and_the_answer_still_comes(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    channel = Channel(ours, lambda: None)
    request = channel.new_id()
    answer = await channel.post(request, "run", [])
    assert channel.interrupt(request)
    with pytest.raises(Interrupted) as interrupted:
        await answer
    later: asyncio.Future[Reply] = interrupted.value.later
    wire.send(theirs, {"id": request, "event": "exited", "fds": 0, "status": 0}, [])
    assert (await later)[0]["status"] == 0
    assert not channel.interrupt(request), "it has been answered"
    channel.end("the test is over")


@pytest.mark.parametrize("number", [errno.EAGAIN, None])
async def test_a_command_that_cannot_be_killed_costs_the_sandbox(
    pair: tuple[socket.socket, socket.socket], number: int | None
) -> None:
    ours, theirs = pair
    given_up: list[str] = []
    channel = Channel(ours, lambda: None)
    killing = asyncio.ensure_future(Order(channel, given_up.append).kill())
    theirs.setblocking(False)
    (asked,) = wire.split(bytearray(await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)), 1 << 16)
    assert asked["op"] == "kill"
    failed = {"id": asked["id"], "event": "failed", "fds": 0, "errno": number, "message": "they fork too fast"}
    wire.send(theirs, failed, [])
    await killing
    (why,) = given_up
    assert "they fork too fast" in why
    channel.end("the test is over")


async def test_an_answer_that_has_come_is_not_interrupted(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    channel = Channel(ours, lambda: None)
    first, second = channel.new_id(), channel.new_id()
    answer = await channel.post(first, "ping", [])
    other = await channel.post(second, "ping", [])
    for request in (first, second):
        wire.send(theirs, {"id": request, "event": "done", "fds": 0}, [])
    await other
    assert not channel.interrupt(first)
    assert (await answer)[0]["event"] == "done"
    assert not channel.interrupt(99), "nothing was asked under this number"
    channel.end("the test is over")


@pytest.mark.parametrize("payload", [b"{} {}", b"[]x", b" {}", b"", b"\xff"])
def test_a_payload_is_one_json_value_and_nothing_else(payload: bytes) -> None:
    with pytest.raises(ValueError):
        wire.decode(payload)


def test_what_is_encoded_is_what_is_decoded() -> None:
    said = {"id": 1, "argv": ["é", "\udc80", ""], "env": {"A": '"\\'}, "none": None, "yes": True, "deep": [[{}]]}
    message = wire.encode(said)
    assert int.from_bytes(message[:4], "little") == len(message) - 4
    assert wire.decode(message[4:]) == said
