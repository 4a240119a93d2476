"""What a server that starts makes of a row another server left, which may have ended at any moment."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress

from forkyard.errors import ConfigError
from forkyard.sandbox import Provider, SandboxInfo
from forkyard.server.sandboxes.record import Record
from forkyard.server.sandboxes.states import FOUND, Phase

_ENDED = "the server ended while it was {}"


async def recovered(record: Record, provider: Provider, boxes: Sequence[SandboxInfo]) -> Record | None:
    """The record as it is from now on; None when its deletion was under way, and is done now.

    What ran is stopped, with the disk as it was; what was half made is removed and told as failed. A sandbox itself
    is opened when it is wanted. Raises SandboxError for what the provider cannot remove.
    """
    for box in boxes:
        if (box.name or "").startswith(f"{record.box_name}-"):  # a moment that was handed out
            await _close(provider, box.id)
    found = next((box for box in boxes if box.id == record.box or box.name == record.box_name), None)
    phase = FOUND[record.phase]
    if found is not None and record.phase in (Phase.CREATING, Phase.DELETING):
        await _close(provider, found.id)
    if phase is Phase.DELETING:
        return None
    if record.phase is Phase.CREATING:
        return _ended(record, phase, _ENDED.format("being made"), box=None)
    if record.box is not None and found is None:
        return _ended(record, Phase.FAILED, "its disk is gone: the provider has none of it any more", box=None)
    if record.phase in (Phase.STOPPED, Phase.EXITED, Phase.FAILED):
        return record
    return _ended(record, phase, _ENDED.format(record.phase.value), checkpoint=f"ckpt-{uuid.uuid4().hex[:16]}")


def _ended(record: Record, phase: Phase, why: str, **changes: str | None) -> Record:
    return record.model_copy(update={"phase": phase, "exit_reason": why, "finished_at": time.time(), **changes})


async def _close(provider: Provider, box: str) -> None:
    with suppress(ConfigError):  # it is gone already, or was never more than a row
        await (await provider.open(box)).close()
