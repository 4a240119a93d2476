"""Put, get, append and list through the server, beside plain files and beside other S3 servers.

    python -m benchmarks.disks [--rounds 200] [--moto PROGRAM] [--s3rver PROGRAM]

`forkyard` is `forkyard serve`, a process of its own. Beside it, where they are installed: `moto_server` (PyPI
moto[server,s3], keeps objects in memory) and `s3rver` (npm, keeps them in files). All of them are spoken to by the same
client, one connection, each request signed. A plain file is written beside its place, synced and renamed, as a disk
does it and neither peer. Everybody takes turns in every round, so that all see the same machine. Servers that have no
append write the object anew, as one does there.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl

from forkyard.server.s3 import sigv4

SIZES = {"4 KB": 4 << 10, "1 MB": 1 << 20, "64 MB": 64 << 20}
RECORD = b"x" * 199 + b"\n"
LISTED = 500
APPENDERS = 16


class Store(Protocol):
    """What is measured."""

    def put(self, key: str, body: bytes) -> None: ...

    def get(self, key: str) -> int: ...

    def append(self, key: str, data: bytes) -> None: ...

    def list(self, prefix: str) -> None: ...


class Files:
    """Plain files."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def put(self, key: str, body: bytes) -> None:
        path = self._home / key
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f".{path.name}")
        with draft.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)

    def get(self, key: str) -> int:
        size = 0
        with (self._home / key).open("rb") as file:
            while piece := file.read(1 << 20):
                size += len(piece)
        return size

    def append(self, key: str, data: bytes) -> None:
        with (self._home / key).open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def list(self, prefix: str) -> None:
        found = [(entry.name, entry.stat().st_size) for entry in os.scandir(self._home / prefix)]
        assert len(found) >= LISTED


