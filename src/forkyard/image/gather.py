"""Finding the files of a step's materials, in the build context, in other images and on the network."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from forkyard.errors import SandboxError
from forkyard.image.context import Source
from forkyard.image.disks import opened
from forkyard.image.fetch import Downloads
from forkyard.image.patterns import Ignore, ignore_of
from forkyard.image.plan import Archive, Download, Material, Taken, Text
from forkyard.image.probe import look, matches, resolve
from forkyard.image.trees import Tree, of_archive, of_download, of_pulled, of_source, of_text
from forkyard.sandbox import ImageProvider, Sandbox


class Gatherer:
    """Opens a sandbox of each image it takes from, until it is left as a context manager."""

    def __init__(self, store: ImageProvider, downloads: Downloads) -> None:
        self._store, self._downloads = store, downloads
        self._stack = AsyncExitStack()
        self._open: dict[str, Sandbox] = {}

    async def __aenter__(self) -> Self:
        """Nothing is opened before it is needed."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None, /
    ) -> None:
        """Close what was opened."""
        await self._stack.aclose()

    async def trees(self, materials: Sequence[Material], exclude: Sequence[str] = ()) -> list[Tree]:
        """The files of some materials. Raises SandboxError for one that is not there."""
        ignore = ignore_of(exclude)
        found: list[Tree] = []
        for material in materials:
            match material:
                case Source():
                    found.append(of_source(material))
                case Archive():
                    found.append(of_archive(material.path, str(material.path)))
                case Text():
                    found.append(of_text(material.name, material.data))
                case Download():
                    found.append(await self._downloaded(material))
                case Taken():
                    found += await self._taken(material, ignore)
        if not found:
            raise SandboxError("its --exclude leaves out everything it would copy: delete one of the two")
        return found

    async def _downloaded(self, material: Download) -> Tree:
        path, content = await self._downloads.fetch(material.url)
        if content != material.content:
            raise SandboxError(f"{material.url} has the SHA-256 {content}, and not {material.content}")
        if material.unpack:
            return of_archive(path, material.url)
        return of_download(material.name, path, content)

    async def _taken(self, material: Taken, exclude: Ignore) -> list[Tree]:
        sandbox = self._open.get(material.image)
        if sandbox is None:
            sandbox = await self._stack.enter_async_context(opened(self._store, material.image))
            self._open[material.image] = sandbox
        paths = await matches(sandbox, material.pattern)
        if not paths:
            raise SandboxError(
                f"nothing in the image it is to be copied from matches {material.pattern}: correct the pattern, or "
                "make the files in that stage"
            )
        found = [await self._tree(sandbox, path, exclude) for path in paths]
        return [tree for tree in found if tree is not None]

    async def _tree(self, sandbox: Sandbox, path: str, exclude: Ignore) -> Tree | None:
        name = posixpath.basename(path)
        where = await resolve(sandbox, path)
        seen = await look(sandbox, where)
        if seen is None:
            raise SandboxError(f"{path} is not in the image it is to be copied from")
        info, archive = seen
        if info.isdir():
            return of_pulled(await sandbox.pull(where), name, info, exclude)
        return None if exclude.excludes(name) else of_pulled(archive, name, None, exclude)
