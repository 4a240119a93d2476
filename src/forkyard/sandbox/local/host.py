"""The image "host" of one store, under a name that tells what it repeats of the machine."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

from forkyard.errors import SandboxError
from forkyard.sandbox.local import hostimage
from forkyard.sandbox.local.box import SCRATCH, Box
from forkyard.sandbox.local.sandbox import launched
from forkyard.sandbox.local.yard import Yard
from forkyard.sandbox.values import ImageConfig, Limits


class HostImage:
    """Made at first use, and made again when what it repeats of the machine has changed."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._making = asyncio.Lock()
        self._name: str | None = None  # once it is known to be there

    async def box(self) -> Box:
        """The image; SandboxError when somebody removes it meanwhile."""
        async with self._making:
            store = self._yard.store
            if self._name is None:
                engine = await self._yard.engine()
                archive = await asyncio.to_thread(hostimage.skeleton, not engine.shifted_usr)
                self._name = f"{hostimage.NAME}@{hashlib.sha256(archive).hexdigest()[:12]}"
                if store.find("image", self._name) is None:
                    await self._make(self._name, archive)
            found = store.find("image", self._name)
            if found is None:
                self._name = None
                raise SandboxError("the image 'host' was removed while it was needed: try again")
            return found

    async def _make(self, name: str, archive: bytes) -> None:
        sandbox = await launched(self._yard, SCRATCH, None, ImageConfig(), Limits())
        try:
            await sandbox.push(archive)
            await sandbox.stop()
            await asyncio.to_thread(self._yard.store.settle)
            self._yard.store.put_image(name, replace(sandbox.box, host=True), hostimage.config())
        finally:
            await sandbox.close()
