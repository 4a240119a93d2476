"""Artifacts: what a task declares to leave the agent's sandbox, and how it enters another one.

Everything that is collected is hostile bytes. It is looked at on the host before anything of it enters a sandbox: a
link that led out of its artifact would have the verifier grade its own hidden files.
"""

from __future__ import annotations

import asyncio
import posixpath
import tarfile
from collections.abc import Iterable, Mapping

from forkyard.errors import SandboxError, SandboxLost
from forkyard.grade.archives import check_root, checked, only_entry, renamed
from forkyard.sandbox import PlainDirectory, Sandbox
from forkyard.sandbox.archive import all_but
from forkyard.task import ARTIFACTS_DIR, Artifact
from forkyard.values import MIB

MAX_BYTES = 32 * MIB
Collected = dict[str, bytes | None]
"""Archives by absolute path; None for one that was not there."""

NOTHING = bytes(10240)
"""An archive without a member."""

_DELETES = b".wh."


class MissingArtifactError(RuntimeError):
    """A declared artifact that is required is not there."""


async def collect(
    runtime: Sandbox,
    artifacts: Iterable[Artifact],
    max_bytes: int = MAX_BYTES,
    sweep: bool = True,
    *,
    workdir: str | None = None,
    failures: dict[str, str] | None = None,
) -> Collected:
    """The declared paths as archives, and /logs/artifacts with `sweep`; None for an optional one that is missing.

    A relative source is taken from `workdir`; without one the sandbox is asked, whose word is the agent's. Raises
    MissingArtifactError, RuntimeError for a path that is declared twice, and TooLarge when all archives together are
    over `max_bytes`. With `failures` what cannot be had is missing, why is put there by its path, and of a path that is
    declared twice the first counts.
    """
    declared = await _by_path(runtime, artifacts, workdir, lenient=failures is not None)
    if sweep:
        declared = {ARTIFACTS_DIR: Artifact(source=ARTIFACTS_DIR, required=False), **declared}
    collected: Collected = {}
    used = 0
    for path, artifact in declared.items():
        try:
            collected[path] = archive = await _pulled(runtime, path, artifact, max_bytes - used)
        except (SandboxError, RuntimeError, OSError) as err:
            if failures is None or isinstance(err, SandboxLost):
                raise
            failures[path] = str(err)[:500]
            collected[path] = archive = None
        used += len(archive or b"")
    return collected


async def restore(runtime: Sandbox, collected: Mapping[str, bytes | None]) -> None:
    """Put collected artifacts at their paths, in the place of whatever is there.

    Raises RuntimeError, with nothing changed, for an archive that is broken, or holds anything outside its root, a
    link that leads out of it, or what is neither file, directory nor link; TypeError for a sandbox that is no machine
    of its own.
    """
    await place(runtime, collected, await asyncio.to_thread(checked, collected))


async def place(runtime: Sandbox, roots: Iterable[str], archive: bytes) -> None:
    """Clear the roots and unpack an archive that was looked at; the working directory is there afterwards."""
    if isinstance(runtime, PlainDirectory):
        raise TypeError("artifacts cannot be restored into a plain directory of this machine: use another provider")
    clearing = _clearing(roots)
    if _DELETES in archive:  # a file it holds may have a name that a layer deletes by
        await runtime.push(clearing + NOTHING, "/", layer=True)
        await runtime.push(archive, "/")
    else:
        await runtime.push(clearing + archive, "/", layer=True)
    try:
        await runtime.read(".", max_bytes=0)
    except IsADirectoryError:
        pass
    except (FileNotFoundError, NotADirectoryError):  # it was among the roots
        await runtime.push(NOTHING, ".")


def double_artifacts(artifacts: Iterable[Artifact], workdir: str) -> list[str]:
    """The paths that are declared more than once."""
    paths = [absolute(artifact, workdir) for artifact in artifacts]
    return sorted({path for path in paths if paths.count(path) > 1})


def absolute(artifact: Artifact, workdir: str) -> str:
    """Where an artifact lies."""
    return "/" + posixpath.normpath(posixpath.join("/", workdir, artifact.source)).lstrip("/")


async def _by_path(
    runtime: Sandbox, artifacts: Iterable[Artifact], workdir: str | None, lenient: bool
) -> dict[str, Artifact]:
    artifacts = tuple(artifacts)
    if workdir is None and any(not artifact.source.startswith("/") for artifact in artifacts):
        workdir = (await runtime.run(["pwd"])).stdout.rstrip("\n")
    declared: dict[str, Artifact] = {}
    for artifact in artifacts:
        path = absolute(artifact, workdir or "/")
        check_root(path)
        if path in declared and lenient:
            continue
        if path in declared:
            raise RuntimeError(f"artifact {path!r} declared more than once")
        declared[path] = artifact
    return declared


async def _pulled(runtime: Sandbox, path: str, artifact: Artifact, budget: int) -> bytes | None:
    parent, name = posixpath.split(path)
    try:
        own = await runtime.pull(parent, exclude=all_but(name), max_bytes=max(budget, 0))
        entry = await asyncio.to_thread(only_entry, path, own)
        if entry is not None:
            if entry.isdir():
                own = await runtime.pull(path, exclude=artifact.exclude, max_bytes=max(budget, 0))
            return await asyncio.to_thread(renamed, own, path, entry)
    except (FileNotFoundError, NotADirectoryError):
        pass
    if artifact.required:
        raise MissingArtifactError(f"declared artifact {path!r} does not exist in the runtime")
    return None


def _clearing(roots: Iterable[str]) -> bytes:
    """The start of a layer: it deletes the roots; of /logs/artifacts, which each sandbox has, what is in it."""
    marks = []
    for root in sorted(roots):
        parent, name = posixpath.split(root.strip("/"))
        mark = f"{root.strip('/')}/.wh..wh..opq" if root == ARTIFACTS_DIR else posixpath.join(parent, f".wh.{name}")
        marks.append(tarfile.TarInfo(mark).tobuf(tarfile.PAX_FORMAT))
    return b"".join(marks)
