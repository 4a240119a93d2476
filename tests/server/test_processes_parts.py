"""What the process socket is made of: kept output, input on its way, tickets, and a process nobody reads."""

from __future__ import annotations

import asyncio
import base64
import time
import uuid

from hypothesis import given
from hypothesis import strategies as st

from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.values import Stream
from forkyard.server.processes.feed import LIMIT, Feed
from forkyard.server.processes.output import KEPT, Log, Memory
from forkyard.server.processes.served import WINDOW, Exit, ServedProcess
from forkyard.server.processes.tickets import Tickets

SANDBOX, KEY = str(uuid.UUID(int=7)), "00112233aabbccdd"
STREAMS: dict[int, Stream] = {1: "stdout", 2: "stderr"}
pieces = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=300)), max_size=60)


def frames(log: Log, cursor: int) -> list[tuple[int, int, bytes]]:
    """Number of the stream, offset and bytes of every frame from a cursor on."""
    found = []
    while (frame := log.frame(cursor)) is not None:
        message, after = frame
        assert len(message) <= (64 << 10) + 9
        assert after > cursor
        found.append((message[0], int.from_bytes(message[1:9], "big"), message[9:]))
        cursor = after
    return found


@given(pieces, st.integers(0, 4000), st.integers(0, 4000))
def test_a_log_gives_every_byte_it_keeps_once_in_order_with_its_offset(
    written: list[tuple[int, bytes]], cursor: int, limit: int
) -> None:
    log = Log(Memory(), limit + 400)
    whole = b""
    streams: list[int] = []
    for number, data in written:
        log.add(STREAMS[number], data)
        whole += data
        streams += [number] * len(data)
    assert log.end == len(whole)
    found = frames(log, cursor)
    at = found[0][1] if found else len(whole)
    assert at >= min(cursor, len(whole))
    for number, offset, data in found:
        assert offset == at
        assert data == whole[offset : offset + len(data)]
        assert set(streams[offset : offset + len(data)]) == {number}
        at += len(data)
    assert at == len(whole) or cursor > len(whole)


def test_a_log_is_bounded_however_small_the_pieces_are() -> None:
    log = Log(Memory())
    for _ in range(50_000):
        log.add("stdout", b"a")
        log.add("stderr", b"b")
    assert log.end == 100_000
    assert log._cost <= KEPT
    assert len(log._pieces) < 11_000
    assert frames(log, 0)[-1] == (2, 99_999, b"b")


def test_many_small_pieces_of_one_stream_are_few_frames() -> None:
    log = Log(Memory())
    for _ in range(100_000):
        log.add("stdout", b"x")
    assert len(frames(log, 0)) == 2


def test_what_all_keep_together_is_bounded_and_the_one_written_longest_ago_loses() -> None:
    memory = Memory(limit=10_000)
    old, new = Log(memory), Log(memory)
    old.add("stdout", b"o" * 6000)
    new.add("stdout", b"n" * 6000)
    assert (frames(old, 0), len(frames(new, 0)[0][2])) == ([], 6000)
    old.add("stdout", b"p" * 100)
    assert frames(old, 0) == [(1, 6000, b"p" * 100)]
    memory.drop(new)
    assert memory._used == old._cost
    memory.drop(old)
    assert memory._used == 0


def test_a_ticket_is_for_one_sandbox_and_taken_once() -> None:
    tickets = Tickets()
    ticket, until = tickets.sell(SANDBOX, KEY)
    assert 0 < until - time.time() <= 60
    assert tickets.take(ticket) == (SANDBOX, KEY)
    assert tickets.take(ticket) is None
    other, _ = tickets.sell(SANDBOX, KEY)
    assert Tickets().take(other) is None
    assert tickets.take(other) == (SANDBOX, KEY)


def test_no_changed_ticket_is_taken() -> None:
    tickets = Tickets()
    ticket, _ = tickets.sell(SANDBOX, KEY)
    whole = base64.urlsafe_b64decode(ticket + "==")
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        assert tickets.take(base64.urlsafe_b64encode(changed).decode().rstrip("=")) is None
    for text in ("", "=", "a", "é", "\0", ticket[:-1], ticket + "AAAA", f" {ticket}", ticket * 50):
        assert tickets.take(text) is None
    assert tickets.take(ticket) is not None


async def test_input_waits_for_its_process_in_bounded_memory_and_stays_in_order(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    process = await box.spawn("while [ ! -e /go ]; do sleep 0.02; done; sha256sum; sleep 100")
    feed = Feed(process)
    running = asyncio.ensure_future(feed.run())
    piece = bytes(200_000)
    put = 0
    while not (waiting := asyncio.ensure_future(feed.put(piece))).done():
        await asyncio.wait([waiting], timeout=0.2)
        if not waiting.done():
            break
        put += 1
    assert LIMIT <= put * len(piece) <= LIMIT + len(piece) * 3
    await box.write("/go", b"")
    await waiting
    await feed.put(None)
    await running
    await feed.put(b"after its end: dropped")
    async for _, data in process.output():
        assert len(data) == 68
        break
    await process.kill()


async def test_a_reader_that_takes_nothing_halts_a_process_for_a_while_only(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    process = await box.spawn("head -c 5000000 /dev/zero")
    served = ServedProcess("id", process, Log(Memory()), lambda why: None, patience=1.0)
    start = time.monotonic()
    living = asyncio.ensure_future(served.live(None))
    with served.read_from(0) as reader:
        while served.log.end <= WINDOW:
            await served.news.wait()
        halted = served.log.end
        await served.news.wait()
        assert time.monotonic() - start >= 1.0
        assert halted < WINDOW + (128 << 10)
        await living
        assert served.exit == Exit("completed", 0)
        assert reader.given_up
    assert served.log.end == 5_000_000
