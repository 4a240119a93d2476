"""The S3 face as an ASGI application: let in, find the disk, do it, and answer in S3's words, errors too."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive, Scope, Send

from forkyard.disk import Disk, DiskError, Disks
from forkyard.server.s3.about import refuse_unkept
from forkyard.server.s3.auth import Caller, Doorman
from forkyard.server.s3.buckets import create_bucket, list_buckets
from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.multipart import complete_upload, copy_part, put_part
from forkyard.server.s3.objects import copy_object, put_object
from forkyard.server.s3.operations import Copier, Operation, asking_of, operation_of
from forkyard.server.s3.replies import Asked, Reply
from forkyard.server.s3.request import copied_from, request_of
from forkyard.server.s3.sending import Way
from forkyard.server.s3.xml import document

_SOURCE = "x-amz-copy-source"
_COPIERS: dict[Operation, Copier] = {put_object: copy_object, put_part: copy_part}

_log = logging.getLogger("forkyard.server")


class Face:
    """Answers every request it is given, to disks of `disks` and to whom `doorman` lets in."""

    def __init__(self, disks: Disks, doorman: Doorman) -> None:
        self._disks = disks
        self._doorman = doorman

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI gives it."""
        way = Way(scope["method"], scope["state"]["request_id"], receive, send)
        reply = await _replied(self._answer(scope, receive), scope)
        if reply.work is None:
            await way.tell(reply)
        else:
            await way.tell_when_done(_replied(reply.work, scope))

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        request = request_of(scope, receive)
        caller = self._doorman.admit(request)
        scope["state"]["key"] = caller.name
        refuse_unkept(request.headers)
        if not request.bucket:
            if request.method != "GET" or request.key:
                raise S3Error("MethodNotAllowed", "the list of disks can be read, and nothing else")
            return await list_buckets(self._disks, request, caller)
        if request.method == "PUT" and not request.key and not asking_of(request):
            return await create_bucket(self._disks, request, caller)
        address = (scope.get("client") or ("",))[0]
        return await self._done(Asked(request, caller, self._disk(request.bucket, caller, address)), address)

    async def _done(self, asked: Asked, address: str) -> Reply:
        operation = operation_of(asked.request)
        if _SOURCE not in asked.request.headers:
            work = operation(asked)
            return Reply(work=work) if operation is complete_upload else await work
        copier = _COPIERS.get(operation)
        if copier is None:
            raise S3Error("InvalidRequest", f"{_SOURCE} goes with a plain PUT of an object or of a part")
        bucket, key = copied_from(asked.request.header(_SOURCE))
        return Reply(work=copier(asked, self._disk(bucket, asked.caller, address), key))

    def _disk(self, bucket: str, caller: Caller, address: str) -> Disk:
        """The disk of a name, if this caller may use it, and from where they are."""
        disk = self._disks.resolve(bucket)
        if caller.disk not in (None, disk.info.id):
            raise S3Error("AccessDenied", "this key pair is of another disk")
        if not self._disks.access.permits(disk.info.id, address):
            raise S3Error(
                "AccessDenied", "this disk may not be used from your address; its allowed addresses say from where"
            )
        return disk


async def _replied(answering: Coroutine[Any, Any, Reply], scope: Scope) -> Reply:
    """What comes of it, errors in S3's words."""
    try:
        return await answering
    except (S3Error, DiskError) as err:
        return _refusal(err, scope)
    except Exception as err:  # noqa: BLE001 - a fault of ours in one request must not end the others
        request_id = scope["state"]["request_id"]
        _log.error("request %s failed", request_id, exc_info=err)
        text = f"the server failed; its log tells more of request {request_id}"
        return _refusal(S3Error("InternalError", text), scope)


def _refusal(error: S3Error | DiskError, scope: Scope) -> Reply:
    beside = error.beside if isinstance(error, S3Error) else {}
    headers = {"Content-Type": "application/xml"}
    if "ActualObjectSize" in beside:
        headers["Content-Range"] = f"bytes */{beside['ActualObjectSize']}"
    tree = [
        ("Code", error.code),
        ("Message", str(error)),
        *beside.items(),
        ("Resource", scope["path"]),
        ("RequestId", scope["state"]["request_id"]),
    ]
    return Reply(error.status, headers, document("Error", tree, namespace=False))
