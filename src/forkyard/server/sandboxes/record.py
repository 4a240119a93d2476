"""What is kept of a sandbox, as a row written before anybody is told, and the object clients are shown of it."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping, Set
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from forkyard.sandbox import Feature, Limits, SandboxSpec
from forkyard.sandbox.promises import kept
from forkyard.server.sandboxes.states import WITH_CHECKPOINT, Phase, status_of
from forkyard.server.sandboxes.values import MAX_TTL, Enforced, SandboxObject

_ARM = ("aarch64", "arm64")


class Record(BaseModel, frozen=True):
    """One sandbox. Times are epoch seconds; `box` is the provider's id of it, from when it has a disk."""

    sandbox_id: str
    name: str
    phase: Phase = Phase.CREATING
    parent: str | None = None  # the sandbox it was forked from
    vcpu_count: int
    mem_size_mib: int
    storage_mib: int | None = None  # none of those that older servers made
    base_image: str
    image_id: str | None = None
    image: str  # what the provider calls the image it started from
    image_digest: str = ""
    env: dict[str, str] = {}
    labels: dict[str, str] = {}
    max_ttl_seconds: int
    idle_ttl_seconds: int
    max_concurrent_execs: int
    network: dict[str, Any] | None = None
    ports: list[int] = []
    mounts: list[dict[str, Any]] = []
    enable_service_ingress: bool = False
    created: float
    last_active: float
    running_at: float | None = None
    expires_at: float | None = None
    finished_at: float | None = None
    exit_reason: str | None = None
    checkpoint: str | None = None
    box: str | None = None

    @property
    def box_name(self) -> str:
        """What the provider calls it, from before it has an id."""
        return f"server-{self.sandbox_id}"

    @property
    def never_was(self) -> bool:
        """Whether nothing of it is there: it could not be made, or its disk is gone, and only the reason is kept."""
        return self.box is None and self.phase in (Phase.FAILED, Phase.EXITED)

    @property
    def limits(self) -> Limits:
        """Its shape, as bounds of a sandbox."""
        return Limits(cpus=float(self.vcpu_count), memory_mb=self.mem_size_mib, disk_mb=self.storage_mib)

    def spec(self, features: Set[Feature]) -> SandboxSpec:
        """How a provider with these features makes it."""
        return SandboxSpec(
            image=self.image,
            name=self.box_name,
            env=self.env,
            limits=kept(self.limits, features),
            survives=Feature.SURVIVES in features,
        )

    def mounts_disk(self, disk: str) -> bool:
        """Whether that disk is mounted in it."""
        return any(mount.get("disk_id") == disk for mount in self.mounts)

    def has_labels(self, wanted: Iterable[str]) -> bool:
        """Whether it has each of these labels, "key" or "key=value"."""
        pairs = (text.partition("=") for text in wanted)
        return all(key in self.labels and (not sign or self.labels[key] == value) for key, sign, value in pairs)


def session(record: Record, now: float | None = None) -> dict[str, Any]:
    """What changes of a record when a session begins in which it is powered on."""
    now = time.time() if now is None else now
    return {
        "running_at": now,
        "last_active": now,
        "expires_at": now + min(record.max_ttl_seconds, MAX_TTL),
        "finished_at": None,
        "exit_reason": None,
    }


def shown(record: Record, features: Set[Feature], more: Mapping[str, Any], phase: Phase | None = None) -> SandboxObject:
    """The object of a record; `more` are fields that other parts know, `phase` another phase than it is in by now."""
    phase = phase or record.phase
    fields = {
        **record.model_dump(
            include={
                "sandbox_id", "name", "vcpu_count", "mem_size_mib", "storage_mib", "max_ttl_seconds",
                "idle_ttl_seconds", "max_concurrent_execs", "base_image", "image_digest", "enable_service_ingress",
                "exit_reason", "labels",
            }
        ),
        "status": status_of(phase),
        "platform": "arm64" if platform.machine() in _ARM else "amd64",
        "created_at": time_text(record.created),
        "last_active_at": time_text(record.last_active),
        "running_at": time_text(record.running_at),
        "finished_at": time_text(record.finished_at),
        "expires_at": time_text(record.expires_at) if phase is Phase.RUNNING else None,
        "checkpoint": record.checkpoint if phase in WITH_CHECKPOINT else None,
        "parent_id": record.parent,
        "enforced": Enforced(
            vcpu_count=Feature.LIMIT_CPU in features,
            mem_size_mib=Feature.LIMIT_MEMORY in features,
            storage_mib=Feature.LIMIT_DISK in features,
        ),
        **more,
    }  # fmt: skip
    return SandboxObject.model_validate(fields)


def time_text(seconds: float | None) -> str | None:
    """RFC 3339 with three digits of a second, which every client reads."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
