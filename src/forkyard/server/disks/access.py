"""The disk a request means, and whether its client may reach what is on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forkyard.disk import Disk, DiskError
from forkyard.server.envelope import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

    from forkyard.server.endpoints import Call
    from forkyard.server.serving import Server

_SHOWN = 60
_CODES = {"NoSuchBucket": "not_found", "BucketAlreadyExists": "name_taken"}
"""What the control plane calls refusals that have another name in S3."""


@contextmanager
def told() -> Iterator[None]:
    """Refusals of disks in the body become those of the control plane."""
    try:
        yield
    except DiskError as err:
        raise ApiError(err.status, str(err), _CODES.get(err.code, err.code)) from err


def disk_of(server: Server, call: Call) -> Disk:
    """The disk with the id in the path. Raises ApiError 404."""
    return disk_with(server, call.path["id"])


def disk_with(server: Server, disk_id: str) -> Disk:
    """The disk of an id. Raises ApiError 404."""
    try:
        return server.disks.get(disk_id)
    except DiskError as err:
        named = server.disks.find(disk_id)
        told = (
            "GET /api/disks lists them" if named is None else f"that is the name of the one with the id {named.info.id}"
        )
        text = f"there is no disk with the id {disk_id[:_SHOWN]!r}: {told}"
        raise ApiError(404, text, "not_found") from err


def check_address(server: Server, request: Request, disk: Disk) -> None:
    """Raise ApiError 403 when a disk's content may not be reached from where the client is."""
    if not server.disks.access.permits(disk.info.id, request.client.host if request.client else ""):
        raise ApiError(
            403,
            f"disk {disk.info.name!r} may not be used from your address: PUT /api/disks/{disk.info.id}/allowed-ips "
            "names those it may be used from",
            "address_not_allowed",
        )
