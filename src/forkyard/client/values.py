"""What a client gets of sandboxes and disks; what a newer server says beside it is passed over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from forkyard.errors import ForkyardError


class SandboxStartError(ForkyardError):
    """A sandbox did not come up."""


class FileTransferError(ForkyardError):
    """A file did not arrive, or was not there."""


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Camel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class Port(_Facts):
    """A port of a sandbox that is exposed, and the host name it is reached by."""

    port: int
    hostname: str


class PortToken(_Facts):
    """What lets in to a port; `token` is told once, when it is made."""

    id: str
    port: int
    hostname: str
    created_at: str
    expires_at: str | None = None
    token: str | None = None


class SandboxFacts(_Facts):
    """What the server says of a sandbox. Times are RFC 3339."""

    sandbox_id: str
    name: str
    status: str
    vcpu_count: int
    mem_size_mib: int
    storage_mib: int | None = None
    max_ttl_seconds: int
    idle_ttl_seconds: int | None = None
    max_concurrent_execs: int
    base_image: str
    created_at: str
    last_active_at: str
    image_digest: str | None = None
    platform: str | None = None
    running_at: str | None = None
    finished_at: str | None = None
    expires_at: str | None = None
    exit_reason: str | None = None
    checkpoint: str | None = None
    parent_id: str | None = None
    labels: dict[str, str] = {}
    endpoints: list[Port] = []
    mounts: list[dict[str, Any]] = []


class DiskFacts(_Camel):
    """What the server says of a disk."""

    id: str
    name: str
    status: str
    region: str
    created_at: str
    allowed_ips: list[str] = []


class ObjectInfo(_Camel):
    """One object of a disk; `etag` without quotes."""

    key: str
    size: int
    etag: str
    modified: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of objects, the prefixes that go on beyond a "/", and where the next page begins."""

    objects: tuple[ObjectInfo, ...]
    prefixes: tuple[str, ...] = ()
    next: str | None = None


class ExecResult(_Facts):
    """How a command in a sandbox ended: `status` is completed, failed, cancelled or timed_out.

    `truncated`: there was more output than is here, since of each stream the newest 67,108,864 characters are kept.
    """

    status: str
    stdout: str
    stderr: str
    exit_code: int | None = None
    exit_reason: str | None = None
    truncated: bool = False

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.status == "completed" and self.exit_code == 0


class DiskExec(_Camel):
    """How a command over a disk ended. `truncated`: of a stream that was too long its end alone is here."""

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool = False
    timing: dict[str, int] = {}


class Match(_Camel):
    """A line that a search found."""

    file: str
    line: int
    text: str


class Grep(_Camel):
    """What a search found, and why it went no further."""

    matches: list[Match]
    stopped_reason: str
    files_scanned: int = 0


class Share(_Camel):
    """A link to an object, and for how many seconds it is good."""

    url: str
    expires_in: int


class BranchInfo(_Facts):
    """A branch of a disk; its id is that of a disk of its own."""

    branch_name: str
    root_filesystem_id: str
    filesystem_id: str
    created_at: str
