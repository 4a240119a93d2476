"""The network of every sandbox of the server: had from its start on, changed while it runs, drained before a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from forkyard.errors import SandboxError
from forkyard.sandbox import Feature, Network, Provider, Sandbox, SandboxSpec
from forkyard.sandbox.network import Drains
from forkyard.sandbox.promises import network_features
from forkyard.server.envelope import ApiError, not_here
from forkyard.server.network.values import NOTHING, NetworkPolicy, masked, network_of, unmasked
from forkyard.server.sandboxes import Attendant, CreateSandbox, Life, Phase, Record
from forkyard.server.wording import refused

DRAIN_SECONDS = 600.0


class Networks(Attendant):
    """Sees to the networks of sandboxes."""

    def __init__(self, provider: Provider, patience: float = DRAIN_SECONDS) -> None:
        self._provider = provider
        self._patience = patience
        self._draining: dict[str, asyncio.Task[None]] = {}
        self._hurried: set[str] = set()  # whose pause is not to wait, and has not come to waiting yet
        self._turns: WeakKeyDictionary[Life, asyncio.Lock] = WeakKeyDictionary()

    async def accept(self, asked: CreateSandbox, name: str) -> Mapping[str, Any]:
        """The policy that was asked for. ApiError and ConfigError for one that cannot be."""
        if asked.network is None:
            return {}
        try:
            policy = NetworkPolicy.model_validate(asked.network, strict=True)
        except ValidationError as err:
            raise ApiError(400, f"network: {refused(err, 'the policy')}", "invalid_request") from None
        policy = unmasked(policy, NOTHING)
        self._refuse(network_of(policy))
        return {"network": _kept(policy)}

    def spec(self, record: Record, spec: SandboxSpec) -> SandboxSpec:
        """With its network."""
        return spec if record.network is None else replace(spec, network=network_of(_policy(record)))

    async def starting(self, life: Life, sandbox: Sandbox) -> None:
        """It has its network as soon as it runs."""
        if life.record.network is not None:
            await sandbox.set_network(network_of(_policy(life.record)))

    async def up(self, life: Life) -> None:
        """A fork has the network its record says, whatever its source remembered."""
        await self.starting(life, life.at_hand)

    async def down(self, life: Life) -> None:
        """A pause waits until the connections have ended that its policy names, but not for ever."""
        hurried = life.id in self._hurried
        self._hurried.discard(life.id)
        if hurried or life.record.phase is not Phase.PAUSING or life.record.network is None:
            return
        sandbox = life.at_hand
        if not network_of(_policy(life.record)).drain or not isinstance(sandbox, Drains):
            return
        draining = self._draining[life.id] = asyncio.create_task(sandbox.drained())
        try:
            await asyncio.wait({draining}, timeout=self._patience)
        finally:
            del self._draining[life.id]
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)

    def hurry(self, life: Life) -> None:
        """Wait for connections no more."""
        if (draining := self._draining.get(life.id)) is not None:
            draining.cancel()
        elif life.record.phase is Phase.PAUSING:
            self._hurried.add(life.id)

    def shown_network(self, life: Life) -> NetworkPolicy:
        """The policy of a sandbox, as clients are told it."""
        return masked(_policy(life.record))

    async def change(self, life: Life, asked: NetworkPolicy) -> NetworkPolicy:
        """Another policy for a sandbox that runs. Raises ApiError and ConfigError."""
        if Feature.LIVE_NETWORK not in self._provider.features:
            raise not_here(f"other networks for a sandbox that runs, with the provider {self._provider.name}")
        async with self._turns.setdefault(life, asyncio.Lock()):
            policy = unmasked(asked, _policy(life.record))
            network = network_of(policy)
            self._refuse(network)
            sandbox = life.sandbox
            try:
                await sandbox.set_network(network)
            except SandboxError as err:
                with suppress(SandboxError):  # it reaches nothing then
                    await sandbox.set_network(network_of(_policy(life.record)))
                raise ApiError(500, f"sandbox {life.record.name!r}: {err}", "sandbox_error") from None
            life.note(network=_kept(policy))
        return masked(policy)

    def _refuse(self, network: Network) -> None:
        missing = network_features(network) - self._provider.features
        if network.mode != "none" and missing:
            raise not_here(
                f"this network with the provider {self._provider.name}, which does not promise "
                f"{', '.join(sorted(missing))}"
            )


def _policy(record: Record) -> NetworkPolicy:
    return NOTHING if record.network is None else NetworkPolicy.model_validate(record.network)


def _kept(policy: NetworkPolicy) -> dict[str, Any]:
    return policy.model_dump(exclude_none=True)
