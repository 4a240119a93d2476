"""What clients send and get of sandboxes; the names are the wire's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, model_validator

from forkyard.sandbox import ARGUMENT_LIMIT
from forkyard.server.bodies import Sent
from forkyard.server.wording import Spelled

MAX_TTL = 86_400
DEFAULT_IMAGE = "node:24-bookworm"
_ENV_LIMIT = 512 * 1024  # bytes, all together


def _environment(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"{name[:40]!r} is no variable: a name without '=', and no NUL byte in either")
        if _size(name) + _size(value) >= ARGUMENT_LIMIT:
            raise ValueError(f"{name[:40]!r} is longer than {ARGUMENT_LIMIT} bytes; write it to a file instead")
    if sum(_size(name) + _size(value) for name, value in env.items()) > _ENV_LIMIT:
        raise ValueError(f"more than {_ENV_LIMIT} bytes of variables; write them to a file instead")
    return env


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


Name = Annotated[
    str,
    Spelled(
        r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        "1 to 63 lower-case letters (a to z), digits and '-', which neither begins nor ends it",
    ),
]
LabelKey = Annotated[
    str,
    Spelled(
        r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$",
        "a key of 1 to 63 letters (a to z), digits, '.', '_', '/' and '-', a letter or digit first",
    ),
]
LabelValue = Annotated[str, Spelled(r"^[ -~]{0,255}$", "at most 255 characters of printable ASCII")]
_Image = Annotated[str, Spelled(r"^[!-~]{1,512}$", "the name of an image, as python:3.13, without blanks")]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]
Env = Annotated[dict[str, str], AfterValidator(_environment)]
Storage = Annotated[int, Field(ge=16, le=1 << 24)]
Lifetime = Annotated[int, Field(ge=60, le=MAX_TTL)]
IdleTime = Annotated[int, Field(ge=0, le=MAX_TTL)]


class CreateSandbox(Sent):
    """The body of POST /api/sandboxes. `network`, `ports` and `mounts` are read by the parts that keep them."""

    name: Name | None = None
    vcpu_count: int = Field(default=1, ge=1, le=32)
    mem_size_mib: int = Field(default=2048, ge=256, le=65_536)
    storage_mib: Storage | None = None
    base_image: _Image | None = None
    image_id: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    env: Env = {}
    max_ttl_seconds: Lifetime = MAX_TTL
    idle_ttl_seconds: IdleTime = 1800
    max_concurrent_execs: int = Field(default=32, ge=1, le=256)
    network: dict[str, Any] | None = None
    ports: list[Annotated[int, Field(ge=1, le=65_535)]] | None = Field(default=None, max_length=64)
    mounts: list[dict[str, Any]] | None = Field(default=None, max_length=64)
    enable_service_ingress: bool = False
    labels: Labels = {}

    @model_validator(mode="after")
    def _one_image(self) -> CreateSandbox:
        if self.base_image is not None and self.image_id is not None:
            raise ValueError("base_image and image_id: give one of them")
        return self


class StartSandbox(Sent):
    """The body of POST start; `mounts` take the place of those it had, for this session and later ones."""

    mounts: list[dict[str, Any]] | None = Field(default=None, max_length=64)


class ForkSandbox(Sent):
    """The body of POST fork. The labels are added to those of the source."""

    name: Name | None = None
    checkpoint: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    labels: Labels = {}
    storage_mib: Storage | None = None


class TimeoutSandbox(Sent):
    """The body of POST timeout; what is left out stays."""

    timeout: Annotated[int, Field(ge=1, le=MAX_TTL)] | None = None
    idle_ttl_seconds: IdleTime | None = None


class Waiting(BaseModel):
    """Whether the answer is held until the sandbox runs, as far as that does not take long."""

    wait: bool = False


class Listing(BaseModel):
    """Which sandboxes are listed: those that have each `label`, "key" or "key=value", and mount the disk."""

    filesystem: str | None = None
    label: list[str] = []


class Deletion(BaseModel):
    """`cascade` deletes the forks of a sandbox with it, and stops first what runs of them all."""

    cascade: bool = False


class Endpoint(BaseModel):
    """A port of a sandbox and the host name it is reached by."""

    port: int
    hostname: str


class SandboxMount(BaseModel):
    """A disk in a sandbox."""

    disk_id: str
    path: str
    read_only: bool = False
    conditional: bool = False
    subdirectory: str | None = None
    queue_ms: int | None = None


class Enforced(BaseModel):
    """Which bounds the provider keeps on this machine."""

    vcpu_count: bool
    mem_size_mib: bool
    storage_mib: bool


class SandboxObject(BaseModel):
    """A sandbox as clients see it. Times are RFC 3339."""

    sandbox_id: str
    name: str
    status: Literal[
        "pending", "running", "pausing", "paused", "stopping", "stopped", "exited", "failed", "deleting", "deleted"
    ]
    vcpu_count: int
    mem_size_mib: int
    storage_mib: int | None = None
    max_ttl_seconds: int
    idle_ttl_seconds: int
    max_concurrent_execs: int
    base_image: str
    image_digest: str
    platform: Literal["amd64", "arm64"]
    created_at: str
    last_active_at: str
    running_at: str | None = None
    finished_at: str | None = None
    expires_at: str | None = None
    exit_reason: str | None = None
    checkpoint: str | None = None
    endpoints: list[Endpoint] = []
    mounts: list[SandboxMount] = []
    enable_service_ingress: bool = False
    parent_id: str | None = None
    labels: dict[str, str] = {}
    enforced: Enforced


class SandboxList(BaseModel):
    """Sandboxes, oldest first."""

    sandboxes: list[SandboxObject]
