"""Create, fork, exec and upload over HTTP, beside the same on the embedded engine; and many live sandboxes in a server.

    python -m benchmarks.server [--rounds 100] [--live 1000]

The server is `forkyard serve`, a process of its own. Both are asked in turn, one at a time, so that both see the same
machine; each request goes over one kept connection, and each process has a socket of its own, as the wire has it. The
client is as thin as Python allows, so that what is measured is the server. An upload is the command that clients run
for one, in both columns. Numbers are milliseconds, median and 99th percentile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.memory import in_use
from forkyard.sandbox import Limits, Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider

IMAGE = "host"
# As a server makes them: other bounds, or none, take another time.
SPEC = SandboxSpec(image=IMAGE, limits=Limits(cpus=1, memory_mb=2048), survives=True)
FORKERS = 8
GOAL = 3.0
FILE = os.urandom(64 << 10)
UPLOAD = """\
mkdir -p -- "$PARENT" && cat > "$TEMP" && chmod "$MODE" "$TEMP" && mv -f -- "$TEMP" "$TARGET"
"""
PLACE = {"PARENT": "/data", "TEMP": "/data/.upload", "MODE": "644", "TARGET": "/data/file"}


class Wire:
    """A connection, and what came on it beyond what was asked for."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._held = b""

    def head(self) -> bytes:
        """A status line and headers."""
        while (end := self._held.find(b"\r\n\r\n")) < 0:
            self._more()
        return self.take(end + 4)

    def take(self, size: int) -> bytes:
        """So many bytes."""
        while len(self._held) < size:
            self._more()
        data, self._held = self._held[:size], self._held[size:]
        return data

    def _more(self) -> None:
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionError("the server has closed the connection")
        self._held += data


class Remote:
    """One connection to a server."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._about = f"HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {key}\r\n"
        self._wire = Wire(port)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The data of an answer."""
        content = json.dumps(body).encode() if body is not None else b""
        kind = "Content-Type: application/json\r\n" if content else ""
        head = f"{method} {path} {self._about}{kind}Content-Length: {len(content)}\r\n\r\n"
        self._wire.sock.sendall(head.encode() + content)
        answer = self._wire.head().lower()
        status = int(answer[9:12])
        size = int(answer.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0] or 0)
        text = self._wire.take(size)
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {text.decode()}")
        return json.loads(text)["data"] if text else None

    def create(self, **more: Any) -> str:
        made = self.ask("POST", "/api/sandboxes?wait=true", {"base_image": IMAGE, **more})
        return str(self._running(made)["sandbox_id"])

    def fork(self, source: str) -> str:
        made = self.ask("POST", f"/api/sandboxes/{source}/fork?wait=true")
        return str(self._running(made)["sandbox_id"])

    def stop(self, sandbox: str) -> None:
        self.ask("POST", f"/api/sandboxes/{sandbox}/stop")

    def delete(self, sandbox: str) -> None:
        self.ask("DELETE", f"/api/sandboxes/{sandbox}?cascade=true")

    def exec(self, sandbox: str, command: str, env: dict[str, str] | None = None, stdin: bytes | None = None) -> None:
        url = self.ask("POST", f"/api/sandboxes/{sandbox}/connections")["url"]
        with Socket(self._port, url.partition(str(self._port))[2]) as web:
            web.send(1, json.dumps({"type": "start", "command": command, "env": env or {}}).encode())
            if stdin is not None:
                web.send(2, stdin)
                web.send(1, b'{"type": "close_stdin"}')
            while True:
                kind, message = web.receive()
                if kind == 1 and (told := json.loads(message))["type"] == "exit":
                    assert told["exit_code"] == 0, told
                    return
                assert kind != 8, message

    @staticmethod
    def _running(made: Any) -> Any:
        assert made["status"] == "running", made
        return made


