"""A disk as a program has it: its objects by S3, commands, searches, links, branches."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from forkyard.client.given import command_text
from forkyard.client.talk import Talk, object_path, understood, xml
from forkyard.client.values import BranchInfo, DiskExec, DiskFacts, Grep, Listing, ObjectInfo, Share
from forkyard.client.verbs import verb
from forkyard.wire import RefusedError, Reply

_PAGE = 1000
_ID = re.compile(r"(dsk|fs)-[0-9a-fA-F]+")  # whatever else is a name


class Disk:
    """One disk of a server. Each method blocks, and has `.aio` to be awaited. RefusedError has S3's codes."""

    def __init__(self, talk: Talk, facts: DiskFacts) -> None:
        self._talk = talk
        self.facts = facts

    @property
    def id(self) -> str:
        """Its id."""
        return self.facts.id

    @property
    def name(self) -> str:
        """Its name."""
        return self.facts.name

    def __repr__(self) -> str:
        return f"<disk {self.name} {self.id}>"

    @verb
    async def put_object(
        self,
        key: str,
        data: bytes | str,
        *,
        content_type: str | None = None,
        if_match: str | None = None,
        if_none_match: bool = False,
    ) -> str:
        """Write an object whole; its etag. With a condition, PreconditionFailed unless it holds."""
        headers = {}
        if content_type is not None:
            headers["content-type"] = content_type
        if if_match is not None:
            headers["if-match"] = f'"{if_match}"'
        if if_none_match:
            headers["if-none-match"] = "*"
        return _etag(await self._object("PUT", key, content=_bytes(data), headers=headers))

    @verb
    async def append_object(self, key: str, data: bytes | str) -> str:
        """Add at most 1 MiB to the end of an object, whole, or create it; its etag. It is never sent twice."""
        return _etag(await self._object("PUT", key, content=_bytes(data), query={"append": "true"}))

    @verb
    async def get_object(self, key: str, *, start: int | None = None, stop: int | None = None) -> bytes:
        """An object, or its bytes from `start` to `stop` (excluded). NoSuchKey, InvalidRange."""
        headers = {}
        if start is not None or stop is not None:
            headers["range"] = f"bytes={start or 0}-{'' if stop is None else stop - 1}"
        return (await self._object("GET", key, headers=headers)).body

    @verb
    async def head_object(self, key: str) -> ObjectInfo | None:
        """What an object is; None when there is none."""
        try:
            reply = await self._object("HEAD", key)
        except RefusedError as err:
            if err.status == 404:
                return None
            raise
        size, modified = reply.headers.get("content-length", "0"), reply.headers.get("last-modified", "")
        return ObjectInfo(key=key, size=int(size), etag=_etag(reply), modified=modified)

    @verb
    async def object_exists(self, key: str) -> bool:
        """Whether there is such an object."""
        return await self.head_object.aio(key) is not None

    @verb
    async def delete_object(self, key: str) -> None:
        """Remove an object; none is as good."""
        await self._object("DELETE", key)

    @verb
    async def delete_objects(self, keys: Sequence[str]) -> None:
        """Remove any number of objects. RefusedError with the first that could not be."""
        for at in range(0, len(keys), _PAGE):
            named = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys[at : at + _PAGE])
            body = f"<Delete><Quiet>true</Quiet>{named}</Delete>".encode()
            reply = await self._talk.s3("POST", f"/{self.id}", query={"delete": ""}, content=body)
            if (failed := xml(reply).find("Error")) is not None:
                text = f"{failed.findtext('Key')}: {failed.findtext('Message')}"
                raise RefusedError(reply.status, text[:2000], failed.findtext("Code"))

    @verb
    async def list_objects(
        self,
        prefix: str = "",
        *,
        recursive: bool = True,
        limit: int = _PAGE,
        start_after: str | None = None,
        continuation: str | None = None,
    ) -> Listing:
        """A page of objects in the order of their keys; `next` of it continues. Not recursive, "/" ends a prefix."""
        query: dict[str, str | int] = {"list-type": 2, "prefix": prefix, "max-keys": limit}
        if not recursive:
            query["delimiter"] = "/"
        if start_after is not None:
            query["start-after"] = start_after
        if continuation is not None:
            query["continuation-token"] = continuation
        tree = xml(await self._talk.s3("GET", f"/{self.id}", query=query))
        prefixes = tuple(each.findtext("Prefix") or "" for each in tree.findall("CommonPrefixes"))
        return Listing(tuple(map(_info, tree.findall("Contents"))), prefixes, tree.findtext("NextContinuationToken"))

    @verb
    async def exec(self, command: str) -> DiskExec:
        """Run a command by `bash -c` with the disk as its working directory."""
        return understood(DiskExec, await self._ask("POST", "exec", {"command": command_text(command)}))

    @verb
    async def grep(
        self, pattern: str, directory: str = "", *, recursive: bool = True, options: Mapping[str, Any] | None = None
    ) -> Grep:
        """Search the lines of objects by ripgrep's rules; `options` as POST grep has them, in camel case."""
        asked = {"directory": directory, "pattern": pattern, "recursive": recursive, **(options or {})}
        return understood(Grep, await self._ask("POST", "grep", asked))

    @verb
    async def share(self, key: str, *, expires_in: int = 86_400) -> Share:
        """A link to one object, for whoever has it."""
        return understood(Share, await self._ask("POST", "share", {"key": key, "expiresIn": expires_in}))

    @verb
    async def create_branch(self, name: str, *, from_branch: str | None = None) -> BranchInfo:
        """A copy of the disk as it is, that goes its own way."""
        asked = {"branch_name": name, "from_checkpoint_name": "current", "from_branch": from_branch}
        return understood(BranchInfo, await self._ask("POST", "branches", asked))

    @verb
    async def list_branches(self) -> list[BranchInfo]:
        """Its branches, oldest first."""
        found = await self._ask("GET", "branches")
        rows = found.get("branches", ()) if isinstance(found, dict) else found
        return [understood(BranchInfo, each) for each in rows]

    @verb
    async def set_allowed_ips(self, addresses: Sequence[str]) -> None:
        """From which addresses and networks it may be used; none named: from all."""
        await self._ask("PUT", "allowed-ips", {"allowedIps": list(addresses)})

    @verb
    async def delete(self) -> None:
        """Remove it with all that is on it."""
        await self._ask("DELETE")

    async def _ask(self, method: str, what: str = "", body: Any = None) -> Any:
        path = f"/api/disks/{quote(self.id, safe='')}" + (f"/{what}" if what else "")
        return await self._talk.ask(method, path, body)

    async def _object(
        self,
        method: str,
        key: str,
        *,
        query: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        path = object_path(self.id, key)
        return await self._talk.s3(method, path, query=query, content=content, headers=headers)


def disk_from(talk: Talk, data: Any) -> Disk:
    """The disk that a server tells of."""
    return Disk(talk, understood(DiskFacts, data))


async def found_disk(talk: Talk, name_or_id: str) -> Disk:
    """The disk of a name or an id. RefusedError when there is none."""
    if _ID.fullmatch(name_or_id):
        try:
            return disk_from(talk, await talk.ask("GET", f"/api/disks/{quote(name_or_id, safe='')}"))
        except RefusedError as err:
            if err.status != 404:
                raise
    for found in await talk.ask("GET", "/api/disks", query={"name": name_or_id}) or ():
        return disk_from(talk, found)
    text = f"there is no disk {name_or_id!r:.100}, by this name or id: list_disks() tells which there are"
    raise RefusedError(404, text, "not_found")


async def disk_id_of(talk: Talk, disk: Disk | str) -> str:
    """The id of a disk, which may be named by its name or its id. RefusedError when there is none."""
    if isinstance(disk, Disk):
        return disk.id
    if not isinstance(disk, str):
        raise TypeError(f"{disk!r:.100} is no disk, nor the name or id of one")
    return disk if _ID.fullmatch(disk) else (await found_disk(talk, disk)).id


def _bytes(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _etag(reply: Reply) -> str:
    return reply.headers.get("etag", "").strip('"')


def _info(row: ElementTree.Element) -> ObjectInfo:
    return ObjectInfo(
        key=row.findtext("Key") or "",
        size=int(row.findtext("Size") or 0),
        etag=(row.findtext("ETag") or "").strip('"'),
        modified=row.findtext("LastModified") or "",
    )
