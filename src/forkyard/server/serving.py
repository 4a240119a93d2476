"""The server as its parts see it: what they share, entered and left in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from forkyard.errors import ConfigError
from forkyard.sandbox import Provider
from forkyard.server.address import Address
from forkyard.server.files import own_secret, server_home
from forkyard.server.hosts import is_vendor_host
from forkyard.server.keys import Keys
from forkyard.server.running import Sole
from forkyard.server.state import State
from forkyard.server.storage import default_storage_mib

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from forkyard.disk import Disks

T = TypeVar("T")
ZONE = "forkyard.localhost"
"""Ports of sandboxes have names of this zone unless another is given; every name beneath localhost is this machine."""


class Server:
    """What the parts of one server share. Made by `opened`."""

    def __init__(
        self,
        home: Path,
        provider: Provider,
        disks: Disks,
        state: State,
        zone: str = ZONE,
        storage_mib: int | None = None,
    ) -> None:
        self.home = home
        self.storage_mib = default_storage_mib(home) if storage_mib is None else storage_mib
        self.zone = zone
        self.provider = provider
        self.disks = disks
        self.state = state
        self.keys = Keys(state, home)
        self.address = Address("127.0.0.1", 0)  # the true one is known once it listens
        self._kept: dict[type[Any], Any] = {}

    @property
    def secret(self) -> bytes:
        """Signs tokens; the same for as long as FORKYARD_HOME lasts. Derive a key of your own from it."""
        return own_secret(self.home)

    def keep(self, thing: T) -> T:
        """Offer a registry to the other parts, by its class."""
        self._kept[type(thing)] = thing
        return thing

    def the(self, kind: type[T]) -> T:
        """The registry of that class. Raises LookupError when no part keeps one."""
        return cast(T, self._kept[kind])

    def origin(self, request: HTTPConnection) -> str:
        """What URLs made for this client begin with, as in "http://127.0.0.1:8700".

        That is the host it used, unless that is one of the vendor's, for which only a proxy brings it here.
        """
        host = request.headers.get("host", "")
        if not host or is_vendor_host(host.partition(":")[0]):
            return self.address.origin
        secure = request.scope["scheme"] in ("https", "wss")
        return f"{'https' if secure else 'http'}://{host}"


@asynccontextmanager
async def opened(
    home: Path, provider: Provider, zone: str = ZONE, *, storage_mib: int | None = None
) -> AsyncIterator[Server]:
    """A server over one FORKYARD_HOME, with what its parts recovered. Raises ConfigError when another runs there.

    Its parts are in `forkyard.server.parts`; the provider is borrowed. `zone` is a domain in lower case.
    `storage_mib` bounds what a sandbox writes to its disk that asks for no other bound: 0 is none, None the default.
    """
    from forkyard.disk import Disks
    from forkyard.server.parts import lifetimes

    async with AsyncExitStack() as stack:
        try:
            stack.enter_context(Sole(home))
        except BlockingIOError:
            raise ConfigError(f"a server runs on {home} already: stop it, or set FORKYARD_HOME") from None
        state = State(server_home(home) / "state.sqlite")
        stack.callback(state.close)
        disks = Disks(home)
        stack.push_async_callback(disks.close)
        server = Server(home, provider, disks, state, zone, storage_mib)
        for lifetime in lifetimes():
            await stack.enter_async_context(lifetime(server))
        yield server
