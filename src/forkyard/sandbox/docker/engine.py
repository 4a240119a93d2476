"""The Docker Engine's HTTP interface over its Unix socket."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from forkyard.errors import ConfigError, EngineLost, ProviderLost, SandboxError
from forkyard.sandbox.findings import Unusable
from forkyard.values import tail

DEFAULT = "unix:///var/run/docker.sock"
HOW = "install it (Debian: `apt-get install docker.io`) and start it, or name its socket in DOCKER_HOST"
TIMEOUT = httpx2.Timeout(600.0, connect=10.0, pool=600.0)
CONNECTIONS = httpx2.Limits(max_connections=64, max_keepalive_connections=16)
_SHOWN = 600
_HEAD = 8


class Refused(SandboxError):
    """The Engine said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the Docker Engine says: {message}")
        self.status_code = status


def socket_path(host: str | None = None) -> Path:
    """The Engine's socket: `host`, DOCKER_HOST, or the usual one. ConfigError for an Engine elsewhere."""
    address = host or os.environ.get("DOCKER_HOST") or DEFAULT
    if not address.startswith("unix://"):
        raise ConfigError(
            f"the docker provider needs an Engine on this machine, at unix://PATH, and not {address!r}: its containers "
            "have to see files of this machine"
        )
    return Path(address.removeprefix("unix://"))


def ask(path: Path, what: str) -> dict[str, Any]:
    """One question to the Engine, from before there is an event loop. ConfigError when it does not answer."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path)), timeout=10.0) as client:
            answer = client.get(f"http://docker{what}").raise_for_status().json()
    except (OSError, httpx2.HTTPError) as err:
        reason = str(err) or type(err).__name__
        raise Unusable(f"no Docker Engine answers at unix://{path} ({reason})", HOW) from err
    except ValueError as err:
        raise Unusable(f"what answers at unix://{path} is no Docker Engine", HOW) from err
    return dict(answer)


class Engine:
    """Calls of one Engine, from one event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._client: httpx2.AsyncClient | None = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        data: bytes | None = None,
        missing_ok: bool = False,
        conflict_ok: bool = False,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        """One call: what the JSON of its answer says, or None. Refused when the Engine says no, EngineLost when silent.

        Values of `query` that are no text are given as JSON. With `missing_ok` what is not there is None, and
        with `conflict_ok` what is in no state for it.
        """
        answer = await self._request(method, path, query or {}, body=body, data=data)
        if (answer.status_code == 404 and missing_ok) or (answer.status_code == 409 and conflict_ok):
            return None
        if answer.status_code >= 400:
            raise Refused(answer.status_code, _message(answer))
        try:
            return json.loads(answer.content) if answer.content else None
        except ValueError:  # a stream of news, or text
            return None

    async def logs(self, container: str, limit: int) -> str:
        """The end of what a container has written to its streams, `limit` bytes at most."""
        inspected = await self.call("GET", f"/containers/{container}/json")
        query, kept = {"stdout": "1", "stderr": "1", "tail": "10000"}, bytearray()
        pieces = _Pieces(whole=bool(inspected["Config"]["Tty"]))
        try:
            async with self._opened().stream("GET", f"/containers/{container}/logs", params=query) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise Refused(answer.status_code, _message(answer))
                async for data in answer.aiter_raw():
                    kept += pieces.take(data)
                    del kept[:-limit]
        except httpx2.HTTPError as err:
            raise self._lost(err) from err
        return kept.decode("utf-8", "replace")

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        *,
        body: Mapping[str, Any] | None = None,
        data: bytes | None = None,
    ) -> httpx2.Response:
        params = {key: value if isinstance(value, str) else json.dumps(value) for key, value in query.items()}
        headers = {"Content-Type": "application/x-tar" if data is not None else "application/json"}
        content = data if data is not None else (json.dumps(body).encode() if body is not None else None)
        try:
            return await self._opened().request(method, path, params=params, content=content, headers=headers)
        except httpx2.HTTPError as err:
            raise self._lost(err) from err

    def _opened(self) -> httpx2.AsyncClient:
        if self._client is None:
            transport = httpx2.AsyncHTTPTransport(uds=str(self.path), limits=CONNECTIONS)
            self._client = httpx2.AsyncClient(transport=transport, base_url="http://docker", timeout=TIMEOUT)
        return self._client

    def _lost(self, err: httpx2.HTTPError) -> EngineLost:
        reason = str(err) or type(err).__name__
        kind = ProviderLost if _nobody_at(self.path) else EngineLost
        return kind(f"the Docker Engine at unix://{self.path} does not answer: {reason}")

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()


class _Pieces:
    """Takes the heads out of a stream of both outputs: eight bytes before each piece, the last four its length.

    The stream of a terminal is `whole`: it has none.
    """

    def __init__(self, whole: bool) -> None:
        self._whole, self._buffer = whole, bytearray()

    def take(self, data: bytes) -> bytes:
        """What has come whole."""
        if self._whole:
            return data
        self._buffer += data
        found, at = bytearray(), 0
        while len(self._buffer) >= at + _HEAD:
            end = at + _HEAD + int.from_bytes(self._buffer[at + 4 : at + _HEAD], "big")
            if len(self._buffer) < end:
                break
            found += self._buffer[at + _HEAD : end]
            at = end
        del self._buffer[:at]
        return bytes(found)


def _nobody_at(path: Path) -> bool:
    """Whether no Engine listens there; one that is busy does."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
    return False


def _message(answer: httpx2.Response) -> str:
    try:
        return tail(str(json.loads(answer.content)["message"]), _SHOWN)
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.text[:_SHOWN]}"
