"""Disks made, listed, shown and deleted."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING

from forkyard.disk import Bucket, Disk, DiskInfo, RootAttributes, User
from forkyard.server.activity import Activity
from forkyard.server.disks.access import disk_of, told
from forkyard.server.disks.leases import Leases
from forkyard.server.disks.values import (
    AuthorizedUser,
    ConnectedClient,
    CreatedDisk,
    CreateDisk,
    DiskObject,
    DiskQuery,
    RootAttrs,
    Storage,
    StorageConfig,
    StorageMount,
    moment,
)
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer, ApiError, not_here
from forkyard.server.hosts import REGION
from forkyard.server.paging import LIMIT, page

if TYPE_CHECKING:
    from forkyard.server.serving import Server

_GOOGLE = "https://storage.googleapis.com"


def endpoints(server: Server) -> list[Endpoint]:
    """The rows of disks themselves."""

    async def create_disk(call: Call) -> Answer:
        return await _create(server, call.body)

    async def list_disks(call: Call) -> Answer:
        return _list(server, call.query)

    async def get_disk(call: Call) -> Answer:
        return Answer(shown(server, disk_of(server, call).info))

    async def delete_disk(call: Call) -> Answer:
        await _delete(server, disk_of(server, call))
        return Answer()

    path = "/api/disks/{id}"
    return [
        Endpoint(
            "POST",
            "/api/disks",
            create_disk,
            "Make a disk; one of the same name and configuration is answered with 200",
            body=CreateDisk,
            data=CreatedDisk,
            success=(200, 201),
            errors=(409, 501, 503),
        ),
        Endpoint(
            "GET", "/api/disks", list_disks, "Disks in the order of their ids", query=DiskQuery, data=list[DiskObject]
        ),
        Endpoint("GET", path, get_disk, "One disk", data=DiskObject, errors=(404,)),
        Endpoint("DELETE", path, delete_disk, "Delete a disk with its branches", errors=(404, 409, 503)),
    ]


async def _create(server: Server, asked: CreateDisk) -> Answer:
    access = server.disks.access
    backend = _bucket(asked.mounts[0]) if asked.mounts else None
    root = None if asked.root_attrs is None else RootAttributes(**asked.root_attrs.model_dump())
    with told():
        disk, made = await server.disks.create(asked.name, backend=backend, root=root)
        disk_id = disk.info.id
        if not made:
            _check_same(server, asked, disk)
            return Answer(CreatedDisk(disk_id=disk_id))
        try:
            access.allow(disk_id, asked.allowed_ips)
            user, token = access.add_token(disk_id)
        except BaseException:
            await server.disks.delete(disk_id)
            raise
    server.the(Activity).record("disk.created", disk_id, name=asked.name)
    return Answer(CreatedDisk(disk_id=disk_id, authorized_users=[shown_user(user, token)]), 201)


def _check_same(server: Server, asked: CreateDisk, disk: Disk) -> None:
    """Addresses that were given have to be those it has; leaving them out asks for nothing."""
    if asked.allowed_ips and _networks(asked.allowed_ips) != _networks(server.disks.access.allowed(disk.info.id)):
        raise ApiError(
            409,
            f"there is a disk {asked.name!r} with other allowed addresses: give another name, or PUT "
            f"/api/disks/{disk.info.id}/allowed-ips",
            "name_taken",
        )


def _networks(texts: Iterable[str]) -> set[IPv4Network | IPv6Network]:
    try:
        return {ip_network(text, strict=False) for text in texts}
    except ValueError as err:
        raise ApiError(400, f"body: allowedIps: {err}", "invalid_request") from None


def _bucket(storage: Storage) -> Bucket:
    if storage.type == "azure-blob":
        raise not_here("a disk that is kept in Azure Blob Storage")
    if not storage.bucket_name:
        raise ApiError(400, "body: mounts[0].bucketName is missing", "invalid_request")
    endpoint = _GOOGLE if storage.type == "gcs" else storage.bucket_endpoint
    if endpoint is None and storage.type != "s3":
        raise ApiError(400, f"body: mounts[0].bucketEndpoint is missing, {storage.type} needs it", "invalid_request")
    return Bucket(
        storage.bucket_name,
        storage.bucket_prefix,
        endpoint,
        storage.bucket_region,
        storage.access_key_id,
        storage.secret_access_key,
    )


def _list(server: Server, query: DiskQuery) -> Answer:
    limit = min(query.limit, LIMIT)
    if query.name is not None:
        disk = server.disks.find(query.name)
        return Answer([] if disk is None else [shown(server, disk.info)])
    after = query.cursor or ""
    found = _named_with(server, query.q, after, limit + 1) if query.q else server.disks.list(after, limit + 1)
    answer = page(found, limit, lambda info: info.id, lambda infos: [shown(server, info) for info in infos])
    if not query.short:
        return answer
    total = len(_named_with(server, query.q or "", "", None))
    return Answer(answer.data, beside={**answer.beside, "total": total})


def _named_with(server: Server, part: str, after: str, most: int | None) -> list[DiskInfo]:
    found: list[DiskInfo] = []
    while infos := server.disks.list(after, 1000):
        found += [info for info in infos if part.lower() in info.name.lower()]
        if most is not None and len(found) >= most:
            return found[:most]
        after = infos[-1].id
    return found


async def _delete(server: Server, disk: Disk) -> None:
    users = server.the(Leases).of(disk.info.id)
    if users:
        names = ", ".join(sorted({use.told for use in users})[:10])
        raise ApiError(409, f"disk {disk.info.name!r} is mounted in {names}: stop what uses it first", "disk_in_use")
    with told():
        await server.disks.delete(disk.info.id)
    server.the(Activity).record("disk.deleted", disk.info.id, name=disk.info.name)


def shown(server: Server, info: DiskInfo) -> DiskObject:
    """The object of a disk."""
    access, clients = server.disks.access, server.the(Leases).of(info.id)
    return DiskObject(
        id=info.id,
        name=info.name,
        region=REGION,
        created_at=moment(info.created),
        mounts=[_shown_bucket(info.id, info.backend)] if info.backend else [],
        connected_clients=[
            ConnectedClient(id=use.holder, ip_address="127.0.0.1", connected_at=moment(use.since)) for use in clients
        ],
        authorized_users=[shown_user(user) for user in access.users(info.id)],
        allowed_ips=list(access.allowed(info.id)),
        capabilities=[] if info.backend else ["checkpoints"],
        root_attrs=RootAttrs(uid=info.root.uid, gid=info.root.gid, mode=info.root.mode),
    )


def _shown_bucket(disk_id: str, bucket: Bucket) -> StorageMount:
    config = StorageConfig(
        bucket_name=bucket.bucket,
        bucket_endpoint=bucket.endpoint,
        bucket_prefix=bucket.prefix or None,
        bucket_region=bucket.region,
    )
    return StorageMount(
        id=f"{disk_id}-0", type="s3-compatible" if bucket.endpoint else "s3", name=bucket.bucket, config=config
    )


_OF_TOKENS = (
    "the vendor's clients mount disks with such a token: here nothing is mounted by one, and it opens nothing. "
    "`forkyard key create NAME --disk DISK` makes a pair for S3 clients that opens this disk alone"
)


def shown_user(user: User, token: str | None = None) -> AuthorizedUser:
    """A user, and the token that was just made for them."""
    return AuthorizedUser(
        type=user.kind,
        nickname=user.nickname,
        identifier=user.identifier,
        principal=user.identifier if user.kind == "awssts" else None,
        token=token,
        note=None if token is None else _OF_TOKENS,
        token_suffix=user.suffix or None,
        created_at=moment(user.created),
    )
