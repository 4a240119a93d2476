"""The vendor's own Python client on the process socket: commands, terminals, files both ways."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forkyard.server.address import Address

archil = pytest.importorskip("archil", reason="the package archil is not installed (PyPI: archil)")

SIZE = 3_000_000


@asynccontextmanager
async def client(address: Address, key: str) -> AsyncIterator[Any]:
    async with archil.Archil(api_key=key, region="local", base_url=address.origin, s3_base_url=address.origin) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def box(address: Address, key: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A running sandbox as the client has it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    async with client(address, key) as made:
        box = await made.sandboxes.create.aio(name="archil", base_image="host")
        try:
            yield box
        finally:
            await box.stop.aio()
            await box.delete.aio()


async def test_exec_gives_streams_code_and_status(box: Any) -> None:
    done = await box.exec.aio("echo out; echo problem >&2; exit 7")
    assert (done.status, done.exit_code, done.stdout, done.stderr) == ("completed", 7, "out\n", "problem\n")
    done = await box.exec.aio("cd; pwd; echo $NAME", env={"NAME": "é"}, cwd="/tmp")
    assert (done.stdout, done.exit_code) == ("/root\né\n", 0)
    done = await box.exec.aio("echo early; sleep 100", timeout_seconds=2)
    assert (done.status, done.exit_code, done.stdout) == ("timed_out", None, "early\n")
    with pytest.raises(RuntimeError, match="invalid_cwd: cwd /no/such"):
        await box.exec.aio("true", cwd="/no/such")


async def test_large_output_arrives_whole(box: Any) -> None:
    done = await box.exec.aio(f"head -c {SIZE} /dev/zero | tr '\\0' x")
    assert (done.exit_code, done.stdout) == (0, "x" * SIZE)


async def test_files_of_three_megabytes_go_up_and_down(box: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(SIZE))
    source.chmod(0o640)
    await box.files.upload_file.aio(source, "/deep/er/file")
    done = await box.exec.aio("stat -c '%s %a' /deep/er/file; ls -A /deep/er")
    assert done.stdout == f"{SIZE} 640\nfile\n"
    await box.files.download_file.aio("/deep/er/file", target)
    assert target.read_bytes() == source.read_bytes()
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    await box.files.upload_file.aio(empty, "/empty", mode=0o600)
    await box.files.download_file.aio("/empty", target)
    assert target.read_bytes() == b""
    with pytest.raises(archil.SandboxFileTransferError):
        await box.files.download_file.aio("/no/such/file", target)


class Heard:
    """What a process wrote, as the client passes it on."""

    def __init__(self) -> None:
        self.data = b""

    def __call__(self, output: Any) -> None:
        self.data += output.data

    async def until(self, wanted: bytes) -> None:
        async with asyncio.timeout(100):
            while self.data != wanted:
                await asyncio.sleep(0.01)


async def test_a_process_is_driven_detached_from_and_attached_to(box: Any) -> None:
    heard = Heard()
    process = await box.run.aio("while read -r line; do echo got $line; done; exit 3", on_output=heard)
    await process.send_input.aio("one\n")
    await heard.until(b"got one\n")
    await process.disconnect.aio()
    again = await box.attach.aio(process.id, offset=process.cursor)
    await again.send_input.aio("two\n")
    await again.close_stdin.aio()
    done = await again.wait.aio()
    assert (done.status, done.exit_code, done.stdout) == ("completed", 3, "got two\n")


async def test_a_process_at_a_terminal_is_resized_and_killed(box: Any) -> None:
    heard = Heard()
    script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done"
    process = await box.run.aio(script, terminal=archil.SandboxTerminal(cols=91, rows=31), on_output=heard)
    await heard.until(b"31 91\r\n")
    await process.resize.aio(cols=101, rows=41)
    await heard.until(b"31 91\r\n41 101\r\n")
    await process.kill.aio()
    done = await process.wait.aio()
    assert (done.status, done.exit_code) == ("cancelled", None)


async def test_eight_at_once_are_kept_apart(box: Any) -> None:
    done = await asyncio.gather(*(box.exec.aio(f"for i in 1 2 3; do echo {n}; done") for n in range(8)))
    assert [each.stdout for each in done] == [f"{n}\n" * 3 for n in range(8)]
