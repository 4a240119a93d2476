"""A shell that `forkyard env` pointed at the server: what programs in it reach, and what it tells of."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from forkyard.server.address import Address
from forkyard.server.listening import Listening, listening
from forkyard.server.pointing import exports, replaced_trust
from forkyard.server.running import Running
from forkyard.server.serving import Server
from forkyard.server.tls import ca_path, trusted_path
from tests.server.test_ports import Box

PROGRAMS = {
    "curl": "curl -sS -o /dev/null -w '%{http_code}' URL",
    "requests": """python -c 'import requests; print(requests.get("URL").status_code)'""",
    "httpx": """python -c 'import httpx; print(httpx.get("URL").status_code)'""",
    "httpx2": """python -c 'import httpx2; print(httpx2.get("URL").status_code)'""",
}


def pointed(server: Server, address: Address, shell: dict[str, str]) -> dict[str, str]:
    """The variables of a shell after `eval "$(forkyard env)"`."""
    lines = exports(server.home, Running(address), by_hosts=False, shell=shell)
    said = subprocess.run(
        ["sh", "-c", "\n".join([*lines, "env -0"])], env=shell, capture_output=True, check=True
    ).stdout
    return dict(each.split("=", 1) for each in said.decode().split("\0") if each)


async def status(program: str, url: str, environ: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", PROGRAMS[program].replace("URL", url), env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return said.decode().strip()


async def test_the_address_of_a_port_is_reached_and_so_is_the_server_itself(
    server: Server, http: httpx2.AsyncClient, address: Address
) -> None:
    box = await Box.made(server, http, ports=[8000])
    await box.serve(8000)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    theirs = "/no/such/bundle.pem"
    before = {"PATH": path, "CURL_CA_BUNDLE": theirs, "no_proxy": "localhost", "https_proxy": "http://127.0.0.1:9"}
    shell = pointed(server, address, before)
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    for program in PROGRAMS:
        assert await status(program, f"https://{box.host(8000)}/", shell) == "203", program
        assert await status(program, f"{address.origin}/openapi.json", shell) == "200", program
    async with listening(server, Listening(tls=True)) as secure:
        shell = pointed(server, secure, {"PATH": path})
        assert await status("curl", f"https://{box.host(8000)}:{secure.port}/", shell) == "203"
        for host in ("127.0.0.1", "localhost"):
            assert await status("curl", f"https://{host}:{secure.port}/openapi.json", shell) == "200"
    await box.sandbox.stop()


def test_hosts_that_a_shell_reached_without_a_proxy_stay_so_but_for_names_beneath_localhost(tmp_path: Path) -> None:
    running = Running(Address("127.0.0.1", 8700))
    shell = {"NO_PROXY": "localhost, .corp.example,127.0.0.1,*"}
    lines = [*exports(tmp_path, running, by_hosts=False, shell=shell)]
    assert "export NO_PROXY=127.0.0.1,::1,.corp.example" in lines
    assert not any(line.startswith(("export no_proxy", "export https_proxy", "export CURL_CA")) for line in lines)
    again = {"NO_PROXY": "127.0.0.1,::1,.corp.example"}
    assert "export NO_PROXY=127.0.0.1,::1,.corp.example" in [*exports(tmp_path, running, by_hosts=False, shell=again)]


def test_certificates_that_a_shell_trusted_before_are_told_of(tmp_path: Path) -> None:
    running = Running(Address("127.0.0.1", 8700))
    shell = {"CURL_CA_BUNDLE": "/etc/corp.pem", "NODE_EXTRA_CA_CERTS": "/etc/corp.pem", "SSL_CERT_FILE": ""}
    lines = [*exports(tmp_path, running, by_hosts=False, shell=shell)]
    ours = trusted_path(tmp_path)
    assert {f"export {name}={ours}" for name in ("CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE")} <= {*lines}
    told = [*replaced_trust(tmp_path, running, shell)]
    assert [each.partition(" ")[0] for each in told] == ["CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"]
    assert all("SSL_CERT_FILE=/etc/corp.pem" in each for each in told)
    pointed_already = {"SSL_CERT_FILE": str(ours), "NODE_EXTRA_CA_CERTS": str(ca_path(tmp_path))}
    assert [*replaced_trust(tmp_path, running, pointed_already)] == []


async def test_a_server_started_in_a_pointed_shell_trusts_no_more_each_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(server, Listening()):
        first = trusted_path(server.home).read_bytes()
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted_path(server.home)))
    async with listening(server, Listening()):
        assert trusted_path(server.home).read_bytes() == first
