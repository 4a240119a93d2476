"""A registry that runs, images to put into it, and a line to it that is cut."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import re
import shutil
import socket
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from forkyard.image.oci.documents import (
    OCI_CONFIG,
    OCI_LAYER,
    OCI_MANIFEST,
    Descriptor,
    architecture,
    digest_of,
    manifest_document,
)
from forkyard.image.oci.reference import parse_reference
from forkyard.image.oci.registry import open_registry
from forkyard.sandbox import Sandbox

Members = Sequence[tuple[tarfile.TarInfo, bytes]]


def member(name: str, content: bytes | None = None, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A file when there is content, else what `type` says, a directory by default."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
    info.mode = 0o755 if content is None else 0o644
    info.size = len(content or b"")
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content or b""


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=kind, linkname=target)


def tar(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _zip(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


@dataclass
class Made:
    """An image: what its documents say, and its blobs by digest. Tests change it before it is put anywhere."""

    layers: list[Descriptor] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    config: Descriptor = Descriptor("", 0)

    @property
    def manifest(self) -> bytes:
        return manifest_document(self.config, tuple(self.layers))

    def add(self, data: bytes, kind: str) -> Descriptor:
        blob = Descriptor(digest_of(data), len(data), kind)
        self.blobs[blob.digest] = data
        return blob


def made(
    *layers: bytes,
    config: Mapping[str, Any] | None = None,
    pack: Callable[[bytes], bytes] = _zip,
    diff_ids: Sequence[str] | None = None,
    **more: Any,
) -> Made:
    """An image of tar archives as layers."""
    image = Made()
    image.layers = [image.add(pack(layer), OCI_LAYER) for layer in layers]
    document = {
        "architecture": architecture(),
        "os": "linux",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids or [digest_of(layer) for layer in layers])},
        **more,
    }
    image.config = image.add(json.dumps(document).encode(), OCI_CONFIG)
    return image


async def publish(reference: str, image: Made) -> str:
    """Put an image into a registry; its digest."""
    where = parse_reference(reference)
    async with await open_registry(where) as registry:
        for digest, data in image.blobs.items():

            async def body(data: bytes = data) -> AsyncIterator[bytes]:
                yield data

            await registry.upload(Descriptor(digest, len(data)), body)
        await registry.put_manifest(where.asked, image.manifest, OCI_MANIFEST)
    return digest_of(image.manifest)


@contextmanager
def port_of_ours() -> Iterator[int]:
    """A port at which nobody listens, and that nobody else is given; ours may listen there with SO_REUSEPORT."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@contextmanager
def running_registry(directory: Path, auth: str = "") -> Iterator[str]:
    """A registry on this machine; "host:port"."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed (apt-get install docker-registry)")
    config = directory / "config.yml"
    storage = f"storage:\n  filesystem:\n    rootdirectory: {directory}/store\n"
    config.write_text(f"version: 0.1\nlog:\n  level: info\n{storage}http:\n  addr: 127.0.0.1:0\n{auth}")
    process = subprocess.Popen([program, "serve", str(config)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if (found := re.search(r"listening on (127\.0\.0\.1:\d+)", line.decode())) is not None:
                break
        else:
            raise AssertionError("the registry did not start")
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield found[1]
    finally:
        process.terminate()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
    drain.wait()


@dataclass
class Line:
    """A way to a server that is cut after so many bytes of each of the first answers of `cuts`."""

    address: str
    cuts: list[int]
    requests: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def cut_line(to: str, *cuts: int, for_good: bool = False) -> AsyncIterator[Line]:
    """A proxy of connections. Only answers to requests for blobs are cut; `for_good`, and nobody gets in any more."""
    host, _, port = to.rpartition(":")
    ended: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def ask(reader: asyncio.StreamReader, back: asyncio.StreamWriter, left: list[int]) -> None:
        while data := await reader.read(1 << 16):
            line.requests.append(data)
            if b"/blobs/" in data and line.cuts:
                left[0] = line.cuts.pop(0)
            back.write(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        writers.extend((writer, back))
        left = [1 << 60]
        asking = asyncio.create_task(ask(reader, back, left))
        ended.add(asking)
        while left[0] > 0 and (data := await there.read(1 << 16)):
            writer.write(data[: left[0]])
            left[0] -= len(data)
            await writer.drain()
        if left[0] <= 0 and for_good:
            server.close()
        back.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    line = Line(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", list(cuts))
    try:
        yield line
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*ended, *(writer.wait_closed() for writer in writers), return_exceptions=True)
        await server.wait_closed()


async def sh(sandbox: Sandbox, script: str) -> str:
    """What a script prints, in a sandbox that has a shell."""
    result = await sandbox.run(script, timeout=100)
    assert result.ok, result
    return result.stdout


async def listing(sandbox: Sandbox) -> dict[str, tarfile.TarInfo]:
    """Everything on the disk of a sandbox, without what every sandbox has."""
    with tarfile.open(fileobj=io.BytesIO(await sandbox.pull("/"))) as archive:
        return {info.name: info for info in archive if info.name not in ("dev", "proc", "sys")}
