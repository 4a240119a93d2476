"""Many append to one object, and the server is killed in between: what was acknowledged is there, once and whole."""

from __future__ import annotations

import http.client
import os
import signal
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.server.s3parts import server_process

APPENDERS = 64
RECORDS = 30


class Appender(threading.Thread):
    """Appends records until it has had its number acknowledged, or the server is gone."""

    def __init__(self, port: int, key: str, name: str) -> None:
        super().__init__(name=name)
        self._port = port
        self._key = key
        self.acknowledged: list[bytes] = []
        self.unanswered: bytes | None = None

    def run(self) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            self._append(connection)

    def _append(self, connection: http.client.HTTPConnection) -> None:
        for number in range(RECORDS):
            record = f"{self.name}-{number}-".encode() + b"x" * (number * 37 % 500) + b"\n"
            try:
                connection.request("PUT", "/data/log?append=true", record, {"Authorization": self._key})
                answer = connection.getresponse()
                answer.read()
            except (ConnectionError, http.client.HTTPException):
                self.unanswered = record
                break
            assert answer.status == 200
            self.acknowledged.append(record)


@pytest.mark.slow
def test_no_acknowledged_record_is_lost_or_torn_by_a_kill(tmp_path: Path) -> None:
    everyone: list[Appender] = []
    for turn in range(3):
        with server_process(tmp_path) as (port, key, pid):
            appenders = [Appender(port, key, f"{turn}-{number}") for number in range(APPENDERS)]
            if turn == 0:  # of those who find no object and make it, one alone would be let through
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                    connection.request("PUT", "/data/log", b"", {"Authorization": key})
                    assert connection.getresponse().status == 200
            for appender in appenders:
                appender.start()
            if turn < 2:
                while sum(len(appender.acknowledged) for appender in appenders) < APPENDERS * RECORDS // 2:
                    appenders[0].join(0.01)
                os.kill(pid, signal.SIGKILL)
            for appender in appenders:
                appender.join()
            everyone += appenders
    with (
        server_process(tmp_path) as (port, key, _),
        closing(http.client.HTTPConnection("127.0.0.1", port)) as connection,
    ):
        connection.request("GET", "/data/log", headers={"Authorization": key})
        found = Counter(connection.getresponse().read().splitlines(keepends=True))
    assert any(appender.unanswered for appender in everyone)
    for appender in everyone:
        assert all(found.pop(record) == 1 for record in appender.acknowledged)
        if appender.unanswered is not None:
            assert found.pop(appender.unanswered, 0) <= 1
    assert not found
