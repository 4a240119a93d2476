"""What clients send and get of disks; the names are the wire's, in camel case but for branches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from forkyard.server.bodies import Sent
from forkyard.server.wording import Spelled

DAY = 86_400
_PERMISSIONS = 0o777
_IDS = (1 << 31) - 1


def relative(path: str) -> str:
    """The same path; ValueError when it is not one beneath something."""
    if any(part in ("", ".", "..") for part in path.split("/")) or not path.isprintable():
        raise ValueError(f"{path[:100]!r} is no relative path without '.', '..' and empty parts")
    return path


Name = Annotated[str, Spelled(r"^[a-zA-Z0-9_-]{1,100}$", "1 to 100 letters (a to z), digits, '-' and '_'")]
Relative = Annotated[str, StringConstraints(min_length=1, max_length=1024), AfterValidator(relative)]
Inside = Annotated[str, Spelled(r"^/[^\x00]{1,1023}$", "an absolute path other than /, as /mnt/data")]
Text = Annotated[str, StringConstraints(max_length=256)]


def moment(seconds: float) -> datetime:
    """A time as answers have it."""
    return datetime.fromtimestamp(round(seconds, 3), UTC)


class Request(Sent):
    """What is sent of disks, in camel case."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The document says the same: what need not be there may be null."""
        schema = handler(core)
        about = handler.resolve_ref_schema(schema)
        needed = about.get("required", ())
        for name, each in about["properties"].items():
            if name not in needed and {"type": "null"} not in each.get("anyOf", ()):
                about["properties"][name] = {"anyOf": [each, {"type": "null"}]}
        return schema


class Wire(BaseModel):
    """What is answered, in camel case."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class RootAttrs(Request):
    """Owner and mode of a disk's top directory; the mode is a plain number, as 493 for 0755."""

    uid: int = Field(default=0, ge=0, le=_IDS)
    gid: int = Field(default=0, ge=0, le=_IDS)
    mode: int = Field(default=0o755, ge=0, le=_PERMISSIONS)


class Storage(Request):
    """Where else a disk may be kept: a bucket."""

    type: Literal["s3", "gcs", "r2", "s3-compatible", "azure-blob"]
    bucket_name: Text = ""
    bucket_prefix: Annotated[str, StringConstraints(max_length=1024)] = ""
    bucket_endpoint: (
        Annotated[str, StringConstraints(max_length=1024), Spelled(r"^https?://", "an http:// or https:// URL")] | None
    ) = None
    bucket_region: Text | None = None
    access_key_id: Text | None = None
    secret_access_key: Annotated[str, StringConstraints(max_length=1024)] | None = Field(default=None, repr=False)


class NewUser(Request):
    """Somebody who may use a disk: by a token that is made for them, or (noted only) an AWS principal."""

    type: Literal["token", "awssts"]
    nickname: Text = "default"
    principal: Text | None = None


class CreateDisk(Request):
    """The body of POST /api/disks."""

    name: Name
    mounts: list[Storage] = Field(default=[], max_length=1)
    allowed_ips: list[Text] = Field(default=[], max_length=1000)
    root_attrs: RootAttrs | None = None


class DiskQuery(BaseModel):
    """Which disks; `name` is the whole name, `q` a part of it. With `short`, `total` tells how many there are."""

    name: str | None = None
    q: str | None = None
    limit: int = Field(100, ge=1)
    cursor: str | None = None
    short: bool = False


class AuthorizedUser(Wire):
    """Somebody who may use a disk; `token` is shown once, when it is made, and `note` says what it is good for."""

    type: str
    nickname: str
    identifier: str
    principal: str | None = None
    token: str | None = None
    note: str | None = None
    token_suffix: str | None = None
    created_at: datetime


class ConnectedClient(Wire):
    """A sandbox that has the disk mounted."""

    id: str
    ip_address: str
    connected_at: datetime


class StorageConfig(Wire):
    """A bucket, without its secrets."""

    bucket_name: str
    bucket_endpoint: str | None = None
    bucket_prefix: str | None = None
    bucket_region: str | None = None


class StorageMount(Wire):
    """Where a disk is kept, if that is a bucket."""

    id: str
    type: str = "s3-compatible"
    path: str = "/"
    name: str
    access_mode: str = "rw"
    config: StorageConfig


class DiskObject(Wire):
    """A disk as clients know it."""

    id: str
    name: str
    organization: str = "org-local"
    status: Literal["available"] = "available"
    provider: str = "local"
    region: str
    created_at: datetime
    sandbox_disk: bool = Field(default=False, alias="sandbox_disk")
    mounts: list[StorageMount] = []
    connected_clients: list[ConnectedClient] = []
    authorized_users: list[AuthorizedUser] = []
    allowed_ips: list[str] = []
    capabilities: list[str] = []
    root_attrs: RootAttrs | None = None


class CreatedDisk(Wire):
    """The answer to a creation. Of a disk that was there before, nobody is told a token."""

    disk_id: str
    authorized_users: list[AuthorizedUser] = []


class UserQuery(BaseModel):
    """Which user."""

    identifier: Annotated[str, StringConstraints(min_length=1, max_length=256)]


class AllowedIps(Request):
    """The addresses and networks that may reach a disk's content; none named: all."""

    allowed_ips: list[Text] = Field(max_length=1000)


class Delegation(Wire):
    """A sandbox, or an exec, that alone may mount a disk to write."""

    client_id: str
    inode_id: int
    path: str
    is_pending: bool = False
    is_orphaned: bool = False


class Delegations(Wire):
    """Who holds what of a disk."""

    delegations: list[Delegation]


class Revocation(Request):
    """Whose delegation ends."""

    client_id: Text
    inode_id: int


class Message(Wire):
    """What was done."""

    message: str


class CreateBranch(BaseModel):
    """The body of POST branches."""

    branch_name: Name
    from_checkpoint_name: Text
    from_branch: Text | None = None


class BranchObject(BaseModel):
    """A branch: a copy of a disk that goes its own way."""

    root_filesystem_id: str
    branch_name: str
    filesystem_id: str
    from_checkpoint_name: str
    from_checkpoint_filesystem_id: str
    created_at: datetime


class Share(Request):
    """The body of POST share."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    expires_in: int = Field(default=DAY, ge=1, le=7 * DAY)


class ShareUrl(Wire):
    """A link to one file, and for how many seconds it is good."""

    url: str
    expires_in: int


class SandboxMount(Sent):
    """A disk in a sandbox, in snake case as all of sandboxes. A sole mount is at /mnt/archil unless it has a path."""

    disk_id: Text
    path: Inside | None = None
    subdirectory: Relative | None = None
    read_only: bool = False
    conditional: bool = False
    queue_ms: int | None = Field(default=None, ge=0, le=300_000)

    @model_validator(mode="after")
    def _waits_alone(self) -> SandboxMount:
        if self.queue_ms is not None and (self.read_only or self.conditional):
            raise ValueError("queue_ms is for a mount that no other shares: leave it out with read_only or conditional")
        return self
