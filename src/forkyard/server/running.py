"""Whether a server runs on this FORKYARD_HOME, and where: told by files, for `forkyard env`."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from forkyard.files import replace
from forkyard.server.address import Address
from forkyard.server.files import server_home


class Sole:
    """The only server of this home, while entered and for as long as this process lives. Raises BlockingIOError."""

    def __init__(self, home: Path) -> None:
        self._path = server_home(home) / "lock"

    def __enter__(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs: where it listens, and the further hosts its proxy stands for."""

    address: Address
    mapped: tuple[str, ...] = ()


def note_running(home: Path, running: Running) -> None:
    """Leave word of where the server listens."""
    replace(_file(home), [json.dumps(asdict(running)).encode()], 0o600)


def forget_running(home: Path) -> None:
    """It listens no more."""
    _file(home).unlink(missing_ok=True)


def running_server(home: Path) -> Running | None:
    """The server of this home; None when none runs, whatever a killed one left."""
    try:
        with Sole(home):
            return None
    except BlockingIOError:
        pass
    try:
        noted = json.loads(_file(home).read_bytes())
    except FileNotFoundError:
        return None
    return Running(Address(**noted["address"]), tuple(noted["mapped"]))


def _file(home: Path) -> Path:
    return server_home(home) / "running.json"
