"""The provider whose sandboxes are those of a Forkyard server elsewhere."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Self

from forkyard.errors import ConfigError, ProviderLost, SandboxError
from forkyard.sandbox.findings import Unusable
from forkyard.sandbox.keeping import KeepPolicy, KeptDisk
from forkyard.sandbox.promises import check_spec
from forkyard.sandbox.protocol import Sandbox
from forkyard.sandbox.remote.connection import PATH, Connection, connected
from forkyard.sandbox.remote.frames import Said
from forkyard.sandbox.remote.sandbox import RemoteSandbox, made
from forkyard.sandbox.remote.values import (
    LARGE,
    SMALL,
    VERSION,
    dumped,
    images_in,
    infos_in,
    kept_in,
    mapping,
    read,
    spec_out,
)
from forkyard.sandbox.values import Feature, ImageConfig, ImageInfo, SandboxInfo, SandboxSpec
from forkyard.wire import KEY_VARIABLES, URL_VARIABLES, RefusedError, Transport, UrlTransport, data_of, place_of

_NOT_FROM_AFAR = {Feature.MOUNTS, Feature.COMPOSE}
"""What names files of the machine that the provider runs on."""


class RemoteProvider:
    """Sandboxes of the server at `url` (FORKYARD_URL), whose key the variable `key_env` holds (FORKYARD_KEY).

    One session holds them: when it ends, in order or not, the server ends them. What it promises is what the server's
    own provider does. ConfigError for a server that is not named, does not answer, refuses the key or is none of ours.
    """

    name = "remote"

    def __init__(self, url: str | None = None, key_env: str | None = None) -> None:
        key = os.environ.get(key_env) if key_env else None
        if key_env and not key:
            raise ConfigError(f"the variable {key_env}, which is to hold the server's key, is not set")
        place = place_of(url, key)
        if place is None:
            raise Unusable(
                "the provider remote needs a server, and none is named",
                f"set {URL_VARIABLES[0]} and {KEY_VARIABLES[0]}, or give it the option url",
            )
        self._place = place
        self._transport: Transport = UrlTransport(place)
        self._features: frozenset[Feature] | None = None
        self._connection: Connection | None = None
        self._worked = False  # there has been a session
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def features(self) -> frozenset[Feature]:
        """What the server's provider promises, but for what names files of its machine. Asked for once."""
        if self._features is None:
            self._features = self._features_of(_asked(self._place))
        return self._features

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A running sandbox (see the protocol)."""
        return await self._made("create", spec=await self._spec(spec))

    async def open(self, id_or_name: str) -> Sandbox:
        """A stopped sandbox of the server's that was kept (see the protocol)."""
        return await self._made("open", name=id_or_name)

    async def sandboxes(self) -> list[SandboxInfo]:
        """Every sandbox of the server's provider."""
        return infos_in((await self._call("sandboxes", limit=LARGE)).value)

    async def images(self) -> list[ImageInfo]:
        """Every image there (see `ImageStore`)."""
        return images_in((await self._call("images", limit=LARGE)).value)

    async def image(self, name: str) -> ImageInfo | None:
        """One image, or None."""
        found = (await self._call("image", name=name)).value
        return None if found is None else read(ImageInfo, found)

    async def commit(self, sandbox: Sandbox, name: str, config: ImageConfig) -> ImageInfo:
        """Seal the disk of a stopped sandbox as an image."""
        said = await self._call("commit", box=_number(sandbox), name=name, config=dumped(config))
        return read(ImageInfo, said.value)

    async def remove_image(self, name: str) -> None:
        """Forget an image."""
        await self._call("remove_image", name=name)

    async def prune_images(self, prefix: str) -> list[str]:
        """Forget the images of a prefix that nothing else stands on."""
        return read(list[str], (await self._call("prune_images", prefix=prefix, limit=LARGE)).value)

    async def keep_disk(self, sandbox: Sandbox, name: str, without_env: Collection[str] = ()) -> None:
        """Keep the disk of a stopped sandbox (see `KeepsDisks`)."""
        await self._call("keep_disk", box=_number(sandbox), name=name, without_env=list(without_env))

    async def from_kept(self, name: str, spec: SandboxSpec) -> Sandbox:
        """A running sandbox on a fork of a kept disk (see `KeepsDisks`)."""
        return await self._made("from_kept", name=name, spec=await self._spec(spec))

    async def kept_disks(self) -> list[KeptDisk]:
        """All that can be had, oldest first; none where the server's provider keeps none."""
        return kept_in((await self._call("kept_disks", limit=LARGE)).value)

    async def prune_kept(self, policy: KeepPolicy) -> list[KeptDisk]:
        """Forget those that a policy does not keep (see `KeepsDisks`)."""
        return kept_in((await self._call("prune_kept", policy=dumped(policy), limit=LARGE)).value)

    async def sweep(self) -> list[str]:
        """Have the server remove what dead owners left there."""
        return read(list[str], (await self._call("sweep", limit=LARGE)).value)

    async def close(self) -> None:
        """End the session, and with it every sandbox of it; stopped named ones stay. It can be used again after."""
        async with self._connecting:
            connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
        await self._transport.close()

    async def _spec(self, spec: SandboxSpec) -> dict[str, Any]:
        await self._session()
        check_spec(self.name, spec, self.features)
        return spec_out(spec)

    async def _made(self, do: str, **args: Any) -> RemoteSandbox:
        connection = await self._session()
        return made(connection, (await connection.call(do, args)).value)

    async def _call(self, do: str, *, limit: int = SMALL, **args: Any) -> Said:
        return await (await self._session()).call(do, args, limit=limit)

    async def _session(self) -> Connection:
        """The session; another one when it was lost."""
        async with self._connecting:
            if self._connection is None or self._connection.lost:
                if self._connection is not None:
                    await self._connection.close()
                    self._connection = None
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> Connection:
        try:
            connection, said = await connected(self._transport)
        except RefusedError as err:
            if self._worked or not (self._features is None or err.status):
                raise self._lost(err) from err
            raise _no_server(self._place.origin, err) from err  # it has not worked yet, or will not
        try:
            self._features = self._features_of(said)
        except BaseException as err:
            await connection.abandon()
            if self._worked and isinstance(err, ConfigError):  # there is another server now
                raise self._lost(err) from err
            raise
        self._worked = True
        return connection

    def _lost(self, err: Exception) -> ProviderLost:
        return ProviderLost(f"the server {self._place.origin}, on which the sandboxes were, is lost: {err}")

    def _features_of(self, said: Mapping[str, Any]) -> frozenset[Feature]:
        if said.get("version") != VERSION:
            raise ConfigError(
                f"the server {self._place.origin} speaks version {said.get('version')!r} of the engine's protocol, "
                f"this is {VERSION}: have the same version of forkyard on both sides"
            )
        known = {str(feature): feature for feature in Feature}
        return (
            frozenset(known[name] for name in read(list[str], said.get("features")) if name in known) - _NOT_FROM_AFAR
        )


def _number(sandbox: Sandbox) -> int:
    if not isinstance(sandbox, RemoteSandbox):
        raise SandboxError(f"sandbox {sandbox.id[:12]} is none of this server's")
    return sandbox.number


def _asked(place: Any) -> Mapping[str, Any]:
    """What the server says of its provider: asked from a thread of its own, since nobody can be waited for here."""
    import threading

    found: list[Any] = []

    async def ask() -> None:
        transport = UrlTransport(place)
        try:
            found.append(mapping(data_of(await transport.request("GET", PATH))))
        finally:
            await transport.close()

    def work() -> None:
        try:
            asyncio.run(ask())
        except Exception as err:  # noqa: BLE001 - raised where it is waited for
            found.append(err)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    match found:
        case [RefusedError() as err]:
            raise _no_server(place.origin, err) from err
        case [Exception() as err]:
            raise err
    return mapping(found[0])


def _no_server(origin: str, err: RefusedError) -> ConfigError:
    told = "it has no engine for others: it is no Forkyard server" if err.status == 404 else str(err)
    mend = f"see that `forkyard serve` runs there, and that {KEY_VARIABLES[0]} is a key of its (`forkyard key create`)"
    return Unusable(f"the provider remote cannot use {origin}: {told}", mend)
