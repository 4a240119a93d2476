"""Which operation a request is: by its method, by whether it names a key, and by the parameters that choose one."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

from forkyard.disk import Disk
from forkyard.server.s3 import buckets, listing, multipart, objects
from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.replies import Asked, Reply
from forkyard.server.s3.request import Request

Operation = Callable[[Asked], Coroutine[Any, Any, Reply]]
Copier = Callable[[Asked, Disk, str], Coroutine[Any, Any, Reply]]
"""An operation whose body is the object of that key on that disk."""

# Parameters that ask for something else than the plain method does. One that is not served here must be refused by
# name: a PUT with ?tagging is no PUT of the object.
_ASKING = frozenset(
    re.findall(
        r"[\w-]+",
        """
        accelerate acl analytics append attributes cors delete encryption intelligent-tiering inventory legal-hold
        lifecycle list-type location logging metadataConfiguration metadataTable metrics notification object-lock
        ownershipControls partNumber policy policyStatus publicAccessBlock renameObject replication requestPayment
        restore retention select session tagging torrent uploadId uploads versionId versioning versions website
        """,
    )
)
_OF_DISK: dict[tuple[str, frozenset[str]], Operation] = {
    ("HEAD", frozenset()): buckets.head_bucket,
    ("GET", frozenset()): listing.list_objects,
    ("GET", frozenset({"list-type"})): listing.list_objects_v2,
    ("GET", frozenset({"location"})): buckets.bucket_location,
    ("GET", frozenset({"versioning"})): buckets.bucket_versioning,
    ("GET", frozenset({"uploads"})): multipart.list_uploads,
    ("POST", frozenset({"delete"})): buckets.delete_objects,
}
_OF_KEY: dict[tuple[str, frozenset[str]], Operation] = {
    ("HEAD", frozenset()): objects.head_object,
    ("GET", frozenset()): objects.get_object,
    ("GET", frozenset({"uploadId"})): multipart.list_parts,
    ("PUT", frozenset()): objects.put_object,
    ("PUT", frozenset({"append"})): objects.append_object,
    ("PUT", frozenset({"partNumber", "uploadId"})): multipart.put_part,
    ("POST", frozenset({"uploads"})): multipart.begin_upload,
    ("POST", frozenset({"uploadId"})): multipart.complete_upload,
    ("DELETE", frozenset()): objects.delete_object,
    ("DELETE", frozenset({"uploadId"})): multipart.abort_upload,
}


def asking_of(request: Request) -> frozenset[str]:
    """The parameters of a request that choose an operation."""
    return frozenset(name for name, _ in request.query if name in _ASKING)


def operation_of(request: Request) -> Operation:
    """The operation of a request to a disk. Raises S3Error for what is not offered, or is none."""
    asking = asking_of(request)
    table = _OF_KEY if request.key else _OF_DISK
    found = table.get((request.method, asking))
    if found is not None:
        return found
    if asking:
        raise S3Error("NotImplemented", f"{request.method} with ?{'&'.join(sorted(asking))} is not offered by a disk")
    if any(method == request.method for method, _ in table):
        raise S3Error("InvalidRequest", f"{request.method} here needs a parameter that says what for, as ?uploads")
    what = "an object" if request.key else "a disk"
    raise S3Error("MethodNotAllowed", f"{request.method} is not offered for {what}")
