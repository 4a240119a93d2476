"""A named disk as a writer of lines has it: of this machine, or of a server that the environment names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote
from xml.etree import ElementTree

from forkyard.disk.catalogue import Disks
from forkyard.disk.errors import DiskError
from forkyard.disk.protocol import Disk
from forkyard.errors import ConfigError
from forkyard.wire import Place, RefusedError, Reply, UrlTransport, data_of

_OBJECT_LIMIT = 5 << 30


class Objects(Protocol):
    """Objects of one disk. Every method raises OSError when it cannot be done, or when nobody knows whether it was."""

    directory: Path | None
    """Where on this machine the objects lie as plain files, if they do."""

    async def put(self, key: str, data: bytes) -> None:
        """Write an object whole."""
        ...

    async def append(self, key: str, data: bytes) -> None:
        """Add to an object's end, whole; at most `APPEND_LIMIT` bytes."""
        ...

    async def get(self, key: str) -> bytes | None:
        """An object; None when there is none."""
        ...

    async def size(self, key: str) -> int | None:
        """Its size; None when there is none."""
        ...


@asynccontextmanager
async def named_disk(name: str, home: Path, place: Place | None, *, create: bool = False) -> AsyncIterator[Objects]:
    """The disk of that name of the server at `place`, or of the FORKYARD_HOME `home`.

    ConfigError when there is none (and it is not to be made), its name cannot be one, or the server does not answer.
    """
    if place is not None:
        transport = UrlTransport(place)
        try:
            yield _OfServer(transport, await _found(transport, name, create))
        finally:
            await transport.close()
        return
    disks = Disks(home)
    try:
        try:
            disk = (await disks.create(name))[0] if create else disks.find(name)
        except DiskError as err:
            raise ConfigError(f"disk {name!r}: {err}") from err
        if disk is None:
            raise ConfigError(f"there is no disk {name!r} on this machine")
        yield _OfMachine(disk)
    finally:
        await disks.close()


class _OfMachine:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        try:
            self.directory: Path | None = disk.directory()
        except DiskError:  # it is kept in a bucket
            self.directory = None

    async def put(self, key: str, data: bytes) -> None:
        try:
            await self._disk.put(key, data)
        except DiskError as err:
            raise _failed(key, err) from err

    async def append(self, key: str, data: bytes) -> None:
        try:
            await self._disk.append(key, data)
        except DiskError as err:
            raise _failed(key, err) from err

    async def get(self, key: str) -> bytes | None:
        try:
            return await (await self._disk.get(key)).read()
        except DiskError as err:
            if err.code == "NoSuchKey":
                return None
            raise _failed(key, err) from err

    async def size(self, key: str) -> int | None:
        try:
            return (await self._disk.head(key)).size
        except DiskError as err:
            if err.code == "NoSuchKey":
                return None
            raise _failed(key, err) from err


class _OfServer:
    def __init__(self, transport: UrlTransport, disk_id: str) -> None:
        self.directory: Path | None = None
        self._transport = transport
        self._id = disk_id

    async def put(self, key: str, data: bytes) -> None:
        await self._ask("PUT", key, content=data)

    async def append(self, key: str, data: bytes) -> None:
        await self._ask("PUT", key, content=data, query={"append": "true"})

    async def get(self, key: str) -> bytes | None:
        reply = await self._ask("GET", key)
        return None if reply.status == 404 else reply.body

    async def size(self, key: str) -> int | None:
        reply = await self._ask("HEAD", key)
        return None if reply.status == 404 else int(reply.headers.get("content-length", "0"))

    async def _ask(self, method: str, key: str, **beside: Any) -> Reply:
        path = f"/{self._id}/{quote(key, safe='/')}"
        try:
            reply = await self._transport.request(method, path, limit=_OBJECT_LIMIT, **beside)
        except RefusedError as err:
            raise _failed(key, err) from err
        if reply.status >= 400 and not (reply.status == 404 and method in ("GET", "HEAD")):
            raise _failed(key, RefusedError(reply.status, _told(reply)))
        return reply


async def _found(transport: UrlTransport, name: str, create: bool) -> str:
    try:
        if create:
            made = data_of(await transport.request("POST", "/api/disks", json={"name": name}))
            return str(made["diskId"])
        found = data_of(await transport.request("GET", "/api/disks", query={"name": name}))
    except RefusedError as err:
        raise ConfigError(f"disk {name!r} of {transport.place.origin}: {err}") from err
    if not found:
        raise ConfigError(f"there is no disk {name!r} at {transport.place.origin}")
    return str(found[0]["id"])


def _told(reply: Reply) -> str:
    try:
        text = ElementTree.fromstring(reply.body[:65536]).findtext("{*}Message")
    except ElementTree.ParseError:
        text = None
    return (text or f"the server answered with status {reply.status}")[:2000]


def _failed(key: str, err: Exception) -> OSError:
    return OSError(f"{key}: {err}")
