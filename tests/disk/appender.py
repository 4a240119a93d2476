"""A process that appends to a disk: `python appender.py HOME APPENDERS RECORDS ATTEMPT KILL_AFTER`.

Its standard input names for each appender the record to begin with. It tells each record on standard output once it is
acknowledged, and kills itself after so many, while more are being written.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from forkyard.disk import Disks


def record(appender: int, number: int, attempt: str) -> bytes:
    """One line that tells whether it is whole; now and then a long one."""
    length = 30_000 if number % 50 == 7 else number % 300
    return f"{appender}:{number}:{attempt}:{'x' * length}:{length}\n".encode()


async def main() -> None:
    home, appenders, records, attempt = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    kill_after, acknowledged = int(sys.argv[5]), 0
    begin = json.load(sys.stdin)
    disks = Disks(home)
    disk, _ = await disks.create("log")

    async def append(appender: int) -> None:
        nonlocal acknowledged
        for number in range(begin[appender], records):
            await disk.append("all.jsonl", record(appender, number, attempt))
            os.write(1, f"{appender} {number}\n".encode())
            acknowledged += 1
            if acknowledged == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)

    await asyncio.gather(*[append(appender) for appender in range(appenders)])
    await disks.close()


if __name__ == "__main__":
    asyncio.run(main())
