"""Appending to an object of a bucket: read, and put back longer if it is still the same."""

from __future__ import annotations

import io
import secrets
from collections.abc import Sequence
from dataclasses import replace

from forkyard.disk.appends import Outcome, Waiting, lost_race
from forkyard.disk.bucket.client import told
from forkyard.disk.bucket.headers import WRITER
from forkyard.disk.bucket.objects import Objects
from forkyard.disk.errors import DiskError
from forkyard.disk.parts import new_md5
from forkyard.disk.values import About, Condition, ObjectInfo

APPENDED_LIMIT = 256 << 20
_TRIES = 8


def write_group(objects: Objects, key: str, group: Sequence[Waiting]) -> list[Outcome]:
    """Append in this order, each whole or not at all; an outcome for each, in the same order."""
    for _ in range(_TRIES):
        there = objects.find(key)
        if there is not None and there.size > APPENDED_LIMIT:
            said = f"{key!r} has over {APPENDED_LIMIT} bytes, and is kept in a bucket: such objects take no appends"
            raise DiskError("NotImplemented", said)
        accepted = _accepted(group, created=there is None)
        if not any(accepted):
            return [lost_race(key)] * len(group)
        info = _rewritten(objects, key, there, [each for each, yes in zip(group, accepted, strict=True) if yes])
        if info is not None:
            return _outcomes(key, info, group, accepted)
    raise DiskError("OperationAborted", f"{key!r} is being changed by others again and again: send it again later")


def _accepted(group: Sequence[Waiting], *, created: bool) -> list[bool]:
    """Those that found no object when they came lose, but the one that makes it."""
    return [each.existed or (created and number == 0) for number, each in enumerate(group)]


def _rewritten(
    objects: Objects, key: str, there: ObjectInfo | None, group: Sequence[Waiting]
) -> tuple[ObjectInfo, bytes] | None:
    """The longer object and its bytes; None: somebody else was faster, and nothing was written."""
    old, about = b"", group[0].about
    if there is not None:
        about = About(there.content_type, there.metadata, there.mode, there.uid, there.gid)
    when = Condition(if_none_match="*") if there is None else Condition(if_match=there.etag)
    writer = secrets.token_hex(8)
    try:
        with told(objects.bucket, key):
            if there is not None:
                old = objects.client.get_object(**objects.at(key), IfMatch=f'"{there.etag}"')["Body"].read()
            data = old + b"".join(each.data for each in group)
            file = io.BytesIO(data)
            file.seek(0, io.SEEK_END)
            info = objects.put(key, file, about, when, **{WRITER: writer})
    except DiskError as err:
        if err.code not in ("PreconditionFailed", "OperationAborted", "NoSuchKey"):
            raise
        # The client sends again when an answer is lost: it may have been ourselves.
        if objects.writer(key) != writer:
            return None
        info = objects.head(key)
    return replace(info, size=len(data)), data


def _outcomes(
    key: str, written: tuple[ObjectInfo, bytes], group: Sequence[Waiting], accepted: Sequence[bool]
) -> list[Outcome]:
    info, data = written
    size = len(data) - sum(len(each.data) for each, yes in zip(group, accepted, strict=True) if yes)
    md5 = new_md5()
    md5.update(data[:size])
    outcomes: list[Outcome] = []
    for each, yes in zip(group, accepted, strict=True):
        if not yes:
            outcomes.append(lost_race(key))
            continue
        md5.update(each.data)
        size += len(each.data)
        outcomes.append(replace(info, size=size, etag=md5.hexdigest()))
    return outcomes
