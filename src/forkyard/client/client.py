"""A client of one server, or of the server that this process is itself."""

from __future__ import annotations

import asyncio
import atexit
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from forkyard.client.disks import Disk, disk_from, disk_id_of, found_disk
from forkyard.client.given import command_text
from forkyard.client.mounts import Mount, as_sent
from forkyard.client.sandboxes import Sandbox, sandbox_from
from forkyard.client.talk import Talk, understood
from forkyard.client.values import DiskExec
from forkyard.client.verbs import BACKGROUND, verb
from forkyard.errors import ConfigError
from forkyard.sandbox import default_home
from forkyard.wire import RefusedError, Transport, UrlTransport, place_of

_PAGE = 100
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Client:
    """The verbs of sandboxes and disks. Each method blocks, and has `.aio` to be awaited.

    Without `url`, and without FORKYARD_URL or ARCHIL_BASE_URL, this process is the server itself, over `home`
    (FORKYARD_HOME), from the first verb on until `close` or its end. With one, `key` is FORKYARD_KEY or ARCHIL_API_KEY
    unless it is given. ConfigError for an address that is none, and one without a key. What a server refuses is a
    RefusedError with its status, text and code.
    """

    def __init__(self, url: str | None = None, key: str | None = None, *, home: Path | None = None) -> None:
        if url is not None and home is not None:
            raise ConfigError("give the url of a server, or the home of one in this process, not both")
        self._place = None if home is not None else place_of(url, key)
        self._home = home
        self._talk: Talk | None = None
        self._opening: asyncio.Lock | None = None

    async def _talking(self) -> Talk:
        if self._opening is None:  # a lock belongs to the loop it is used in
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._talk is None:
                self._talk = Talk(await self._transport())
            return self._talk

    async def _transport(self) -> Transport:
        _at_exit(self)
        if self._place is not None:
            return UrlTransport(self._place)
        from forkyard.client.embedded import EmbeddedTransport

        return await EmbeddedTransport.opened(self._home or default_home())

    @verb
    async def create_sandbox(  # noqa: PLR0913 - one parameter for each thing a sandbox is made with
        self,
        name: str | None = None,
        *,
        base_image: str | None = None,
        image_id: str | None = None,
        vcpu_count: int | None = None,
        mem_size_mib: int | None = None,
        storage_mib: int | None = None,
        env: Mapping[str, str] | None = None,
        network: Mapping[str, Any] | None = None,
        mounts: Sequence[Mount | Mapping[str, Any]] = (),
        ports: Sequence[int] | None = None,
        labels: Mapping[str, str] | None = None,
        max_ttl_seconds: int | None = None,
        idle_ttl_seconds: int | None = None,
        max_concurrent_execs: int | None = None,
        idempotency_key: str | None = None,
        wait: bool = True,
    ) -> Sandbox:
        """A sandbox of an image, running unless `wait` is False; `base_image` is the server's own /usr by default.

        SandboxStartError when it does not come up.
        """
        talk = await self._talking()
        asked = {
            "name": name,
            "base_image": "host" if base_image is None and image_id is None else base_image,
            "image_id": image_id,
            "vcpu_count": vcpu_count,
            "mem_size_mib": mem_size_mib,
            "storage_mib": storage_mib,
            "env": None if env is None else dict(env),
            "network": None if network is None else dict(network),
            "mounts": await as_sent(talk, mounts) or None,
            "ports": None if ports is None else list(ports),
            "labels": None if labels is None else dict(labels),
            "max_ttl_seconds": max_ttl_seconds,
            "idle_ttl_seconds": idle_ttl_seconds,
            "max_concurrent_execs": max_concurrent_execs,
        }
        headers = {"idempotency-key": idempotency_key} if idempotency_key else None
        query = {"wait": "true" if wait else "false"}
        made = sandbox_from(talk, await talk.ask("POST", "/api/sandboxes", asked, query=query, headers=headers))
        return await made.up() if wait else made

    @verb
    async def list_sandboxes(
        self, *, disk: Disk | str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[Sandbox]:
        """Every sandbox, oldest first: those that mount a disk, and have these labels, if they are given."""
        talk = await self._talking()
        query: dict[str, str | list[str]] = {}
        if disk is not None:
            query["filesystem"] = await disk_id_of(talk, disk)
        if labels:
            query["label"] = [f"{name}={value}" for name, value in labels.items()]
        found = await talk.ask("GET", "/api/sandboxes", query=query)
        return [sandbox_from(talk, each) for each in found["sandboxes"]]

    @verb
    async def get_sandbox(self, name_or_id: str) -> Sandbox:
        """A sandbox by its name or its id. RefusedError when there is none."""
        talk = await self._talking()
        if _ID.fullmatch(name_or_id):
            try:
                return sandbox_from(talk, await talk.ask("GET", f"/api/sandboxes/{name_or_id}"))
            except RefusedError as err:
                if err.status != 404:
                    raise
        for found in await self.list_sandboxes.aio():
            if found.name == name_or_id:
                return found
        text = f"there is no sandbox {name_or_id!r:.100}, by this name or id: list_sandboxes() tells which there are"
        raise RefusedError(404, text, "not_found")

    @verb
    async def create_disk(
        self, name: str, *, mounts: Sequence[Mapping[str, Any]] = (), allowed_ips: Sequence[str] = ()
    ) -> Disk:
        """The disk of that name, made if there is none. `mounts` names a bucket it is to be kept in."""
        talk = await self._talking()
        asked = {"name": name, "mounts": [dict(mount) for mount in mounts], "allowedIps": list(allowed_ips)}
        made = await talk.ask("POST", "/api/disks", asked)
        return disk_from(talk, await talk.ask("GET", f"/api/disks/{quote(made['diskId'], safe='')}"))

    @verb
    async def list_disks(self, *, name: str | None = None) -> list[Disk]:
        """Every disk, or the one of a name."""
        talk = await self._talking()
        found: list[Disk] = []
        query: dict[str, str] = {"limit": str(_PAGE)} if name is None else {"name": name}
        while True:
            whole = await talk.whole("GET", "/api/disks", query=query)
            found += [disk_from(talk, each) for each in whole.get("data") or ()]
            cursor = whole.get("nextCursor")
            if not cursor or cursor == query.get("cursor"):
                return found
            query["cursor"] = cursor

    @verb
    async def get_disk(self, name_or_id: str) -> Disk:
        """A disk by its name or its id. RefusedError when there is none."""
        return await found_disk(await self._talking(), name_or_id)

    @verb
    async def exec(self, disks: Mapping[str, Disk | str], command: str) -> DiskExec:
        """Run a command over several disks, each at /mnt/archil/<its name in `disks`>."""
        text = command_text(command)
        talk = await self._talking()
        asked = {"disks": {at: await disk_id_of(talk, disk) for at, disk in disks.items()}, "command": text}
        return understood(DiskExec, await talk.ask("POST", "/api/exec", asked))

    @verb
    async def close(self) -> None:
        """Let go of connections; a server in this process ends. A later verb begins anew."""
        if self._opening is None:
            return
        async with self._opening:
            talk, self._talk = self._talk, None
        if talk is not None:
            _OPEN.discard(self)
            await talk.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close.aio()


_OPEN: set[Client] = set()
_registered = False


def _at_exit(client: Client) -> None:
    """Have what is open closed in order when the program ends, above all a server in this process."""
    global _registered
    _OPEN.add(client)
    if not _registered:
        _registered = True
        # Where there is that, before threads can be had no more, which ending sandboxes takes.
        getattr(threading, "_register_atexit", atexit.register)(_close_all)


def _close_all() -> None:
    if BACKGROUND.running:  # it does not in a child of a fork
        for client in list(_OPEN):
            client.close()
        BACKGROUND.wait(BACKGROUND.end_all())
