"""Large objects pass through the server without being held by it."""

from __future__ import annotations

import hashlib
import http.client
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.server.s3parts import server_process

MIB = 1 << 20
SIZE = 200 * MIB
PIECE = os.urandom(MIB)


def resident(pid: int, what: str = "VmHWM") -> int:
    """The most bytes of memory a process ever held."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def open_files(pid: int) -> set[str]:
    """The names of the files a process has open."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(link.readlink().name)
    return found


def pieces() -> Iterator[bytes]:
    for _ in range(SIZE // MIB):
        yield PIECE


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True])
def test_an_object_of_200_mb_takes_little_memory(tmp_path: Path, chunked: bool) -> None:
    with server_process(tmp_path) as (port, key, pid):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
        headers = {"Authorization": key, "Content-Length": str(SIZE)}
        connection.request("PUT", "/data/small", b"x" * 100_000, {"Authorization": key})
        connection.getresponse().read()
        before = resident(pid)
        if chunked:  # one chunk that is as large as the object
            frame, end = f"{SIZE:x}\r\n".encode(), b"\r\n0\r\n\r\n"
            headers |= {
                "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                "x-amz-decoded-content-length": str(SIZE),
                "Content-Length": str(SIZE + len(frame) + len(end)),
            }
            connection.request(
                "PUT", "/data/big", (piece for part in ([frame], pieces(), [end]) for piece in part), headers
            )
        else:
            connection.request("PUT", "/data/big", pieces(), headers)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
        digest = hashlib.md5(PIECE * (SIZE // MIB)).hexdigest()
        assert answer.headers["etag"] == f'"{digest}"'
        connection.request("GET", "/data/big", headers={"Authorization": key})
        answer = connection.getresponse()
        sum = hashlib.md5()
        while piece := answer.read(MIB):
            sum.update(piece)
        assert sum.hexdigest() == digest
        connection.close()
        assert resident(pid) - before < 24 * MIB


@pytest.mark.slow
def test_a_reader_who_stops_reading_holds_nothing_up(tmp_path: Path) -> None:
    with server_process(tmp_path) as (port, key, pid):
        headers = {"Authorization": key, "Content-Length": str(SIZE)}
        stuck = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
        stuck.request("PUT", "/data/big", pieces(), headers)
        stuck.getresponse().read()
        before = resident(pid)
        stuck.request("GET", "/data/big", headers={"Authorization": key})
        assert stuck.getresponse().read(MIB) == PIECE
        assert "big" in open_files(pid)
        other = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
        for _ in range(20):
            other.request("GET", "/data/big", headers={"Authorization": key, "Range": "bytes=0-9"})
            assert other.getresponse().read() == PIECE[:10]
        assert resident(pid) - before < 24 * MIB
        stuck.close()
        while "big" in open_files(pid):  # until it notices
            other.request("HEAD", "/data/big", headers={"Authorization": key})
            other.getresponse().read()
        other.request("HEAD", "/data/big", headers={"Authorization": key})
        assert other.getresponse().status == 200
        other.close()
