"""Small servers beside a registry: one that gives tokens, and ones that say what they were asked."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.image.oci.parts import port_of_ours, running_registry

SERVICE, ISSUER = "the registry", "the tests"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@asynccontextmanager
async def answering(answer: Callable[[Request], Answer], port: int = 0) -> AsyncIterator[str]:
    """An HTTP server that answers one request on each connection; "host:port"."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        given = answer(Request(method, path, headers, body))
        fields = {**given.headers, "Content-Length": str(len(given.body)), "Connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {given.status} X\r\n{head}\r\n".encode() + (b"" if method == "HEAD" else given.body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, reuse_port=bool(port))
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


@dataclass(frozen=True)
class Guarded:
    """A registry that believes the tokens of a server, which has yet to be started at `port`."""

    address: str
    port: int
    directory: Path


@contextmanager
def guarded_registry(directory: Path) -> Iterator[Guarded]:
    """A registry with a key and a certificate for tokens in `directory`."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tests"]
    subprocess.run(
        [*command, "-keyout", str(directory / "key"), "-out", str(directory / "cert")], check=True, capture_output=True
    )
    token = f"    service: {SERVICE}\n    issuer: {ISSUER}\n    rootcertbundle: {directory}/cert\n"
    with port_of_ours() as port:
        realm = f"auth:\n  token:\n    realm: http://127.0.0.1:{port}/token\n"
        with running_registry(directory, realm + token) as address:
            yield Guarded(address, port, directory)


@dataclass
class TokenServer:
    """Whoever has a login may do everything; everybody else may pull."""

    guarded: Guarded
    logins: frozenset[str]  # values of Authorization headers
    refresh_tokens: frozenset[str]
    requests: list[Request] = field(default_factory=list)

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        text = request.body.decode() if request.method == "POST" else urlsplit(request.path).query
        fields = {key: values[0] for key, values in parse_qs(text).items()}
        assert fields["service"] == SERVICE and fields["client_id"]
        login = request.headers.get("authorization") or fields.get("refresh_token")
        if login is not None and login not in self.logins | self.refresh_tokens:
            return Answer(401, body=b"{}")
        kind, name, actions = fields["scope"].split(":")
        allowed = actions.split(",") if login else ["pull"]
        token = self._token([{"type": kind, "name": name, "actions": allowed}])
        return Answer(body=json.dumps({"access_token" if "refresh_token" in fields else "token": token}).encode())

    def _token(self, access: list[dict[str, object]]) -> str:
        directory = self.guarded.directory
        certificate = "".join((directory / "cert").read_text().splitlines()[1:-1])
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": SERVICE, "sub": "", "jti": "1", "access": access}
        times = {"exp": now + 600, "nbf": now - 60, "iat": now - 60}
        parts = ({"typ": "JWT", "alg": "RS256", "x5c": [certificate]}, {**claims, **times})
        signed = ".".join(_text(json.dumps(part).encode()) for part in parts)
        command = ["openssl", "dgst", "-sha256", "-sign", str(directory / "key")]
        signature = subprocess.run(command, input=signed.encode(), capture_output=True, check=True).stdout
        return f"{signed}.{_text(signature)}"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
