"""Putting files into the sandbox of a build: what COPY and WORKDIR do to its disk."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Generator, Sequence

from forkyard.errors import SandboxError
from forkyard.image.chmod import Chmod
from forkyard.image.members import Member, chain
from forkyard.image.pieces import push_members
from forkyard.image.plan import CopyFiles
from forkyard.image.probe import kind, split
from forkyard.image.scalars import LARGEST_ID, parse_id
from forkyard.image.trees import ROOT, Owner, Tree, directories
from forkyard.sandbox import Sandbox


async def make_directory(sandbox: Sandbox, path: str, owner: str) -> None:
    """Make a directory and its missing parents for `owner`. Raises SandboxError when a file is in the way."""
    existing, missing = await split(sandbox, path)
    if missing:
        numbers = await find_owner(sandbox, owner)
        await push_members(sandbox, directories(missing, numbers), existing)


async def copy_files(sandbox: Sandbox, copy: CopyFiles, trees: Sequence[Tree]) -> None:
    """Do one COPY of what was found. Raises SandboxError when the destination or the owner is not possible."""
    destination = copy.destination.rstrip("/") or "/"
    there = await kind(sandbox, destination)
    needs_directory = copy.destination.endswith("/") or any(tree.directory for tree in trees)
    if there == "file" and needs_directory:
        raise SandboxError(f"{destination} is a file in the image, and {_DIRECTORY}")
    if len(trees) > 1 and there != "directory" and not needs_directory:
        raise SandboxError(f"{len(trees)} files cannot all become {destination}: end the destination with a slash")
    inside = needs_directory or there == "directory"
    directory = destination if inside else posixpath.dirname(destination)
    existing, missing = await split(sandbox, directory)
    owner = await find_owner(sandbox, copy.owner) if copy.owner else None
    new = directories(missing, owner or ROOT)  # as in Docker the destination itself is new, and no copy
    prefix = "".join(f"{name}/" for name in missing)
    rename = "" if inside else posixpath.basename(destination)
    placed = (placed_members(tree, prefix, rename, owner, copy.chmod) for tree in trees)
    await push_members(sandbox, chain(new, *placed), existing)


_DIRECTORY = "COPY needs a directory there"


def placed_members(
    tree: Tree, prefix: str, rename: str = "", owner: Owner | None = None, chmod: Chmod | None = None
) -> Generator[Member, None, None]:
    """The members of a tree below `prefix`; a single file is called `rename` unless that is empty."""
    for info, content in tree.members():
        info.name = prefix + (info.name if tree.directory else rename or tree.name)
        if info.islnk():
            info.linkname = prefix + info.linkname
        if owner is not None and not tree.settled:
            info.uid, info.gid = owner
        if chmod is not None and not tree.settled and info.type not in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            info.mode = chmod.apply(info.mode, info.isdir())
        yield info, content


async def find_owner(sandbox: Sandbox, owner: str) -> Owner:
    """The numbers for `user[:group]`, names looked up in the sandbox's own /etc/passwd and /etc/group.

    Without a group a name has the group of its account, and a number the group of the same number, as in Docker.
    Raises SandboxError for a name that is not there.
    """
    user, _, group = owner.partition(":")
    if not user and not group:
        return ROOT
    if user.isascii() and user.isdigit():
        uid = gid = _checked(user)
    else:
        row = await _row(sandbox, "/etc/passwd", user or "root")
        uid, gid = _checked(row[2]), _checked(row[3])
    if group.isascii() and group.isdigit():
        gid = _checked(group)
    elif group:
        gid = _checked((await _row(sandbox, "/etc/group", group))[2])
    return uid, gid


def _checked(number: str) -> int:
    found = parse_id(number)
    if found is None:
        raise SandboxError(f"{number!r} is not a user or group number between 0 and {LARGEST_ID}")
    return found


async def _row(sandbox: Sandbox, path: str, name: str) -> list[str]:
    """The fields of an account file's line for `name`."""
    try:
        text = (await sandbox.read(path)).decode("utf-8", "replace")
    except FileNotFoundError:
        text = ""
    for line in text.split("\n"):
        fields = line.split(":")
        if fields[0] == name and len(fields) >= 4:
            return fields
    raise SandboxError(f"{name!r} is not in the image's {path}: make the account with RUN, or write its number")
