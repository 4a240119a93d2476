"""The mounts of a RUN: put into the sandbox before it, taken out after it, with all as it was before.

Nothing can be mounted through the protocol, so the files lie on the sandbox's own disk while the command runs.
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from forkyard.errors import SandboxError, TooLarge
from forkyard.image.disks import held, opened
from forkyard.image.gather import Gatherer
from forkyard.image.members import Member, chain
from forkyard.image.patterns import Ignore
from forkyard.image.pieces import pieces, push_members
from forkyard.image.place import placed_members
from forkyard.image.plan import CACHE_PREFIX, Mounted, hashed
from forkyard.image.probe import kind, look, names_in, resolve, split
from forkyard.image.trees import ROOT, Tree, directories, new_info, of_pulled, of_text
from forkyard.sandbox import ImageConfig, ImageProvider, Sandbox

_CACHE_DIRECTORY = "/cache"
_TOP = new_info("", tarfile.DIRTYPE, 0o755)


@dataclass(frozen=True, slots=True)
class _Before:
    """What was at a mount's place: nothing, with the names that were missing, or an entry and what a directory held.

    `above` is the deepest directory on the way that existed, and its entry: what is done in it changes its time.
    """

    path: str
    above: tuple[str, tarfile.TarInfo]
    missing: tuple[str, ...]
    entry: tarfile.TarInfo | None
    archive: bytes


class Mounts:
    """The mounts of one RUN in one sandbox, between `place` and `take_away`."""

    def __init__(
        self, store: ImageProvider, sandbox: Sandbox, gatherer: Gatherer, secrets: Mapping[str, bytes]
    ) -> None:
        self._store, self._sandbox, self._gatherer, self._secrets = store, sandbox, gatherer, secrets
        self._placed: list[tuple[Mounted, _Before]] = []

    async def place(self, mounts: Sequence[Mounted]) -> dict[str, str]:
        """Put everything in its place; returns the variables that hold secrets. Raises SandboxError."""
        variables: dict[str, str] = {}
        for mounted in sorted(mounts, key=lambda mounted: mounted.target.count("/")):
            mount = mounted.mount
            if mount.kind == "secret":
                data = self._secrets.get(mounted.name)
                if data is None:
                    continue
                if mount.variable:
                    variables[mount.variable] = data.decode("utf-8", "surrogateescape")
                if mounted.target:
                    await self._place(mounted, of_text("", data, mount.mode, mount.owner))
            else:
                await self._place(mounted, await self._content(mounted))
        return variables

    async def _content(self, mounted: Mounted) -> Tree:
        """What a mount holds at first; a cache has its own mode and owner, whatever it was filled with."""
        mount = mounted.mount
        if mount.kind == "cache" and await self._store.image(cache_name(mounted)) is not None:
            async with opened(self._store, cache_name(mounted)) as kept:
                archive = await kept.pull(_CACHE_DIRECTORY)
            members = of_pulled(archive, "", _TOP, Ignore()).members
            return Tree("", True, members, mount.mode, mount.owner)
        if not mounted.materials:
            return Tree("", True, chain, mount.mode, mount.owner)
        (tree,) = await self._gatherer.trees(mounted.materials)
        if mount.kind == "cache":
            return Tree("", True, tree.members, mount.mode, mount.owner)
        return tree

    async def _place(self, mounted: Mounted, tree: Tree) -> None:
        before = await self._look(mounted.target, tree.directory)
        self._placed.append((mounted, before))
        if not tree.directory:
            parent, name = posixpath.split(before.path)
            existing, missing = await split(self._sandbox, parent)
            members = placed_members(tree, "".join(f"{one}/" for one in missing), name)
            new = directories(missing, ROOT)
            await push_members(self._sandbox, chain(new, members), existing)
            return
        if before.entry is not None:
            await self._empty(before.path)
        await push_members(self._sandbox, chain(_top(tree), placed_members(tree, "")), before.path)

    async def _look(self, target: str, directory: bool) -> _Before:
        path = await resolve(self._sandbox, target)
        existing, missing = await split(self._sandbox, posixpath.dirname(path))
        upper = await look(self._sandbox, existing)
        if upper is None:
            raise SandboxError(f"{existing} was removed meanwhile")
        above = (existing, upper[0])
        found = await look(self._sandbox, path)
        if found is None:
            return _Before(path, above, (*missing, posixpath.basename(path)), None, b"")
        entry, archive = found
        if entry.isdir() != directory:
            what = ("a file", "a directory") if directory else ("a directory", "a file")
            raise SandboxError(f"{target} is {what[0]} in the image, and the mount is {what[1]}")
        return _Before(path, above, (), entry, await self._sandbox.pull(path) if directory else archive)

    async def take_away(self) -> None:
        """Take everything out, keep what the caches hold now, and put back what was there before."""
        for mounted, before in reversed(self._placed):
            if mounted.mount.kind == "cache":
                await _keep(self._store, mounted, self._sandbox, before.path)
            await self._restore(before)

    async def _restore(self, before: _Before) -> None:
        parent = posixpath.dirname(before.path)
        if before.entry is None:
            await self._remove(before.path)
            await self._remove_empty(parent, len(before.missing) - 1)
        elif before.entry.isdir():
            await self._empty(before.path)
            if before.archive:
                await self._sandbox.push(before.archive, before.path)
            await self._refresh(before.path, before.entry)
        else:
            await self._sandbox.push(before.archive, parent)
        if before.above[0] != "/":
            await self._refresh(*before.above)

    async def _refresh(self, path: str, entry: tarfile.TarInfo) -> None:
        """Give a directory its mode, owner and time again, unless the command removed it."""
        if await kind(self._sandbox, path) == "directory":
            entry.name = "."
            await self._sandbox.push(_archive(entry), path)

    async def _remove(self, path: str) -> None:
        parent, name = posixpath.split(path)
        if await kind(self._sandbox, parent) == "directory":
            await self._sandbox.push(_archive(new_info(f".wh.{name}", tarfile.REGTYPE, 0o644)), parent, layer=True)

    async def _remove_empty(self, path: str, count: int) -> None:
        """Remove the directories that were made for a mount, from the deepest up, unless something is in them now."""
        for _ in range(count):
            if await kind(self._sandbox, path) != "directory" or await names_in(self._sandbox, path):
                return
            await self._remove(path)
            path = posixpath.dirname(path)

    async def _empty(self, path: str) -> None:
        await self._sandbox.push(_archive(new_info(".wh..wh..opq", tarfile.REGTYPE, 0o644)), path, layer=True)


def cache_name(mounted: Mounted) -> str:
    """The image that keeps the content of a cache mount."""
    return f"{CACHE_PREFIX}mount-{hashed(mounted.name)}"


async def _keep(store: ImageProvider, mounted: Mounted, sandbox: Sandbox, path: str) -> None:
    """Make what a cache holds now an image; one that is gone, or too large to be moved, starts empty the next time."""
    try:
        archive = await sandbox.pull(path)
    except (TooLarge, FileNotFoundError, NotADirectoryError):
        if await store.image(cache_name(mounted)) is not None:
            await store.remove_image(cache_name(mounted))
        return
    async with opened(store, "scratch") as kept:
        await kept.push(archive, _CACHE_DIRECTORY)
        await kept.stop()
        await store.commit(kept, cache_name(mounted), ImageConfig())


@asynccontextmanager
async def locked(store: ImageProvider, mounts: Sequence[Mounted]) -> AsyncIterator[None]:
    """Hold the caches that one command at a time may use, among the builds of this process."""
    async with AsyncExitStack() as stack:
        for name in sorted({cache_name(mounted) for mounted in mounts if mounted.mount.locked}):
            await stack.enter_async_context(held(store, name))
        yield


def _archive(info: tarfile.TarInfo) -> bytes:
    """An archive of one member without content."""
    (archive,) = pieces([(info, None)])
    return archive


def _top(tree: Tree) -> Generator[Member, None, None]:
    yield new_info(".", tarfile.DIRTYPE, tree.mode, tree.owner), None
