"""A server's life: alone in its home, graceful at its end, and what a killed one leaves misleads nobody."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from forkyard.errors import ConfigError
from forkyard.sandbox.local import LocalProvider
from forkyard.server.files import server_home
from forkyard.server.listening import Listening, listening
from forkyard.server.running import running_server
from forkyard.server.serving import Server, opened


class Program:
    """`forkyard ...` as a process of its own."""

    def __init__(self, home: Path) -> None:
        self.env = {**os.environ, "FORKYARD_HOME": str(home)}

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "forkyard.cli", *arguments, env=self.env, stdout=pipe, stderr=pipe
        )

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        process = await self.start(*arguments)
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    async def serve(self, *arguments: str) -> tuple[asyncio.subprocess.Process, str]:
        process = await self.start("serve", "-e", "subprocess", "--port", "0", *arguments)
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        if not line.startswith("serving   "):
            _, err = await process.communicate()
            raise AssertionError(err.decode())
        return process, line.split()[1]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path / "home")


async def test_one_server_at_a_time_has_a_home(server: Server, local: LocalProvider) -> None:
    with pytest.raises(ConfigError, match="runs on .* already"):
        async with opened(server.home, local):
            pass


async def test_the_next_server_has_what_the_last_one_knew(tmp_path: Path, local: LocalProvider) -> None:
    async with opened(tmp_path, local) as server:
        _, text = server.keys.create("kept")
        secret = server.secret
    async with opened(tmp_path, local) as server:
        assert server.keys.find(text) is not None and server.secret == secret


async def test_a_server_that_runs_is_found_and_one_that_ended_is_not(server: Server) -> None:
    assert running_server(server.home) is None
    async with listening(server, Listening(mapped={"models.example": ("127.0.0.1", 1)})) as address:
        running = running_server(server.home)
        assert running is not None
        assert (running.address, running.mapped) == (address, ("models.example",))
    assert running_server(server.home) is None


async def test_a_request_under_way_is_answered_when_the_server_stops(server: Server, key: str) -> None:
    async with listening(server, Listening()) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        head = f"POST /api/tokens HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Length: 16\r\n"
        writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")  # it waits for the body
        idle_reader, idle_writer = await asyncio.open_connection(address.host, address.port)
        asyncio.get_running_loop().call_later(0.05, writer.write, b'{"name": "late"}')
    assert (await reader.readline()).startswith(b"HTTP/1.1 201 ")
    assert await idle_reader.read() == b""
    writer.close()
    idle_writer.close()
    assert [each.name for each in server.keys.list()] == ["tests", "late"]


async def test_a_request_that_does_not_end_is_cut_when_its_time_is_over(server: Server, key: str) -> None:
    async with listening(server, Listening(grace=0.5)) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        head = f"POST /api/tokens HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Length: 16\r\n"
        writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        began = time.monotonic()
    assert time.monotonic() - began >= 0.5
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_nothing_new_is_accepted_once_it_stopped(server: Server) -> None:
    async with listening(server, Listening()) as address:
        pass
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address.host, address.port)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_program_ends_in_order_on_a_signal(program: Program, number: int) -> None:
    process, origin = await program.serve()
    assert origin.startswith("http://127.0.0.1:")  # loopback unless it is told otherwise
    process.send_signal(number)
    _, err = await process.communicate()
    assert process.returncode == 0
    assert 'eval "$(forkyard key create NAME)"' in err.decode() and "Traceback" not in err.decode()


async def test_keys_and_the_environment_are_had_by_command(program: Program) -> None:
    code, out, err = await program.run("env")
    assert code == 1 and "forkyard serve" in err
    code, out, _ = await program.run("key", "create", "dev", "--description", "mine")
    exported = dict(line.removeprefix("export ").split("=", 1) for line in out.splitlines())
    assert code == 0 and {*exported} == {"ARCHIL_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    process, origin = await program.serve("--map", "ai-gateway.vercel.sh=http://127.0.0.1:9170")
    try:
        headers = {"Authorization": exported["ARCHIL_API_KEY"], "X-Request-Id": "from-the-test"}
        async with httpx2.AsyncClient() as client:
            assert (await client.get(f"{origin}/api/tokens", headers=headers)).status_code == 200
            code, out, _ = await program.run("env")
            assert code == 0 and re.search(f"export HTTPS_PROXY=http://forkyard:[0-9a-f]+@{origin[7:]}\n", out)
            assert "export AWS_DEFAULT_REGION=us-east-2\n" in out
            _, out, _ = await program.run("env", "--hosts")
            assert "HTTPS_PROXY" not in out and "# 127.0.0.1 ai-gateway.vercel.sh\n" in out
            code, out, _ = await program.run("key", "list")
            assert "dev" in out and "mine" in out and exported["ARCHIL_API_KEY"] not in out
            code, out, _ = await program.run("key", "revoke", "dev")
            assert (code, out) == (0, "revoked dev\n")
            assert (await client.get(f"{origin}/api/tokens", headers=headers)).status_code == 401
    finally:
        process.terminate()
    _, log = await process.communicate()
    assert "from-the-test 127.0.0.1 " in log.decode() and "there is no API key yet" not in log.decode()


async def test_what_a_killed_server_left_keeps_no_other_from_starting(program: Program, tmp_path: Path) -> None:
    process, _ = await program.serve()
    process.kill()
    await process.communicate()
    assert (server_home(tmp_path / "home") / "running.json").exists()
    code, _, err = await program.run("env")
    assert code == 1 and "no server runs" in err
    process, _ = await program.serve()
    process.terminate()
    await process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--cert", "x.pem"), "--cert-key"),
        (("--map", "a.example"), "KEY=VALUE"),
        (("--map", "a.example=ftp://x"), "http://ADDRESS:PORT"),
        (("--map", "a.example=http://x:99999"), "http://ADDRESS:PORT"),
        (("--map", "a b=http://x"), "no host name"),
        (("--host", "203.0.113.7"), "choose --host"),
        (("--port", "70000"), "65535"),
        (("-e", "nothing"), "nothing"),
    ],
)
async def test_a_bad_option_is_told_before_anything_starts(
    program: Program, arguments: tuple[str, ...], told: str
) -> None:
    code, out, err = await program.run("serve", "--port", "0", *arguments)
    assert code != 0 and told in err and "serving" not in out and "Traceback" not in err


async def test_a_run_loads_nothing_of_the_server(program: Program) -> None:
    code = "import sys, forkyard.cli.app; print([n for n in sys.modules if n.split('.')[0] in %r or n.startswith(%r)])"
    heavy = ("starlette", "uvicorn", "websockets", "cryptography")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code % (heavy, "forkyard.server"), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode().strip() == "[]"


async def test_the_log_of_other_programs_is_left_alone(server: Server) -> None:
    log = logging.getLogger("forkyard.server")
    before = list(log.handlers)  # an embedded server of an earlier test adds one that says nothing
    async with listening(server, Listening()):
        assert log.handlers == before
