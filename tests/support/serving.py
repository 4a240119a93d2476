"""`forkyard serve` as users run it: a process of its own, with a key."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forkyard.server.keys import opened_keys


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    url: str
    key: str
    process: subprocess.Popen[bytes]

    @property
    def variables(self) -> dict[str, str]:
        """What points programs at it."""
        return {"FORKYARD_URL": self.url, "FORKYARD_KEY": self.key}


@contextmanager
def served(home: Path, port: int = 0) -> Iterator[Served]:
    """A server over a FORKYARD_HOME, stopped in order at the end unless it has ended."""
    with opened_keys(home) as keys:
        if (left := keys.get("tests")) is not None:
            keys.revoke(left.id)
        _, key = keys.create("tests")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FORKYARD_", "ARCHIL_"))}
    environ |= {"FORKYARD_HOME": str(home), "FORKYARD_MIRRORS": os.environ["FORKYARD_MIRRORS"]}
    command = [sys.executable, "-u", "-m", "forkyard.cli", "serve", "--port", str(port)]
    with (home / "serve.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environ)
    with process:
        try:
            yield Served(_told(process, home), key, process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()


def _told(process: subprocess.Popen[bytes], home: Path) -> str:
    assert process.stdout is not None
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if not select.select([process.stdout], [], [], 1)[0]:
            continue
        word, _, rest = process.stdout.readline().decode().partition(" ")
        if word == "serving":
            return rest.strip()
        if not rest:
            break
    raise AssertionError((home / "serve.log").read_text())
