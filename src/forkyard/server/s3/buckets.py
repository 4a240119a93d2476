"""Disks as buckets: their list, whether one is there, where, and many objects of one removed at once."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from forkyard.disk import Condition, Disk, DiskError, DiskInfo, Disks
from forkyard.server.s3.auth import Caller
from forkyard.server.s3.bodies import LARGEST_DOCUMENT, body_of
from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.replies import OWNER, Asked, Reply, iso_date, told
from forkyard.server.s3.request import Request
from forkyard.server.s3.xml import Tree, child_text, parse

REGION = "us-east-1"
_MOST_DELETED = 1000
_MOST_LISTED = 10_000


async def list_buckets(disks: Disks, request: Request, caller: Caller) -> Reply:
    """GET of no disk at all: those the caller may use."""
    prefix, after = request.parameter("prefix"), request.parameter("continuation-token")
    most = request.number("max-buckets", _MOST_LISTED, 1, _MOST_LISTED)
    shown: list[DiskInfo] = []
    while len(shown) <= most and (page := disks.list(after)):
        after = page[-1].id
        shown += [info for info in page if caller.disk in (None, info.id) and info.name.startswith(prefix)]
    buckets: Tree = [
        ("Bucket", [("Name", info.name), ("CreationDate", iso_date(info.created)), ("BucketRegion", REGION)])
        for info in shown[:most]
    ]
    tree: list[tuple[str, str | int | bool | Tree]] = [
        ("Owner", [("ID", OWNER), ("DisplayName", OWNER)]),
        ("Buckets", buckets),
    ]
    if len(shown) > most:
        tree.append(("ContinuationToken", shown[most - 1].id))
    if prefix:
        tree.append(("Prefix", prefix))
    return told("ListAllMyBucketsResult", tree)


async def create_bucket(disks: Disks, request: Request, caller: Caller) -> Reply:
    """PUT of a disk: made if there is none of this name. The key pair of a disk makes no others."""
    body = await body_of(request, caller, LARGEST_DOCUMENT).whole()
    if body:
        parse(body, "CreateBucketConfiguration")
    if caller.disk is not None:
        if disks.resolve(request.bucket).info.id != caller.disk:
            raise S3Error("AccessDenied", "this key pair is of another disk")
    elif not _is_there(disks, request.bucket):
        await disks.create(request.bucket)
    return Reply(200, {"Location": f"/{request.bucket}"})


def _is_there(disks: Disks, bucket: str) -> bool:
    try:
        disks.resolve(bucket)
    except DiskError:
        return False
    return True


async def head_bucket(_: Asked) -> Reply:
    """HEAD of a disk."""
    return Reply(200, {"x-amz-bucket-region": REGION, "Content-Type": "application/xml"})


async def bucket_location(_: Asked) -> Reply:
    """GET of a disk with `location`; S3 leaves the name out of us-east-1."""
    return told("LocationConstraint", [])


async def bucket_versioning(_: Asked) -> Reply:
    """GET of a disk with `versioning`: it never had any."""
    return told("VersioningConfiguration", [])


async def delete_objects(asked: Asked) -> Reply:
    """POST of a disk with `delete`: each object by itself, and what went wrong with which."""
    body = await body_of(asked.request, asked.caller, LARGEST_DOCUMENT).whole()
    root = parse(body, "Delete")
    objects = root.findall("Object")
    if not 0 < len(objects) <= _MOST_DELETED:
        raise S3Error("MalformedXML", f"1 to {_MOST_DELETED} objects are deleted at once")
    wanted = [_wanted(each) for each in objects]
    quiet = (child_text(root, "Quiet") or "").strip().lower() == "true"
    tree: list[tuple[str, Tree]] = []
    for key, when in wanted:
        failure = await _deleted(asked.disk, key, when)
        if failure is not None:
            tree.append(("Error", [("Key", key), ("Code", failure.code), ("Message", str(failure))]))
        elif not quiet:
            tree.append(("Deleted", [("Key", key)]))
    return told("DeleteResult", tree)


async def _deleted(disk: Disk, key: str, when: Condition | None) -> DiskError | None:
    try:
        await disk.delete(key, when)
    except DiskError as err:
        return err
    return None


def _wanted(element: Element) -> tuple[str, Condition | None]:
    key = child_text(element, "Key")
    if key is None:
        raise S3Error("MalformedXML", "each <Object> has a <Key>")
    if child_text(element, "VersionId") not in (None, "null"):
        raise S3Error("NotImplemented", "disks keep no versions; leave <VersionId> out")
    etag = child_text(element, "ETag")
    return key, Condition(if_match=etag) if etag else None
