"""Branches of a disk. There are no checkpoints here: a branch is made of the disk as it is, called "current"."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

from pydantic import BaseModel

from forkyard.disk import Branch, DiskError
from forkyard.server.disks.access import disk_of, told
from forkyard.server.disks.values import BranchObject, CreateBranch, moment
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer, ApiError
from forkyard.server.state import TakenError

if TYPE_CHECKING:
    from forkyard.server.serving import Server

CURRENT = "current"
KEY_HEADER = "Idempotency-Key"
_KEYS_KEPT = 10_000
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Asked(BaseModel, frozen=True):
    """A branch that was asked for under an idempotency key."""

    disk_id: str
    name: str
    source: str | None


def endpoints(server: Server) -> list[Endpoint]:
    """The rows of branches."""
    keys = server.state.table("branch_requests", Asked)

    async def create_branch(call: Call) -> Answer:
        disk_id, body = disk_of(server, call).info.id, call.body
        if body.from_checkpoint_name != CURRENT:
            named = body.from_checkpoint_name
            text = f"there is no checkpoint {named!r}: a branch is made of {CURRENT!r}, the disk as it is"
            raise ApiError(404, text, "not_found")
        asked = Asked(disk_id=disk_id, name=body.branch_name, source=body.from_branch or None)
        key = _key(call.request.headers.get(KEY_HEADER))
        with told():
            there = _branch(server, asked)
            if key is not None:
                before = keys.get(key)
                _check_key(before, asked)
                if before is not None and there is not None:
                    return Answer(_shown(there), 201)
                if before is None and there is None:
                    _note(keys.add, key, asked)
                    keys.keep_newest(_KEYS_KEPT)
            return Answer(_shown(await server.disks.create_branch(disk_id, asked.name, asked.source)), 201)

    async def list_branches(call: Call) -> Answer:
        return Answer([_shown(branch) for branch in server.disks.branches(disk_of(server, call).info.id)])

    async def get_branch(call: Call) -> Answer:
        disk_id, name = disk_of(server, call).info.id, call.path["name"]
        with told():
            return Answer(_shown(server.disks.branch(disk_id, name)))

    path = "/api/disks/{id}/branches"
    return [
        Endpoint(
            "POST",
            path,
            create_branch,
            "Make a branch of a disk as it is now",
            body=CreateBranch,
            data=BranchObject,
            success=(201,),
            errors=(404, 409, 501, 503),
            headers=(KEY_HEADER,),
        ),
        Endpoint("GET", path, list_branches, "The branches of a disk", data=list[BranchObject], errors=(404,)),
        Endpoint("GET", path + "/{name}", get_branch, "One branch", data=BranchObject, errors=(404,)),
    ]


def _key(given: str | None) -> str | None:
    if given is None:
        return None
    if not _UUID.fullmatch(given):
        raise ApiError(400, f"the header {KEY_HEADER} is no UUID such as {uuid.UUID(int=0)}", "invalid_request")
    return given.lower()


def _check_key(before: Asked | None, asked: Asked) -> None:
    if before is not None and before != asked:
        raise ApiError(
            409, f"this {KEY_HEADER} was used for another branch: every request of its own needs one", "key_reused"
        )


def _note(add: object, key: str, asked: Asked) -> None:
    assert callable(add)
    try:
        add(key, asked)
    except TakenError:
        raise ApiError(409, "a request with this key is under way: wait for its answer", "key_in_use") from None


def _branch(server: Server, asked: Asked) -> Branch | None:
    try:
        return server.disks.branch(asked.disk_id, asked.name)
    except DiskError:
        return None


def _shown(branch: Branch) -> BranchObject:
    source = branch.disk_id if branch.source is None else f"{branch.disk_id}.{branch.source}"
    return BranchObject(
        root_filesystem_id=branch.disk_id,
        branch_name=branch.name,
        filesystem_id=f"{branch.disk_id}.{branch.name}",
        from_checkpoint_name=CURRENT,
        from_checkpoint_filesystem_id=source,
        created_at=moment(branch.created),
    )
