"""A server with the S3 face in a thread of its own, for clients that block."""

from __future__ import annotations

import asyncio
import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

import boto3  # type: ignore[import-untyped]
import uvicorn
from botocore.config import Config  # type: ignore[import-untyped]

from forkyard.disk import Disk, Disks, KeyPair
from forkyard.sandbox.subprocess import SubprocessProvider
from forkyard.server.app import App
from forkyard.server.files import server_home
from forkyard.server.s3.routes import faces
from forkyard.server.serving import Server
from forkyard.server.state import State

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of an error's document, which must be whole."""
        root = ElementTree.fromstring(self.body)
        assert root.tag == "Error"
        assert root.findtext("RequestId") == self.headers["x-amz-request-id"]
        assert root.findtext("Message")
        return root.findtext("Code") or ""


class Serving:
    """A server that runs; `run` and `call` do something in its own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server, port: int) -> None:
        self._loop = loop
        self.server = server
        self.port = port
        _, self.key = self.call(lambda: server.keys.create(f"tests at {port}, {time.time_ns()}"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(60)

    def call(self, what: Callable[[], T]) -> T:
        async def called() -> T:
            return what()

        return self.run(called())

    def disk(self, name: str) -> Disk:
        return self.run(self.server.disks.create(name))[0]

    def pair(self, disk: Disk) -> KeyPair:
        return self.call(lambda: self.server.disks.access.add_pair(disk.info.id))

    def boto(self, disk: Disk, **config: Any) -> Any:
        pair = self.pair(disk)
        return self.boto_with(pair.access_key, pair.secret_key, **config)

    def boto_with(self, access_key: str, secret: str, region: str = "us-east-1", **config: Any) -> Any:
        settings = {"s3": {"addressing_style": "path"}, "retries": {"max_attempts": 1}, "proxies": {}, **config}
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret,
            region_name=region,
            config=Config(**settings),
        )

    def ask(
        self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Answer:
        """One plain request, with the API key unless `headers` has another Authorization (or an empty one)."""
        given = {"Authorization": self.key, **(headers or {})}
        if not given["Authorization"]:
            del given["Authorization"]
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, target, body, given, **more)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()


@contextmanager
def serving(home: Path) -> Iterator[Serving]:
    """A server over `home` on a port of its own, until it is left."""
    ready = threading.Event()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: asyncio.run(_serve(home, found, ready)))
    thread.start()
    try:
        assert ready.wait(30) and found
        server, loop, listener = found
        yield Serving(loop, server, listener.servers[0].sockets[0].getsockname()[1])
    finally:
        if len(found) == 3:
            found[2].should_exit = True
        thread.join(100)
    assert not thread.is_alive()


class _Listener(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._ready.set()


async def _serve(home: Path, found: list[Any], ready: threading.Event) -> None:
    state = State(server_home(home) / "state.sqlite")
    disks = Disks(home)
    try:
        server = Server(home, SubprocessProvider(), disks, state)
        config = uvicorn.Config(
            App(server.keys, [], [], faces(server)),
            port=0,
            http="httptools",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        listener = _Listener(config, ready)
        found += [server, asyncio.get_running_loop(), listener]
        await listener.serve()
    finally:
        await disks.close()
        state.close()
        ready.set()


_SERVER = """
import sys
from pathlib import Path
from tests.server.s3parts import serving
with serving(Path(sys.argv[1])) as s3:
    s3.disk("data")
    print(s3.port, s3.key, flush=True)
    sys.stdin.read()
"""


@contextmanager
def server_process(home: Path) -> Iterator[tuple[int, str, int]]:
    """Port, key and process of a server that is a process of its own."""
    command = [sys.executable, "-c", _SERVER, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, key = process.stdout.readline().split()
        try:
            yield int(port), key, process.pid
        finally:
            process.communicate("", timeout=100)
