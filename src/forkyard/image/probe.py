"""Looking into a sandbox without a program of its image: what a path is, and what matches a pattern."""

from __future__ import annotations

import io
import posixpath
import tarfile

from forkyard.errors import NotAFile, SandboxError, TooLarge
from forkyard.image.patterns import has_wildcard, pattern_regex, unescaped
from forkyard.sandbox import Sandbox
from forkyard.sandbox.archive import all_but

_MOST_LINKS = 40


async def kind(sandbox: Sandbox, path: str) -> str:
    """What a path leads to: "missing", "directory", or "file" for whatever else is there."""
    try:
        await sandbox.read(path, max_bytes=0)
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except IsADirectoryError:
        return "directory"
    except (TooLarge, NotAFile):
        return "file"
    return "file"


async def split(sandbox: Sandbox, path: str) -> tuple[str, list[str]]:
    """The deepest directory on the way to `path` that exists, and the names that are missing below it."""
    missing: list[str] = []
    while (found := await kind(sandbox, path)) == "missing" and path != "/":
        missing.insert(0, posixpath.basename(path))
        path = posixpath.dirname(path)
    if found == "file":
        raise SandboxError(f"{path} is a file in the image, and a directory is needed there")
    return path, missing


async def look(sandbox: Sandbox, path: str) -> tuple[tarfile.TarInfo, bytes] | None:
    """The entry at a path, links not followed, and an archive of it without what a directory holds; None for none."""
    if path == "/":
        info = tarfile.TarInfo("")
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        return info, b""
    try:
        archive = await sandbox.pull(posixpath.dirname(path), exclude=all_but(posixpath.basename(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", errors="surrogateescape") as tar:
        found = tar.next()
    return None if found is None else (found, archive)


async def resolve(sandbox: Sandbox, path: str) -> str:
    """Where a path leads when a link at its end is followed. Raises SandboxError for one that leads to itself."""
    for _ in range(_MOST_LINKS):
        found = await look(sandbox, path)
        if found is None or not found[0].issym():
            return path
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), found[0].linkname))
        path = "/" + path.lstrip("/")
    raise SandboxError(f"{path} is a link that leads to itself")


async def names_in(sandbox: Sandbox, directory: str, depth: int = 1) -> list[str]:
    """What a directory holds, to a depth, as names relative to it."""
    archive = await sandbox.pull(directory, exclude=["/".join("*" * (depth + 1))])
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", errors="surrogateescape") as tar:
        return tar.getnames()


async def matches(sandbox: Sandbox, pattern: str) -> list[str]:
    """The absolute paths that one source of a COPY matches; one without wildcards is not looked for."""
    parts = [part for part in pattern.split("/") if part]
    wild = next((index for index, part in enumerate(parts) if has_wildcard(part)), len(parts))
    top = "/" + "/".join(unescaped(part) for part in parts[:wild])
    if wild == len(parts):
        return [top]
    regex = pattern_regex("/".join(parts[wild:]), deep=False)
    if await kind(sandbox, top) != "directory":
        return []
    found = await names_in(sandbox, await resolve(sandbox, top), len(parts) - wild)
    return sorted(posixpath.join(top, name) for name in found if regex.fullmatch(name))
