"""Commands over disks: each in a sandbox of its own, which is gone when the command ends."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from forkyard.errors import ConfigError, EngineLost, SandboxError
from forkyard.image import ensure_image
from forkyard.sandbox import (
    DEFAULT_PATH,
    NO_NETWORK,
    Feature,
    Limits,
    Network,
    Provider,
    Sandbox,
    SandboxSpec,
    image_provider,
)
from forkyard.sandbox.promises import kept
from forkyard.server.disks.leases import Leases
from forkyard.server.disks.mounting import Placed
from forkyard.server.disks.work import ExecResult, Timing
from forkyard.server.envelope import ApiError, not_here
from forkyard.values import new_id

IMAGE_VARIABLE = "FORKYARD_EXEC_IMAGE"
NETWORK_VARIABLE = "FORKYARD_EXEC_NETWORK"
HOST = "host"
TOOLS = (
    *("bash", "cat", "ls", "sort", "grep", "sed", "awk", "find", "curl", "jq"),
    *("python3", "node", "git", "column", "rg"),
)
"""What clients count on in the image: coreutils by some of its programs."""
LIMIT_SECONDS = 300.0
TAIL = 128 << 10
# What bash calls for a program there is none of. Whoever sent the command sees its streams, and not the server's log.
_NOT_FOUND = """() {{
    printf 'bash: line %s: %s: command not found (%s)\\n' "${{BASH_LINENO[0]}}" "$1" {why} >&2
    return 127
}}"""
_AT_ONCE = 16
_BOUNDS = Limits(memory_mb=2048, pids=1024, disk_mb=1024)
_log = logging.getLogger("forkyard.server")


class Execs:
    """Runs commands over disks with the provider of one server; `image` is what their sandboxes are made from."""

    def __init__(
        self,
        provider: Provider,
        leases: Leases,
        image: str = HOST,
        network: Network = NO_NETWORK,
        limit: float = LIMIT_SECONDS,
    ) -> None:
        self.image = image
        self._network = network
        self._provider = provider
        self._leases = leases
        self._limit = limit
        self._places = asyncio.Semaphore(_AT_ONCE)
        why = shlex.quote(f'commands over disks have what the image "{image}" of this server has')
        self._telling = {"BASH_FUNC_command_not_found_handle%%": _NOT_FOUND.format(why=why)}

    async def run(self, command: str, disks: Sequence[Placed], cwd: str) -> ExecResult:
        """Run a command by `bash -c`. Raises ApiError: 504 at the time limit, 400 for what cannot be mounted."""
        asked = time.monotonic()
        async with self.sandbox(disks, cwd) as box:
            ready = time.monotonic()
            result = await box.run(["bash", "-c", command], env=self._telling, timeout=self._limit, output_limit=TAIL)
            done = time.monotonic()
        if result.timed_out:
            raise ApiError(504, f"the command took longer than {self._limit:g} seconds, and was ended", "exec_timeout")
        return ExecResult(
            exit_code=result.exit_code if result.exit_code >= 0 else 128 - result.exit_code,
            stdout=result.stdout,
            stderr=result.stderr,
            truncated=result.truncated,
            timing=Timing(
                total_ms=_milliseconds(time.monotonic() - asked),
                queue_ms=_milliseconds(ready - asked),
                execute_ms=_milliseconds(done - ready),
            ),
        )

    @asynccontextmanager
    async def sandbox(self, disks: Sequence[Placed], cwd: str) -> AsyncIterator[Sandbox]:
        """A sandbox with disks mounted, for the body. Raises ApiError when it cannot be had."""
        if Feature.MOUNTS not in self._provider.features:
            raise not_here(f"commands over disks: the provider {self._provider.name} mounts none")
        async with self._held(disks), self._places:
            box = await self._created(disks, cwd)
            try:
                yield box
            except EngineLost as err:
                raise _no_room(err) from err
            finally:
                await asyncio.shield(box.close())

    @asynccontextmanager
    async def _held(self, disks: Sequence[Placed]) -> AsyncIterator[None]:
        """Nobody deletes the disks meanwhile, and where it was asked for nobody else writes to them."""
        holder = f"exec-{new_id()}"
        uses = [placed.use(holder, "a command over it") for placed in disks]
        try:
            for use, placed in zip(uses, disks, strict=True):
                await self._leases.wait(use, placed.wait)
            self._leases.take(uses)
            yield
        except ApiError as err:
            if err.code == "disk_in_use":
                raise ApiError(400, str(err), err.code) from err
            raise
        finally:
            self._leases.release(holder)

    async def _created(self, disks: Sequence[Placed], cwd: str) -> Sandbox:
        features = self._provider.features
        mounts = tuple(placed.mount() for placed in disks)
        spec = SandboxSpec(
            image=await self._ready_image(),
            workdir=cwd,
            network=self._network,
            limits=kept(_BOUNDS, features),
            mounts=mounts,
        )
        try:
            return await self._provider.create(spec)
        except EngineLost as err:
            raise _no_room(err) from err
        except SandboxError as err:  # its text names directories of this machine
            _log.error("a disk could not be mounted: %s", err)
            text = "a disk could not be mounted: it was deleted or moved meanwhile, or the server's log tells more"
            raise ApiError(400, text, "mount_failed") from err

    async def _ready_image(self) -> str:
        if self.image == HOST or Feature.IMAGES not in self._provider.features:
            return self.image
        try:
            return (await ensure_image(image_provider(self._provider), self.image)).name
        except (ConfigError, SandboxError) as err:
            raise ApiError(503, f"the server's image for commands, {self.image!r}, cannot be had: {err}") from err

    async def missing_tools(self) -> list[str]:
        """Which of `TOOLS` the image lacks; SandboxError and ApiError when that cannot be found out."""
        if self.image == HOST:  # of which sandboxes see what lies in /usr
            places = os.pathsep.join(f"/usr{place.removeprefix('/usr')}" for place in DEFAULT_PATH.split(":"))
            return [tool for tool in TOOLS if shutil.which(tool, path=places) is None]
        box = await self._created((), "/")
        try:
            script = f"for tool in {' '.join(TOOLS)}; do command -v $tool >/dev/null || echo $tool; done"
            return (await box.run(script, timeout=60)).stdout.split()
        finally:
            await box.close()


def _no_room(err: Exception) -> ApiError:
    return ApiError(503, f"there is no room for another sandbox now: {err}", "no_capacity", retry_after=1)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
