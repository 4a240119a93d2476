"""ADD: archives unpacked, files fetched."""

import hashlib
import io
import random
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import zstandard

from forkyard.image import BuildError, build
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.local import LocalProvider
from tests.support.images import said


def packed(path: Path, mode: Any) -> None:
    if mode == "w:zst":
        packed(path, "w:")
        path.write_bytes(zstandard.compress(path.read_bytes()))
        return
    with tarfile.open(path, mode) as tar:
        for name, kind, content in [
            ("./d", tarfile.DIRTYPE, b""),
            ("d/f", tarfile.REGTYPE, b"file\n"),
            ("d/hard", tarfile.LNKTYPE, b"d/f"),
            ("d/soft", tarfile.SYMTYPE, b"f"),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.uid, info.gid = kind, 0o750 if kind == tarfile.DIRTYPE else 0o640, 5, 6
            if kind in (tarfile.LNKTYPE, tarfile.SYMTYPE):
                info.linkname = content.decode()
                content = b""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.mark.usefixtures("many_users")
@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:bz2", "w:xz", "w:zst"])
async def test_an_archive_is_unpacked(provider: LocalProvider, context: Path, mode: str) -> None:
    packed(context / "a", mode)
    (context / "plain").write_text("no archive")
    (context / "Dockerfile").write_text(
        "FROM host\nADD a plain /x/\nADD --chown=7 a /y\nADD --unpack=false a /z\nCOPY a /z2\n"
        "ADD --chmod=700 plain /p\n"
    )
    image = await build(provider, context)
    told = await said(
        provider, image.name, "cd /; cat x/d/soft; stat -c '%n %F %a %u:%g %h' x/d x/d/f x/d/hard x/plain y/d/f z z2 p"
    )
    assert told.splitlines() == [
        "file",
        "x/d directory 750 5:6 2",
        "x/d/f regular file 640 5:6 2",
        "x/d/hard regular file 640 5:6 2",
        "x/plain regular file 644 0:0 1",
        "y/d/f regular file 640 5:6 2",
        "z regular file 644 0:0 1",
        "z2 regular file 644 0:0 1",
        "p regular file 700 0:0 1",
    ]
    assert (await build(provider, context)).ran == 0


async def test_an_archive_that_points_outside_or_is_cut_is_refused(provider: LocalProvider, context: Path) -> None:
    (context / "Dockerfile").write_text("FROM host\nADD a /x/\n")
    with tarfile.open(context / "a", "w") as tar:
        tar.addfile(tarfile.TarInfo("../../etc/passwd"))
    with pytest.raises(BuildError, match="Dockerfile:2: .*points outside"):
        await build(provider, context)
    packed(context / "a", "w:gz")
    (context / "a").write_bytes((context / "a").read_bytes()[:-30])
    with pytest.raises(BuildError, match="Dockerfile:2: .*a cannot be unpacked"):
        await build(provider, context)
    device = tarfile.TarInfo("null")
    device.type = tarfile.CHRTYPE
    with tarfile.open(context / "a", "w") as tar:
        tar.addfile(device)
    with pytest.raises(BuildError, match="Dockerfile:2: .*holds the device 'null'"):
        await build(provider, context)


async def test_an_archive_that_is_cut_within_a_file_is_refused(provider: LocalProvider, context: Path) -> None:
    info = tarfile.TarInfo("f")
    info.size = 500_000
    with tarfile.open(context / "a", "w:gz") as tar:
        tar.addfile(info, io.BytesIO(random.Random(1).randbytes(info.size)))
    (context / "a").write_bytes((context / "a").read_bytes()[:250_000])
    (context / "Dockerfile").write_text("FROM host\nADD a /x/\n")
    with pytest.raises(BuildError, match="Dockerfile:2: "):
        await build(provider, context)
    assert await provider.sandboxes() == []


async def test_extended_attributes_go_along_with_files(provider: LocalProvider, context: Path) -> None:
    note = {"SCHILY.xattr.user.note": "kept"}
    info = tarfile.TarInfo("d/f")
    info.pax_headers = note
    with tarfile.open(context / "a", "w:", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)
    (context / "Dockerfile").write_text(
        "FROM host AS one\nADD a /x/\n"
        "FROM host\nCOPY --from=one /x/d /dir\nCOPY --from=one /x/d/f /file\n"
        "RUN --mount=type=cache,target=/c,from=one,source=/x/d true\n"
        "RUN --mount=type=cache,target=/c mkdir /cached && cp --preserve=xattr /c/f /cached/f\n"
    )
    image = await build(provider, context)
    sandbox = await provider.create(SandboxSpec(image=image.name))
    try:
        for path in ("/dir", "/cached", "/"):
            archive = await sandbox.pull(path, exclude=["*/*", "[!f]*", "f[!i]*"])
            with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
                (found,) = tree
            assert (path, found.pax_headers.get("SCHILY.xattr.user.note")) == (path, "kept")
    finally:
        await sandbox.close()


class Server:
    """A web server of one test; `content` is what it serves for each path, `asked` what it was asked for."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                found = outer.content.get(self.path.partition("?")[0])
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Length", str(len(found or b"")))
                self.end_headers()
                self.wfile.write(found or b"")

            def log_message(self, *args: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


async def test_a_file_is_fetched(provider: LocalProvider, context: Path, server: Server) -> None:
    server.content = {"/dir/one%20name": b"one", "/two": b"two"}
    checksum = hashlib.sha256(b"two").hexdigest()
    (context / "Dockerfile").write_text(
        f"FROM host\nARG AT={server.url}\nADD $AT/dir/one%20name?query=1 /x/\n"
        f"ADD --chmod=755 --checksum=sha256:{checksum} $AT/two /renamed\n"
    )
    image = await build(provider, context)
    assert await said(provider, image.name, "cd /; cat 'x/one name' renamed; stat -c %a x/* renamed") == (
        "onetwo600\n755\n"
    )
    server.asked.clear()
    assert (await build(provider, context)).ran == 0
    assert server.asked == ["/dir/one%20name?query=1"], "what has a checksum is not asked for again"
    server.content["/dir/one%20name"] = b"changed"
    assert (await build(provider, context)).ran == 2


async def test_an_archive_is_fetched_and_unpacked_when_asked(
    provider: LocalProvider, context: Path, server: Server
) -> None:
    packed(context / "a", "w:gz")
    server.content = {"/a.tgz": (context / "a").read_bytes()}
    (context / "Dockerfile").write_text(
        f"FROM host\nADD {server.url}/a.tgz /x/\nADD --unpack=true {server.url}/a.tgz /y/\n"
    )
    image = await build(provider, context)
    assert await said(provider, image.name, "ls /x /y/d") == "/x:\na.tgz\n\n/y/d:\nf\nhard\nsoft\n"


async def test_a_file_that_cannot_be_had_is_named(provider: LocalProvider, context: Path, server: Server) -> None:
    server.content = {"/f": b"f"}
    for line, complaint in [
        (f"ADD {server.url}/none /x", "/none cannot be fetched: the server says 404"),
        (f"ADD --checksum=sha256:{'0' * 64} {server.url}/f /x", "has the SHA-256 252f10c"),
        ("ADD http://127.0.0.1:1/f /x", "cannot be fetched: "),
    ]:
        (context / "Dockerfile").write_text(f"FROM host\n{line}\n")
        with pytest.raises(BuildError, match="Dockerfile:2: ") as caught:
            await build(provider, context)
        assert complaint in str(caught.value)
