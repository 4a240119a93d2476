"""The engine's socket: what a session leaves behind, and what either side does with one that does not keep to it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from forkyard.errors import ConfigError, ProviderLost, SandboxError, SandboxLost
from forkyard.sandbox import Mount, Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.remote import RemoteProvider
from forkyard.sandbox.remote.frames import head_of, messages
from forkyard.server.address import Address
from tests.support.serving import served


@pytest_asyncio.fixture(loop_scope="module")
async def remote(address: Address, key: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RemoteProvider]:
    monkeypatch.setenv("FORKYARD_KEY", key)
    async with RemoteProvider(address.origin) as made:
        await made.sandboxes()  # connected: the server is in this loop, and cannot be asked from beside it
        yield made


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(100):
        while not await holds():
            await asyncio.sleep(0.02)


async def test_what_a_session_made_ends_with_it_but_for_what_was_stopped_under_a_name(
    remote: RemoteProvider, local: LocalProvider
) -> None:
    running = await remote.create(SandboxSpec())
    nameless = await remote.create(SandboxSpec())
    await nameless.stop()
    named = await remote.create(SandboxSpec(name="kept-by-name"))
    await named.write("/kept", b"yes")
    await named.stop()
    await remote.close()
    there = {info.id for info in await local.sandboxes()}
    assert {running.id, nameless.id, named.id} & there == {named.id}
    again = await remote.open("kept-by-name")
    await again.start()
    assert await again.read("/kept") == b"yes"
    await again.close()
    assert named.id not in {info.id for info in await local.sandboxes()}


async def test_sandboxes_of_a_client_that_was_killed_are_ended(
    address: Address, key: str, local: LocalProvider
) -> None:
    program = (
        "import asyncio, sys\n"
        "from forkyard.sandbox import SandboxSpec\n"
        "from forkyard.sandbox.remote import RemoteProvider\n"
        "async def main():\n"
        "    provider = RemoteProvider()\n"
        "    box = await provider.create(SandboxSpec())\n"
        "    await box.spawn('sleep 1000')\n"
        "    print(box.id, flush=True)\n"
        "    await asyncio.sleep(1000)\n"
        "asyncio.run(main())\n"
    )
    environ = {**os.environ, "FORKYARD_URL": address.origin, "FORKYARD_KEY": key}
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=environ
    )
    assert client.stdout is not None
    box = (await client.stdout.readline()).decode().strip()
    assert box in {info.id for info in await local.sandboxes()}
    client.send_signal(signal.SIGKILL)
    await client.wait()

    async def gone() -> bool:
        return box not in {info.id for info in await local.sandboxes()}

    await _until(gone)


@pytest.mark.slow
async def test_when_the_server_is_killed_its_sandboxes_are_lost_and_another_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as place:
        monkeypatch.setenv("FORKYARD_KEY", place.key)
        provider = RemoteProvider(place.url)
        box = await provider.create(SandboxSpec())
        process = await box.spawn("sleep 1000")
        waiting = asyncio.ensure_future(process.wait())
        running = asyncio.ensure_future(box.run("sleep 1000"))
        await box.run(["true"])
        place.process.kill()
        for lost in (waiting, running, box.run(["true"])):
            with pytest.raises(SandboxLost):
                await lost
        with pytest.raises(ProviderLost, match=f"the server {place.url}, on which the sandboxes were, is lost"):
            await provider.create(SandboxSpec())
        await box.close()
    with served(tmp_path, int(place.url.rpartition(":")[2])) as place:
        provider = RemoteProvider(place.url, _key(monkeypatch, place.key))
        async with provider:
            again = await provider.create(SandboxSpec())
            assert (await again.run("echo fine")).stdout == "fine\n"


def _key(monkeypatch: pytest.MonkeyPatch, key: str) -> str:
    monkeypatch.setenv("ANOTHER_KEY", key)
    return "ANOTHER_KEY"


async def test_a_wrong_key_and_what_is_no_server_are_said_before_anything_starts(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKYARD_KEY", "key-0123456789abcdef.wrong")
    with pytest.raises(ConfigError, match="key"):
        await RemoteProvider(address.origin).sandboxes()
    with pytest.raises(ConfigError, match="cannot use http://127.0.0.1:9"):
        _ = RemoteProvider("http://127.0.0.1:9").features
    monkeypatch.delenv("FORKYARD_KEY")
    with pytest.raises(ConfigError, match="FORKYARD_KEY"):
        RemoteProvider(address.origin)
    with pytest.raises(ConfigError, match="is no server's address"):
        RemoteProvider("ftp://here", _key(monkeypatch, "key-x"))


async def test_directories_of_this_machine_cannot_be_mounted_there(remote: RemoteProvider, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mounts"):
        await remote.create(SandboxSpec(mounts=(Mount(tmp_path, "/mnt/here"),)))


async def test_text_and_paths_that_are_no_utf8_cross_as_they_are(remote: RemoteProvider) -> None:
    async with _box(remote) as box:
        odd = os.fsdecode(b"/root/\xff\xfe")
        await box.write(odd, b"odd")
        assert await box.read(odd) == b"odd"
        shown = await box.run(["printf", "%s", odd], {"ODD": odd})
        assert shown.stdout_bytes == b"/root/\xff\xfe"
        assert odd in {change.path for change in await box.changes()}


async def test_a_cancelled_creation_leaves_no_sandbox(remote: RemoteProvider, local: LocalProvider) -> None:
    before = {info.id for info in await local.sandboxes()}
    for turns in range(0, 40, 4):
        making = asyncio.ensure_future(remote.create(SandboxSpec()))
        for _ in range(turns):
            await asyncio.sleep(0)
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
        if not making.cancelled() and making.exception() is None:
            await making.result().close()
    assert {info.id for info in await local.sandboxes()} == before


@asynccontextmanager
async def _box(remote: RemoteProvider) -> AsyncIterator[Sandbox]:
    box = await remote.create(SandboxSpec())
    try:
        yield box
    finally:
        await box.close()


HOSTILE: list[bytes | str] = [
    "text",
    b"",
    b"\0\0\0\2{}",
    b"\xff\xff\xff\xff{}",
    b"\0\0\0\2[]",
    *messages({"id": "one", "do": "hello"}),
    *messages({"cancel": "one"}),
    b"\0\0\0\x0f" + b'{"id":1,"do":1}' + b"[" * 100_000,
]


@pytest.mark.parametrize("said", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_client_that_does_not_keep_to_the_protocol_loses_its_session(
    said: bytes | str, address: Address, key: str, local: LocalProvider
) -> None:
    before = {info.id for info in await local.sandboxes()}
    url = f"ws{address.origin.removeprefix('http')}/api/engine"
    async with connect(url, additional_headers={"Authorization": key}) as socket:
        for message in messages({"id": 1, "do": "create"}, {"spec": {"image": "host", "env": {}}}):
            await socket.send(message)
        assert "error" not in head_of(await socket.recv())[0]
        await socket.send(said)
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1002

    async def gone() -> bool:
        return {info.id for info in await local.sandboxes()} == before

    await _until(gone)


ASKED = [
    ("nothing", {}),
    ("run", {"box": 99}),
    ("run", {"box": "one"}),
    ("read", {"box": 1, "path": 7, "max_bytes": 1}),
    ("run", {"box": 1, "argv": [1], "output_limit": 1}),
    ("create", {"spec": {"image": "host", "env": {}, "mounts": [{"source": "/", "target": "/mnt"}]}}),
    ("create", {"spec": {"image": "host", "env": {"A": 1}}}),
    ("output", {"process": 99}),
    ("__class__", {}),
]


@pytest.mark.parametrize("do, args", ASKED, ids=range(len(ASKED)))
async def test_what_makes_no_sense_is_refused_and_the_session_goes_on(
    do: str, args: dict[str, object], remote: RemoteProvider
) -> None:
    async with _box(remote) as box:
        connection = await remote._session()
        with pytest.raises((SandboxError, ConfigError, ValueError)):
            await connection.call(do, args)
        assert (await box.run("echo fine")).stdout == "fine\n"


async def test_without_a_key_there_is_no_socket(address: Address) -> None:
    from websockets.exceptions import InvalidStatus

    url = f"ws{address.origin.removeprefix('http')}/api/engine"
    for path in ("", "/streams/abc"):
        with pytest.raises(InvalidStatus) as refused:
            await connect(url + path)
        assert refused.value.response.status_code == 401


ANSWERS: list[Callable[[int], list[bytes | str]]] = [
    lambda number: ["text"],
    lambda number: [b"\0\0\0\2{}x" * 10],
    lambda number: [*messages({"id": number}, {"version": 1})],
    lambda number: [*messages({"id": number}, {"version": 99, "features": []})],
    lambda number: [*messages({"id": number}, {"version": 1, "features": "all"})],
    lambda number: [*messages({"id": number}, None, b"x" * (8 << 20))],
    lambda number: [b"x" * (2 << 20)],
]


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
async def test_a_server_that_says_something_else_is_an_error_and_no_more(
    answer: Callable[[int], list[bytes | str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKYARD_KEY", "key-0123456789abcdef.any")

    async def talk(socket: ServerConnection) -> None:
        head, _ = head_of(await socket.recv())
        for message in answer(int(head["id"])):
            await socket.send(message)
        await socket.wait_closed()

    async with serve(talk, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with asyncio.timeout(100), RemoteProvider(f"http://127.0.0.1:{port}") as provider:
            with pytest.raises((SandboxError, ConfigError, ValueError)):
                await provider.create(SandboxSpec())
