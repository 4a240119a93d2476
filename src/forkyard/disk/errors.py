"""What a disk refuses, by the names S3 has for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from forkyard.errors import ForkyardError

STATUS: Mapping[str, int] = MappingProxyType(
    {
        "AccessDenied": 403,
        "BucketAlreadyExists": 409,
        "EntityTooLarge": 400,
        "EntityTooSmall": 400,
        "InsufficientStorage": 507,
        "InternalError": 500,
        "InvalidArgument": 400,
        "InvalidBucketName": 400,
        "InvalidKey": 400,
        "InvalidPart": 400,
        "InvalidPartOrder": 400,
        "InvalidRange": 416,
        "InvalidRequest": 400,
        "KeyConflict": 409,
        "KeyTooLongError": 400,
        "MetadataTooLarge": 400,
        "NoSuchBucket": 404,
        "NoSuchKey": 404,
        "NoSuchUpload": 404,
        "NotImplemented": 501,
        "OperationAborted": 409,
        "PreconditionFailed": 412,
        "ServiceUnavailable": 503,
    }
)
"""The status of each code over HTTP. `InvalidKey`, `KeyConflict` and `InsufficientStorage` are ours, the rest S3's."""


class DiskError(ForkyardError):
    """A disk refused something, and nothing was changed; `code` says why as S3 does, the text what to do about it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        """The HTTP status that goes with the code."""
        return STATUS[self.code]


class ConflictError(DiskError):
    """A disk, or a branch, of this name exists and is another than what was asked for."""

    def __init__(self, message: str) -> None:
        super().__init__("BucketAlreadyExists", message)


def no_such_key(key: str) -> DiskError:
    """The error of reading what is not there."""
    return DiskError("NoSuchKey", f"there is no object {key!r} on this disk")


def always_removed(key: str) -> DiskError:
    """The error of a write into a directory that others remove at the same time."""
    return DiskError("OperationAborted", f"{key!r}: its directory is being removed by others: send it again")
