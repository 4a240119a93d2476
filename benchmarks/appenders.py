"""Many append to one object of a disk through the server, which is killed in between; what then is there is checked.

    python -m benchmarks.appenders [--appenders 64] [--records 1000] [--kills 3]

Each appender is a client of `forkyard serve` with a connection of its own, and sends its records one after the other.
At a kill (SIGKILL, with all of them under way) the next server is started, and each goes on with the record it has no
answer for, under another number of its attempt. In the end every record that was acknowledged has to be there, whole,
once, and in its appender's order; of those without an answer each may be there once or not; and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from forkyard.server.keys import opened_keys

CLI = (sys.executable, "-m", "forkyard.cli")
OBJECT = "/appended/log.jsonl"

Record = tuple[int, int, int]
"""Whose, which of theirs, and at which attempt."""


class Server:
    """`forkyard serve` over one home, again and again."""

    def __init__(self, home: Path) -> None:
        self._env = {**os.environ, "FORKYARD_HOME": str(home)}
        self._log = home / "serve.log"
        with opened_keys(home) as keys:
            _, self.key = keys.create("appenders")
        self.port = 0
        self.up = asyncio.Event()
        self.life = 0

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *CLI, "serve", "-e", "subprocess", "--port", "0", env=self._env, stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode()
        if not line.startswith("serving"):
            raise RuntimeError(self._log.read_text())
        self.port = int(line.strip().rpartition(":")[2])
        self.life += 1
        self.up.set()

    async def end(self, number: signal.Signals) -> None:
        self.up.clear()
        self._process.send_signal(number)
        await self._process.wait()

    def ask(self, method: str, path: str) -> tuple[bytes, str]:
        """Body and ETag of an answer."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, b"" if method == "PUT" else None, {"Authorization": self.key})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            return answer.read(), answer.headers.get("ETag", "").strip('"')


@dataclass(slots=True)
class Told:
    """What the appenders know."""

    acknowledged: list[Record] = field(default_factory=list)
    unanswered: set[Record] = field(default_factory=set)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def reached(self, count: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.acknowledged) >= count)

    async def note(self, record: Record) -> None:
        self.acknowledged.append(record)
        async with self.changed:
            self.changed.notify_all()


def line_of(record: Record) -> bytes:
    """A line that tells whether it is whole; now and then a long one."""
    number = record[1]
    length = 30_000 if number % 50 == 7 else number * 37 % 300
    return f"{':'.join(map(str, record))}:{'x' * length}:{length}\n".encode()


async def append(server: Server, told: Told, appender: int, records: int) -> None:
    """All records of one appender, over as many lives of the server as it takes."""
    number = attempt = 0
    while number < records:
        await server.up.wait()
        life = server.life
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            with closing(writer):
                while number < records:
                    record = (appender, number, attempt)
                    told.unanswered.add(record)
                    await sent(server, reader, writer, line_of(record))
                    told.unanswered.remove(record)
                    await told.note(record)
                    number += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            if server.up.is_set() and server.life == life:
                raise  # nobody killed it
            attempt += 1


async def sent(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
    head = f"PUT {OBJECT}?append=true HTTP/1.1\r\nHost: forkyard\r\nAuthorization: {server.key}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    answer = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", answer)
    rest = await reader.readexactly(int(length[1]) if length else 0)
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError((answer + rest).decode())


async def appended(home: Path, appenders: int, records: int, kills: int) -> float:
    """Have them append, with so many kills in between, and check what is there; the seconds it took."""
    server, told = Server(home), Told()
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.end, signal.SIGTERM)
        await asyncio.to_thread(server.ask, "PUT", "/appended")
        await asyncio.to_thread(server.ask, "PUT", OBJECT)  # of those who make an object, one alone is let through
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for appender in range(appenders):
                group.create_task(append(server, told, appender, records))
            for kill in range(1, kills + 1):
                await told.reached(appenders * records * kill // (kills + 1))
                await server.end(signal.SIGKILL)
                await server.start()
        took = time.perf_counter() - began
        check(told, *await asyncio.to_thread(server.ask, "GET", OBJECT), appenders * records)
    return took


def check(told: Told, data: bytes, etag: str, planned: int) -> None:
    found: list[Record] = []
    for line in data.splitlines(keepends=True):
        appender, number, attempt = map(int, line.split(b":", 3)[:3])
        found.append((appender, number, attempt))
        assert line == line_of(found[-1]), f"torn: {line[:80]!r}"
    acknowledged = set(told.acknowledged)
    assert len({record[:2] for record in acknowledged}) == planned
    assert max(Counter(found).values()) == 1, "a record is there twice"
    assert not (lost := acknowledged - set(found)), f"lost: {sorted(lost)[:5]}"
    assert set(found) <= acknowledged | told.unanswered
    ordered = [record for record in found if record in acknowledged]
    assert sorted(ordered, key=lambda record: record[0]) == sorted(ordered), "not in the appenders' order"
    assert etag == hashlib.md5(data).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appenders", type=int, default=64)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        took = asyncio.run(appended(Path(home), asked.appenders, asked.records, asked.kills))
    count = asked.appenders * asked.records
    print(f"{count} records of {asked.appenders} appenders in {took:.1f} s ({count / took:.0f} a second), with")
    print(f"{asked.kills} kills of the server and its starts in between: none lost, none torn, none twice")


if __name__ == "__main__":
    main()
