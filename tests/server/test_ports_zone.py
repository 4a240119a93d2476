"""Ports under a domain of the user's own, with the certificate that the user has for it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio

from forkyard.cli.app import run_command_line
from forkyard.sandbox.local import LocalProvider
from forkyard.server.address import Address
from forkyard.server.listening import Listening, listening
from forkyard.server.serving import Server, opened
from forkyard.server.tls import ca_path, own_context
from tests.server.test_ports import Box, visitor

ZONE = "boxes.example.org"
VENDOR = "control.green.us-east-1.aws.prod.archil.com"


@pytest_asyncio.fixture(loop_scope="module")
async def server(tmp_path: Path, local: LocalProvider) -> AsyncIterator[Server]:
    async with opened(tmp_path / "home", local, ZONE) as made:
        yield made


def certificate(home: Path, *names: str) -> Listening:
    """To listen with a certificate for these names that an authority in `home` made."""
    own_context(home, names)
    pem = home / "server" / "server.pem"
    return Listening(tls=True, certificate=pem, key=pem)


async def status(address: Address, host: str, authority: Path) -> int:
    """What a client gets who resolved `host` to the server and trusts one authority alone."""
    context = ssl.create_default_context(cafile=str(authority))
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port, ssl=context, server_hostname=host)
    writer.write(f"GET / HTTP/1.1\r\nHost: {host}:{address.port}\r\nConnection: close\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_a_port_has_a_name_of_the_zone_and_answers_at_it(
    server: Server, http: httpx2.AsyncClient, address: Address
) -> None:
    box = await Box.made(server, http, ports=[8000])
    name = f"8000-{box.life.id.replace('-', '')}.{ZONE}"
    assert box.shown["endpoints"] == [{"port": 8000, "hostname": name}]
    await box.serve(8000)
    async with visitor(address, f"{name}:{address.port}") as guest:
        assert (await guest.get("/")).status_code == 203
    async with visitor(address, box.host(8000)) as guest:
        assert (await guest.get("/")).status_code != 203  # the name it would have without a zone


async def test_a_wildcard_certificate_is_shown_at_the_names_of_ports(server: Server, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    async with listening(server, certificate(theirs, "api.example.org", f"*.{ZONE}")) as address:
        assert await status(address, f"8000-{'0' * 32}.{ZONE}", ca_path(theirs)) == 404
        assert await status(address, "api.example.org", ca_path(theirs)) == 403
        assert await status(address, VENDOR, ca_path(server.home)) == 403


async def test_without_a_wildcard_in_it_ports_have_the_servers_own(server: Server, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    async with listening(server, certificate(theirs, "api.example.org")) as address:
        assert await status(address, f"8000-{'0' * 32}.{ZONE}", ca_path(server.home)) == 404
        assert await status(address, "api.example.org", ca_path(theirs)) == 403


@pytest.mark.parametrize("zone", ["", "a b", "127.0.0.1", "-x.org", VENDOR, "x/y"])
def test_what_is_no_domain_is_refused_before_anything_starts(zone: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["serve", "--zone", zone]) == 1
    assert "--zone" in capsys.readouterr().err
