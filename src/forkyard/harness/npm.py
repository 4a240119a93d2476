"""Packages of the npm registry, fetched by the host and unpacked inside a sandbox: neither node nor npm is needed."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from forkyard.errors import HarnessError
from forkyard.fetching import fetch
from forkyard.harness.packages import on_its_way, packages_directory, settle, used
from forkyard.sandbox import Sandbox
from forkyard.values import MIB, one_line

PUBLIC_REGISTRY = "https://registry.npmjs.org"
MOST_PACKED = 512 * MIB
MOST_UNPACKED = 1024 * MIB
_MOST_METADATA = 4 * MIB
_SETTING = re.compile(r"\s*([^=;#\s][^=]*?)\s*=\s*(.*?)\s*")
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


def npm_machine(program: str) -> str:
    """What npm calls the processor of this machine. Raises HarnessError for one that `program` is not made for."""
    try:
        return _MACHINES[platform.machine()]
    except KeyError:
        known = " and ".join(_MACHINES)
        raise HarnessError(f"{program} is made for {known} only, and this machine is {platform.machine()}") from None


async def push_package(sandbox: Sandbox, name: str, version: str, place: str) -> None:
    """Put the files of a package into the directory `place` of a sandbox. Raises HarnessError when it cannot be had."""
    tarball = await npm_package(name, version)
    await sandbox.push(await asyncio.to_thread(_unpacked, tarball, f"{name}@{version}"), place)


async def npm_package(name: str, version: str) -> Path:
    """The archive of a package, verified: the one fetched earlier, or fetched now. Raises HarnessError."""
    stem = f"npm-{name.strip('@').replace('/', '-')}-{version}"
    directory = packages_directory()
    archive, note = directory / f"{stem}.tgz", directory / f"{stem}.sha512"
    if archive.is_file() and note.is_file():
        wanted = note.read_text()
        if await asyncio.to_thread(_digest, archive) == wanted:
            return used(archive)
    fetching = _Fetching(f"{name}@{version}", npm_registry(name))
    wanted, url = await fetching.look(name, version)
    with on_its_way(archive) as here:
        await fetching.save(url, here / "archive", wanted)
        (here / "note").write_text(wanted)
        settle(here / "note", note)
        settle(here / "archive", archive)
    return archive


class _Fetching:
    """One package on its way from one registry; its errors name both, without what a URL may hold of secrets."""

    def __init__(self, what: str, registry: str) -> None:
        self._what = what
        self._registry = registry
        self._at = f"the npm registry at {urlsplit(registry).hostname}"

    async def look(self, name: str, version: str) -> tuple[str, str]:
        """The SHA-512 the registry says the archive has, and where it is."""
        url = f"{self._registry}/{quote(name, safe='@')}/{quote(version)}"
        found = bytearray()
        await fetch(url, found.extend, _MOST_METADATA, self._failed)
        try:
            dist: Any = json.loads(found)["dist"]
            return _sha512(str(dist["integrity"])), str(dist["tarball"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._failed("what it says of it names no archive with a SHA-512") from None

    async def save(self, url: str, path: Path, wanted: str) -> None:
        """Fetch an archive into a file and hold its digest against what was said."""
        digest = hashlib.sha512()
        with path.open("wb") as file:

            def write(piece: bytes) -> None:
                digest.update(piece)
                file.write(piece)

            await fetch(url, write, MOST_PACKED, self._failed)
        if digest.hexdigest() != wanted:
            raise self._failed("it has other bytes than those its integrity says: refused")

    def _failed(self, why: str | Exception) -> HarnessError:
        said = why if isinstance(why, str) else type(why).__name__
        return HarnessError(f"{one_line(self._what)} cannot be had of {self._at}: {said}")


def _sha512(integrity: str) -> str:
    """The digest in a Subresource Integrity text. Raises ValueError when it has none of SHA-512."""
    for each in integrity.split():
        kind, _, value = each.partition("-")
        digest = base64.b64decode(value.partition("?")[0], validate=True)
        if kind == "sha512" and len(digest) == hashlib.sha512().digest_size:
            return digest.hex()
    raise ValueError(integrity)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha512").hexdigest()


def _unpacked(path: Path, what: str) -> bytes:
    """The archive without its compression; its members are looked at inside the sandbox alone."""
    try:
        with gzip.open(path) as file:
            data = file.read(MOST_UNPACKED + 1)
    except (OSError, EOFError) as error:
        raise HarnessError(f"the archive of {what} cannot be unpacked: {one_line(str(error))[:200]}") from error
    if len(data) > MOST_UNPACKED:
        raise HarnessError(f"the archive of {what} unpacks to more than {MOST_UNPACKED} bytes: refused")
    return data


def npm_registry(name: str) -> str:
    """The registry npm itself would ask for a package: of the environment, of npm's own files, or the public one."""
    scope = name.partition("/")[0] if name.startswith("@") else ""
    settings = _settings()
    found = (
        (settings.get(f"{scope}:registry") if scope else None)
        or {name.lower(): value for name, value in os.environ.items()}.get("npm_config_registry")
        or settings.get("registry")
        or PUBLIC_REGISTRY
    )
    return found.rstrip("/")


def _settings() -> dict[str, str]:
    """What npm's files say, the user's before the machine's."""
    found: dict[str, str] = {}
    user = os.environ.get("NPM_CONFIG_USERCONFIG") or Path.home() / ".npmrc"
    for path in (Path(user), Path("/usr/local/etc/npmrc"), Path("/usr/etc/npmrc"), Path("/etc/npmrc")):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        for key, value in _pairs(text):
            found.setdefault(key, value)
    return found


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if match := _SETTING.fullmatch(line):
            yield match[1], re.sub(r"\$\{(\w+)\}", lambda name: os.environ.get(name[1], ""), match[2].strip("\"'"))
