"""Who may use a disk and from where, and who alone writes to it now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forkyard.server.disks.access import disk_of, told
from forkyard.server.disks.catalogue import shown_user
from forkyard.server.disks.leases import Leases, Use
from forkyard.server.disks.values import (
    AllowedIps,
    AuthorizedUser,
    Delegation,
    Delegations,
    Message,
    NewUser,
    Revocation,
    UserQuery,
)
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer, ApiError, not_here

if TYPE_CHECKING:
    from forkyard.server.serving import Server

_KINDS = ("token", "awssts")


def endpoints(server: Server) -> list[Endpoint]:
    """The rows of users, addresses and delegations."""
    return [*_users(server), *_addresses(server), *_delegations(server)]


def _users(server: Server) -> list[Endpoint]:
    access = server.disks.access

    async def add_user(call: Call) -> Answer:
        disk_id, asked = disk_of(server, call).info.id, call.body
        with told():
            if asked.type == "token":
                if asked.principal is not None:
                    raise not_here("tokens of the client's own making")
                return Answer(shown_user(*access.add_token(disk_id, asked.nickname)), 201)
            if not asked.principal:
                raise ApiError(
                    400, "body: principal is missing, a user of type awssts is an IAM ARN", "invalid_request"
                )
            return Answer(shown_user(access.add_user(disk_id, "awssts", asked.principal)), 201)

    async def remove_user(call: Call) -> Answer:
        disk_id, kind = disk_of(server, call).info.id, call.path["user_type"]
        if kind not in _KINDS:
            raise ApiError(400, f"there are no users of type {kind[:40]!r}: token, or awssts", "invalid_request")
        if not access.remove_user(disk_id, kind, call.query.identifier):
            raise ApiError(404, "the disk has no such user: GET the disk to see whom it has", "not_found")
        return Answer(Message(message="the user was removed"))

    return [
        Endpoint(
            "POST",
            "/api/disks/{id}/users",
            add_user,
            "Let somebody use a disk; a token is shown this once",
            body=NewUser,
            data=AuthorizedUser,
            success=(201,),
            errors=(404, 501, 503),
        ),
        Endpoint(
            "DELETE",
            "/api/disks/{id}/users/{user_type}",
            remove_user,
            "Let somebody use a disk no more",
            query=UserQuery,
            data=Message,
            errors=(404, 503),
        ),
    ]


def _addresses(server: Server) -> list[Endpoint]:
    access = server.disks.access

    async def get_allowed(call: Call) -> Answer:
        return Answer(AllowedIps(allowed_ips=list(access.allowed(disk_of(server, call).info.id))))

    async def set_allowed(call: Call) -> Answer:
        disk_id = disk_of(server, call).info.id
        with told():
            return Answer(AllowedIps(allowed_ips=list(access.allow(disk_id, call.body.allowed_ips))))

    path = "/api/disks/{id}/allowed-ips"
    return [
        Endpoint("GET", path, get_allowed, "From where a disk may be used", data=AllowedIps, errors=(404,)),
        Endpoint(
            "PUT",
            path,
            set_allowed,
            "Say from where a disk may be used; an empty list is from anywhere",
            body=AllowedIps,
            data=AllowedIps,
            errors=(404, 503),
        ),
    ]


def _delegations(server: Server) -> list[Endpoint]:
    leases = server.the(Leases)

    async def list_delegations(call: Call) -> Answer:
        uses = leases.of(disk_of(server, call).info.id)
        return Answer(Delegations(delegations=[_delegation(use) for use in uses if use.exclusive]))

    async def revoke(call: Call) -> Answer:
        disk_id = disk_of(server, call).info.id
        if not leases.revoke(disk_id, call.body.client_id, call.body.inode_id):
            raise ApiError(404, "there is no such delegation: GET delegations lists them", "not_found")
        return Answer(Message(message="others may write beside it now; it keeps what it has mounted"))

    return [
        Endpoint(
            "GET",
            "/api/disks/{id}/delegations",
            list_delegations,
            "Who alone may mount a disk to write",
            data=Delegations,
            errors=(404,),
        ),
        Endpoint(
            "POST",
            "/api/disks/{id}/revoke-delegation",
            revoke,
            "Let others write beside a holder",
            body=Revocation,
            data=Message,
            errors=(404,),
        ),
    ]


def _delegation(use: Use) -> Delegation:
    return Delegation(client_id=use.holder, inode_id=use.inode, path=use.path or "/")
