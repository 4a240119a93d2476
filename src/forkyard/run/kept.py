"""The disks of a run's rollouts, kept under the rollouts' ids so that they can be graded again."""

from __future__ import annotations

import os

from forkyard.env.seat import KeepDisk
from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox import Provider, Sandbox, default_home
from forkyard.sandbox.keeping import KeepPolicy, KeepsDisks, keep_policy
from forkyard.task import Task
from forkyard.trace import Trace
from forkyard.values import MIB, counted

PRUNED_EVERY = 64  # disks
LOW_WATER = 4096 * MIB  # below this much free space every disk is looked at as soon as it is kept


class DiskKeeper:
    """Keeps disks on the providers of one run, as the policy of this process allows. Raises ConfigError."""

    def __init__(self) -> None:
        self.policy = keep_policy()
        self.kept = 0
        self._providers: dict[int, KeepsDisks] = {}

    def of(self, provider: Provider) -> KeepDisk | None:
        """What keeps the disks of a provider's sandboxes; None when it cannot, or nothing is to be kept."""
        if not self.policy.keeps or not isinstance(provider, KeepsDisks):
            return None
        keeps: KeepsDisks = provider
        self._providers[id(provider)] = keeps

        async def keep(trace: Trace, task: Task, sandbox: Sandbox) -> None:
            try:
                await keeps.keep_disk(sandbox, trace.id, tuple(task.runtime_env()))
                self.kept += 1
                if self.kept % PRUNED_EVERY == 0 or _is_low():
                    await keeps.prune_kept(self.policy)
            except (SandboxError, ConfigError) as err:
                trace.info["disk"] = f"not kept: {err}"

        return keep

    async def close(self) -> list[str]:
        """Prune once more, and say what was kept."""
        notes = [note for provider in self._providers.values() for note in await pruned(provider, self.policy)]
        kept = f"{counted(self.kept, 'disk')} kept to be graded again ({self.policy})"
        return [*notes, kept] if self.kept else notes


async def pruned(provider: Provider | KeepsDisks, policy: KeepPolicy) -> list[str]:
    """Forget what a policy does not keep, where disks are kept; what cannot be pruned stays, and the notes say why.

    A process that keeps nothing leaves those of others alone.
    """
    if not isinstance(provider, KeepsDisks) or not policy.keeps:
        return []
    try:
        await provider.prune_kept(policy)
    except SandboxError as err:
        return [f"kept disks that are due to go could not be removed: {err}"]
    return []


def _is_low() -> bool:
    home = default_home()
    found = os.statvfs(home if home.exists() else "/")
    return found.f_bavail * found.f_frsize < LOW_WATER
