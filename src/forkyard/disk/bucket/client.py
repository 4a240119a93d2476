"""The client of a bucket, and its errors in a disk's words."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from forkyard.disk.errors import STATUS, DiskError, no_such_key
from forkyard.disk.values import Bucket
from forkyard.errors import ConfigError

_TURN = threading.Lock()
"""Sessions make one client at a time."""

_SAME = {
    "404": "NoSuchKey",
    "NotFound": "NoSuchKey",
    "412": "PreconditionFailed",
    "416": "InvalidRange",
    "403": "AccessDenied",
    "ConditionalRequestConflict": "OperationAborted",
}


def connect(bucket: Bucket) -> Any:
    """A client for threads. ConfigError: boto3 is not installed."""
    try:
        config = importlib.import_module("botocore.config")
        session = _session()
    except ImportError as err:
        raise ConfigError("a disk that is kept in a bucket needs boto3: pip install 'forkyard[s3]'") from err
    with _TURN:
        return _client(session, config, bucket)


@cache
def _session() -> Any:
    """One for all clients, since making one reads a third of a second's worth of descriptions."""
    return importlib.import_module("boto3.session").Session()


def _client(session: Any, config: Any, bucket: Bucket) -> Any:
    return session.client(
        "s3",
        endpoint_url=bucket.endpoint,
        region_name=bucket.region or "us-east-1",
        aws_access_key_id=bucket.access_key,
        aws_secret_access_key=bucket.secret_key,
        config=config.Config(
            max_pool_connections=32,
            retries={"mode": "standard", "max_attempts": 3},
            request_checksum_calculation="when_required",  # many servers know no newer checksums
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if bucket.endpoint else {},
        ),
    )


@contextmanager
def told(bucket: Bucket, key: str = "") -> Iterator[None]:
    """Raise what the bucket says as a DiskError."""
    errors = importlib.import_module("botocore.exceptions")
    try:
        yield
    except errors.ClientError as err:
        code = str(err.response.get("Error", {}).get("Code", ""))
        code = _SAME.get(code, code)
        if code == "NoSuchKey":
            raise no_such_key(key) from err
        if code not in STATUS:
            raise DiskError(
                "ServiceUnavailable", f"the bucket {bucket.bucket!r} answered {code or 'an error'}"
            ) from err
        raise DiskError(code, f"{key!r}: the bucket {bucket.bucket!r} answered {code}") from err
    except errors.BotoCoreError as err:
        said = f"the bucket {bucket.bucket!r} cannot be reached ({type(err).__name__}): look at its endpoint and keys"
        raise DiskError("ServiceUnavailable", said) from err
