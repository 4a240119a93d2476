"""Commands in a running sandbox that its own processes have no hold on (see `inside/apart.py`)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, NoReturn

from forkyard.errors import SandboxError
from forkyard.sandbox.held.live import HeldLive
from forkyard.sandbox.held.sandbox import HeldSandbox
from forkyard.sandbox.local.engine import Engine
from forkyard.sandbox.local.live import Live
from forkyard.sandbox.network import Network
from forkyard.sandbox.protocol import Sandbox
from forkyard.sandbox.tail import Allowance
from forkyard.sandbox.values import Change, EndedBy, SandboxInfo


class ApartLive(HeldLive):
    """What answers in the place of PID 1. It ends with the socket to it, and with the sandbox."""

    NOT_SET_UP: ClassVar[str] = "nothing can be run apart from what runs in the sandbox"

    def __init__(self, sock: socket.socket, beneath: Live) -> None:
        super().__init__(sock)
        self._beneath = beneath

    @property
    def kills(self) -> dict[EndedBy, int]:
        """Those of the sandbox: its limits hold for all that run in it."""
        return self._beneath.kills

    async def kill(self, why: str) -> None:
        """End what was started here; returns when all of it is gone."""
        with suppress(SandboxError, OSError):  # it ends by itself when the socket closes
            await self.clear()
        self._give_up(why)

    def _give_up(self, why: str) -> None:
        self.channel.end(why)


class ApartSandbox(HeldSandbox[ApartLive]):
    """A `Sandbox` over another, which goes on when this one is closed."""

    def __init__(self, beneath: HeldSandbox[Live], live: ApartLive, allowance: Allowance | None) -> None:
        super().__init__(beneath.config, None, beneath._outlet, live)
        self._beneath = beneath
        if allowance is not None:
            self._share(allowance, live)

    def _share(self, allowance: Allowance, live: ApartLive) -> None:
        """Count what is written here with what is written there; whoever is over it ends both."""
        others = allowance.over

        def over() -> None:
            others()
            live._output_over()

        self._allowance = live.commands.allowance = allowance
        allowance.over = over

    @property
    def id(self) -> str:
        """The store's identifier of the sandbox."""
        return self._beneath.id

    @property
    def info(self) -> SandboxInfo:
        """The store's row of the sandbox."""
        return self._beneath.info

    def _check_user(self, user: str) -> None:
        self._beneath._check_user(user)

    async def set_network(self, network: Network) -> None:
        """That of the sandbox (see the protocol)."""
        await self._beneath.set_network(network)

    async def fork(self, name: str | None = None) -> NoReturn:
        """What is apart is on no disk: SandboxError."""
        raise SandboxError("what stands apart in a sandbox has no forks: fork the sandbox")

    async def changes(self) -> list[Change]:
        """Those of the sandbox (see the protocol)."""
        return await self._beneath.changes()

    async def pristine(self) -> Sandbox:
        """As of the sandbox (see the protocol)."""
        return await self._beneath.pristine()

    async def _pause(self) -> NoReturn:
        raise SandboxError("what stands apart in a sandbox cannot be paused: pause the sandbox")

    async def _stop(self) -> NoReturn:
        raise SandboxError("what stands apart in a sandbox cannot be stopped: stop the sandbox, or close this")

    async def _start(self) -> NoReturn:
        raise SandboxError("what stands apart in a sandbox cannot be started: start the sandbox")

    async def _close(self) -> None:
        if self._live is not None:
            await self._live.kill("it was closed")
            self._live = None


async def stand_apart(engine: Engine, beneath: Live, own: Sequence[str], rlimits: dict[str, Any]) -> ApartLive | None:
    """What answers for commands apart; None where the kernel cannot keep them so. Raises SandboxError."""
    try:
        _, namespaces = await beneath.channel.request("apart")
    except OSError as err:
        if err.errno == errno.EOPNOTSUPP:
            return None
        raise SandboxError(f"{ApartLive.NOT_SET_UP}: {err.strerror or err}") from err
    try:
        live = ApartLive(engine.start_apart(namespaces, beneath.group), beneath)
    finally:
        for fd in namespaces:
            os.close(fd)
    try:
        await live.boot({"own": list(own), "rlimits": rlimits})
    except BaseException:
        await asyncio.shield(live.kill("it could not be set up"))
        raise
    return live