class Socket:
    """A web socket's client, for small frames."""

    def __init__(self, port: int, path: str) -> None:
        self._wire = Wire(port)
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self._wire.sock.sendall(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n\r\n".encode())
        assert b" 101 " in self._wire.head()

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.sock.close()

    def send(self, kind: int, data: bytes) -> None:
        size = len(data)
        length = (
            bytes([0x80 | size])
            if size < 126
            else struct.pack(">BH" if size < 1 << 16 else ">BQ", *((0xFE, size) if size < 1 << 16 else (0xFF, size)))
        )
        self._wire.sock.sendall(bytes([0x80 | kind]) + length + bytes(4) + data)  # the mask of zeros changes nothing

    def receive(self) -> tuple[int, bytes]:
        first, size = self._wire.take(2)
        if size >= 126:
            (size,) = struct.unpack(">H" if size == 126 else ">Q", self._wire.take(2 if size == 126 else 8))
        return first & 0xF, self._wire.take(size)


@contextmanager
def serving(home: Path) -> Iterator[tuple[Callable[[], Remote], int]]:
    """Makes clients of a server, and tells its process id."""
    env = {**os.environ, "FORKYARD_HOME": str(home)}
    cli = [sys.executable, "-m", "forkyard.cli"]
    made = subprocess.run([*cli, "key", "create", "bench"], env=env, capture_output=True, text=True, check=True)
    key = next(line.partition("=")[2] for line in made.stdout.splitlines() if "ARCHIL_API_KEY=" in line)
    command = [*cli, "serve", "--port", "0"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline().rpartition(":")[2])
            yield lambda: Remote(port, key), server.pid
        finally:
            server.terminate()


def timed(work: Callable[[], object], into: list[float]) -> Any:
    started = time.perf_counter()
    result = work()
    into.append((time.perf_counter() - started) * 1000)
    return result


async def timed_here(work: Awaitable[Any], into: list[float]) -> Any:
    started = time.perf_counter()
    result = await work
    into.append((time.perf_counter() - started) * 1000)
    return result


async def beside(provider: LocalProvider, remote: Remote, rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """Milliseconds of each step, embedded and over HTTP."""
    took: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ("create", "fork", "exec", "upload")}

    async def here(template: Sandbox) -> None:
        await (await timed_here(provider.create(SPEC), took["create"][0])).close()
        fork = await timed_here(template.fork(), took["fork"][0])
        assert (await timed_here(fork.run("true"), took["exec"][0])).ok
        assert (await timed_here(fork.run(UPLOAD, PLACE, stdin=FILE), took["upload"][0])).ok
        await fork.close()

    def there(template: str) -> None:
        remote.delete(timed(remote.create, took["create"][1]))
        fork = timed(lambda: remote.fork(template), took["fork"][1])
        timed(lambda: remote.exec(fork, "true"), took["exec"][1])
        timed(lambda: remote.exec(fork, UPLOAD, PLACE, FILE), took["upload"][1])
        remote.delete(fork)

    template = await provider.create(SPEC)
    await template.stop()
    far = remote.create(name="template")
    remote.stop(far)
    for number in range(rounds + 5):
        await here(template)
        there(far)
        if number == 4:  # both are warm
            for columns in took.values():
                for column in columns:
                    column.clear()
    remote.delete(far)
    await template.close()
    return took


def show(took: dict[str, tuple[list[float], list[float]]]) -> None:
    def told(column: list[float]) -> str:
        return f"{statistics.median(column):.2f} ({sorted(column)[int(0.99 * len(column))]:.1f})"

    print(f"{'ms, median (p99)':18}{'embedded':>18}{'over HTTP':>18}{'more':>8}")
    for step, (embedded, over) in took.items():
        more = statistics.median(over) - statistics.median(embedded)
        missed = f"  (the goal is {GOAL:.0f})" if more > GOAL else ""
        print(f"{step:18}{told(embedded):>18}{told(over):>18}{more:>8.2f}{missed}")


def live(client: Callable[[], Remote], pid: int, count: int) -> None:
    """Many sandboxes that live in one server."""
    remote = client()
    template = remote.create(name="crowd", max_ttl_seconds=86_400)
    remote.stop(template)
    forks: list[str] = []
    left = iter(range(count))
    lock = threading.Lock()

    def work() -> None:
        mine = client()
        while True:
            with lock:
                if next(left, None) is None:
                    return
            fork = mine.fork(template)
            with lock:
                forks.append(fork)

    before, held = in_use(), resident(pid)
    seconds = together(work)
    each = (in_use() - before) / count
    print(f"\n{count} live sandboxes in one server, {FORKERS} clients: {count / seconds:.0f} forks a second")
    print(f"memory each {each / 1e6:.2f} MB, of which {(resident(pid) - held) / count / 1e3:.0f} KB in the server")
    among: list[float] = []
    for fork in forks[:: max(1, count // 50)]:
        timed(lambda fork=fork: remote.exec(fork, "true"), among)  # type: ignore[misc]
    listed: list[float] = []
    timed(lambda: remote.ask("GET", "/api/sandboxes"), listed)
    print(f"exec among them {statistics.median(among):.2f} ms; a list of all {listed[0]:.0f} ms")
    started = time.perf_counter()
    remote.delete(template)
    print(f"all deleted in {time.perf_counter() - started:.1f} s")


def together(work: Callable[[], None]) -> float:
    threads = [threading.Thread(target=work) for _ in range(FORKERS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--live", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forkyard-bench-") as directory:
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        with serving(Path(directory) / "far") as (client, pid):
            async with LocalProvider(Path(directory) / "near") as provider:
                show(await beside(provider, client(), options.rounds))
            live(client, pid, options.live)


if __name__ == "__main__":
    asyncio.run(main())