class Bucket:
    """A bucket of an S3 server at a port of this machine."""

    def __init__(self, port: int, access: str, secret: str, *, appends: bool) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._host = f"127.0.0.1:{port}"
        self._access = access
        self._secret = secret
        self._appends = appends
        self._kept: dict[str, bytes] = {}

    def ask(self, method: str, target: str, body: bytes = b"") -> int:
        """One signed request; how many bytes came back."""
        path, _, query = target.partition("?")
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        digest = hashlib.sha256(body).hexdigest() if len(body) < 1 << 16 else "UNSIGNED-PAYLOAD"
        headers = {"host": self._host, "x-amz-date": at, "x-amz-content-sha256": digest}
        scope = sigv4.Scope(at[:8], "us-east-1")
        asked = sigv4.canonical_request(method, path, parse_qsl(query, keep_blank_values=True), headers, digest)
        key = sigv4.signing_key(self._secret, scope)
        signature = sigv4.sign(key, sigv4.string_to_sign(at, scope, asked))
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self._access}/{scope}, SignedHeaders={';'.join(sorted(headers))}, "
            f"Signature={signature}"
        )
        try:
            answer = self._answer(method, target, body, headers)
        except (ConnectionError, http.client.RemoteDisconnected):  # an idle connection is closed by some
            self._connection.close()
            answer = self._answer(method, target, body, headers)
        size = 0
        while piece := answer.read(1 << 20):
            size += len(piece)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {target}: {answer.status}")
        return size

    def _answer(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> http.client.HTTPResponse:
        self._connection.request(method, target, body if method == "PUT" else None, headers)
        return self._connection.getresponse()

    def put(self, key: str, body: bytes) -> None:
        self.ask("PUT", f"/bench/{key}", body)

    def get(self, key: str) -> int:
        return self.ask("GET", f"/bench/{key}")

    def append(self, key: str, data: bytes) -> None:
        if self._appends:
            self.ask("PUT", f"/bench/{key}?append=true", data)
            return
        self._kept[key] = self._kept.get(key, b"") + data
        self.put(key, self._kept[key])

    def list(self, prefix: str) -> None:
        self.ask("GET", f"/bench?list-type=2&max-keys=1000&prefix={prefix}%2F")


@contextmanager
def process(*command: str, port: int, env: dict[str, str] | None = None) -> Iterator[int]:
    """A server that runs and listens; its process id."""
    running = subprocess.Popen(
        command,
        env={**os.environ, **(env or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and running.poll() is None:
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"{command[0]} does not listen")
        yield running.pid
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def forkyard(home: Path) -> Iterator[tuple[Callable[[], Bucket], int]]:
    """Makes clients of our server, each a connection; and its process id."""
    env = {"FORKYARD_HOME": str(home)}
    cli = [sys.executable, "-m", "forkyard.cli"]
    made = subprocess.run(
        [*cli, "key", "create", "bench"], env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    told = dict(line.removeprefix("export ").split("=", 1) for line in made.stdout.split("\n") if "=" in line)
    port = free_port()

    def client() -> Bucket:
        return Bucket(port, told["AWS_ACCESS_KEY_ID"], told["AWS_SECRET_ACCESS_KEY"], appends=True)

    with process(*cli, "serve", "--port", str(port), "-e", "subprocess", port=port, env=env) as pid:
        client().ask("PUT", "/bench")
        yield client, pid


@contextmanager
def peer(name: str, program: str, home: Path) -> Iterator[Bucket]:
    port = free_port()
    arguments = {
        "moto": ["-H", "127.0.0.1", "-p", str(port)],
        "s3rver": ["-d", str(home), "-a", "127.0.0.1", "-p", str(port), "--silent", "--configure-bucket", "bench"],
    }[name]
    with process(program, *arguments, port=port):
        bucket = Bucket(port, "S3RVER", "S3RVER", appends=False)
        if name == "moto":
            bucket.ask("PUT", "/bench")
        yield bucket


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def measure(stores: dict[str, Store], rounds: int) -> dict[str, dict[str, float]]:
    """Medians in milliseconds, by what was done and by whom."""
    found: dict[str, dict[str, float]] = {}

    def turns(what: str, count: int, work: Callable[[Store], object]) -> None:
        taken: dict[str, list[float]] = {name: [] for name in stores}
        for _ in range(count):
            for name, store in stores.items():
                taken[name].append(timed(partial(work, store)))
        found[what] = {name: statistics.median(times) for name, times in taken.items()}

    for label, size in SIZES.items():
        body, key = os.urandom(size), f"o/{size}"
        count = rounds if size < 1 << 20 else rounds // (4 if size == 1 << 20 else 20)
        turns(f"put {label}", count, lambda store, key=key, body=body: store.put(key, body))  # type: ignore[misc]
        turns(f"get {label}", count, lambda store, key=key: store.get(key))  # type: ignore[misc]
    for store in stores.values():
        store.put("o/log", b"")
    turns("append 200 B", rounds, lambda store: store.append("o/log", RECORD))
    for store in stores.values():
        for number in range(LISTED):
            store.put(f"list/{number}", b"x")
    turns(f"list {LISTED}", max(5, rounds // 10), lambda store: store.list("list"))
    return found


def show(found: dict[str, dict[str, float]]) -> None:
    names = list(next(iter(found.values())))
    print(
        f"{'median ms':14}"
        + "".join(f"{name:>12}" for name in names)
        + "".join(f"{f'/ {name}':>12}" for name in names if name != "forkyard")
    )
    for what, times in found.items():
        ours = times["forkyard"]
        ratios = [f"{ours / times[name]:>11.2f}x" for name in names if name != "forkyard"]
        print(f"{what:14}" + "".join(f"{times[name]:>12.2f}" for name in names) + "".join(ratios))


def append_together(client: Callable[[], Bucket], rounds: int) -> None:
    """Many clients append to one object."""

    def work() -> None:
        store = client()
        for _ in range(rounds):
            store.append("o/together", RECORD)

    client().put("o/together", b"")  # of those who make an object, one alone is let through
    threads = [threading.Thread(target=work) for _ in range(APPENDERS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started
    count = APPENDERS * rounds
    assert client().get("o/together") == count * len(RECORD)
    print(f"\n{APPENDERS} clients append to one object: {count / took:.0f} records a second, none lost")


def memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--moto", default=shutil.which("moto_server"))
    parser.add_argument("--s3rver", default=shutil.which("s3rver"))
    asked = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("files", "s3rver"):
            (home / name).mkdir()
        client, pid = stack.enter_context(forkyard(home / "forkyard"))
        stores: dict[str, Store] = {"file": Files(home / "files"), "forkyard": client()}
        for name, program in (("moto", asked.moto), ("s3rver", asked.s3rver)):
            if program:
                stores[name] = stack.enter_context(peer(name, program, home / name))
            else:
                print(f"{name} is not installed, and left out")
        show(measure(stores, asked.rounds))
        append_together(client, asked.rounds)
        print(f"the server held {memory(pid)} MB at most")


if __name__ == "__main__":
    main()
