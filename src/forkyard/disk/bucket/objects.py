"""The objects of a bucket, one request after the other. For threads; the client's errors pass."""

from __future__ import annotations

import threading
from typing import IO, Any

from forkyard.disk.bucket.client import connect, told
from forkyard.disk.bucket.headers import WRITER, as_arguments, info_of
from forkyard.disk.errors import DiskError
from forkyard.disk.values import About, Bucket, Condition, ObjectInfo, Range


class Objects:
    """Those whose keys begin with the bucket's prefix."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._turn = threading.Lock()
        self._client: Any = None

    @property
    def client(self) -> Any:
        """The client, made when it is first used, which takes a while. ConfigError: boto3 is not installed."""
        with self._turn:
            if self._client is None:
                self._client = connect(self.bucket)
            return self._client

    def call(self, name: str, key: str, **arguments: Any) -> Any:
        """One request about an object, by its name in the client."""
        return getattr(self.client, name)(**self.at(key), **arguments)

    def at(self, key: str) -> dict[str, str]:
        """Where an object is."""
        return {"Bucket": self.bucket.bucket, "Key": self.bucket.prefix + key}

    def close(self) -> None:
        """End its connections."""
        with self._turn:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def head(self, key: str) -> ObjectInfo:
        """What an object is. NoSuchKey."""
        return info_of(key, self.client.head_object(**self.at(key)))

    def find(self, key: str) -> ObjectInfo | None:
        """What an object is, or None."""
        try:
            with told(self.bucket, key):
                return self.head(key)
        except DiskError as err:
            if err.code == "NoSuchKey":
                return None
            raise

    def writer(self, key: str) -> str | None:
        """Who wrote the object as it is, if that was an append."""
        try:
            with told(self.bucket, key):
                said = self.client.head_object(**self.at(key)).get("Metadata", {})
        except DiskError as err:
            if err.code == "NoSuchKey":
                return None
            raise
        return {str(name).lower(): str(text) for name, text in said.items()}.get(WRITER)

    def only_if(self, key: str, when: Condition | None) -> dict[str, str]:
        """The condition checked now, and what the bucket is to check so that it still holds then."""
        if when is None:
            return {}
        there = self.find(key)
        when.check(None if there is None else there.etag, key)
        return {"IfNoneMatch": "*"} if there is None else {"IfMatch": f'"{there.etag}"'}

    def put(self, key: str, file: IO[bytes], about: About, when: Condition | None, **more: str) -> ObjectInfo:
        """Write a file that stands at its end."""
        only = self.only_if(key, when)
        size = file.tell()
        file.seek(0)
        said = as_arguments(about)
        said["Metadata"] |= more
        self.client.put_object(**self.at(key), **said, **only, Body=file, ContentLength=size)
        return self.head(key)

    def get(self, key: str, range: Range | None) -> tuple[Any, ObjectInfo, int, int]:
        """The answer, what the object is, and which bytes come. NoSuchKey, InvalidRange."""
        if range is None:
            answer = self.client.get_object(**self.at(key))
            info = info_of(key, answer)
            return answer, info, 0, info.size
        start, stop = range.within(self.head(key).size)
        answer = self.client.get_object(**self.at(key), Range=f"bytes={start}-{stop - 1}")
        return answer, info_of(key, answer), start, start + int(answer["ContentLength"])

    def delete(self, key: str, when: Condition | None) -> bool:
        """Remove an object; whether there was one."""
        there = self.find(key)
        if when is not None:
            if there is None and when.if_match is not None:
                raise DiskError("PreconditionFailed", f"If-Match was given, but there is no object {key!r}")
            when.check(None if there is None else there.etag, key)
        only = {"IfMatch": f'"{there.etag}"'} if there is not None and when is not None else {}
        self.client.delete_object(**self.at(key), **only)
        return there is not None
