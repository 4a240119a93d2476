"""The image "host": the machine's own /usr with a minimal rest. Nothing else of the machine is in it.

The image is one small disk (/etc, empty directories, the links of a merged /usr) under an overlay of the machine's
/usr, which is never copied. Where the file owners of /usr cannot be shifted, its directories are repeated on that
disk, because an overlay can only add to a directory whose owner exists inside.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from forkyard.errors import SandboxError
from forkyard.sandbox.local.box import SCRATCH, Box
from forkyard.sandbox.local.sandbox import launched
from forkyard.sandbox.local.yard import Yard
from forkyard.sandbox.values import ImageConfig, Limits

HOST = "host"
DIRECTORIES = {
    "boot": 0o755,
    "dev": 0o755,
    "home": 0o755,
    "media": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "proc": 0o755,
    "root": 0o700,
    "run": 0o755,
    "run/lock": 0o1777,
    "srv": 0o755,
    "sys": 0o755,
    "tmp": 0o1777,
    "usr": 0o755,
    "var": 0o755,
    "var/cache": 0o755,
    "var/lib": 0o755,
    "var/log": 0o755,
    "var/tmp": 0o1777,
    "etc": 0o755,
    "etc/default": 0o755,
    "etc/ssl": 0o755,
}
TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
    "bin:x:2:2:bin:/bin:/usr/sbin/nologin\nsys:x:3:3:sys:/dev:/usr/sbin/nologin\n"
    "www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\ntty:x:5:\ndisk:x:6:\nmail:x:8:\n"
    "staff:x:50:\nwww-data:x:33:\nusers:x:100:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/hostname": "forkyard\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "etc/resolv.conf": "",
    "etc/shells": "/bin/sh\n/bin/bash\n",
    "etc/profile": 'if [ "$(id -u)" -eq 0 ]; then PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"; '
    "fi\nexport PATH\n",
}
# What programs in /usr read from /etc without which they do not run as installed. All of it is public; no keys.
COPIED = (
    "adduser.conf",
    "alternatives",
    "ca-certificates.conf",
    "debian_version",
    "default/useradd",
    "deluser.conf",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "login.defs",
    "magic",
    "mime.types",
    "os-release",
    "pam.conf",
    "pam.d",
    "perl",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "rpc",
    "security",
    "services",
    "skel",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)
JAVA_PREFIX = "java-"
LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


class HostImage:
    """The image of one store: made at first use, and made again when what it repeats of the machine has changed."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._making = asyncio.Lock()
        self._name: str | None = None  # once it is known to be there

    async def box(self) -> Box:
        """The image; SandboxError when somebody removes it meanwhile."""
        async with self._making:
            store = self._yard.store
            if self._name is None:
                engine = await self._yard.engine()
                entries = await asyncio.to_thread(skeleton, not engine.shifted_usr)
                name = await asyncio.to_thread(name_of, entries)
                if store.find("image", name) is None:
                    await self._make(name, await asyncio.to_thread(packed, entries))
                self._name = name
            found = store.find("image", self._name)
            if found is None:
                self._name = None
                raise SandboxError("the image 'host' was removed while it was needed: try again")
            return found

    async def _make(self, name: str, archive: bytes) -> None:
        sandbox = await launched(self._yard, SCRATCH, None, ImageConfig(), Limits())
        try:
            await sandbox.push(archive)
            await sandbox.stop()
            await asyncio.to_thread(self._yard.store.settle)
            self._yard.store.put_image(name, replace(sandbox.box, host=True), config())
        finally:
            await sandbox.close()


def config() -> ImageConfig:
    """Root, in "/", with nothing of the machine's environment."""
    return ImageConfig(env={"LANG": "C.UTF-8"}, workdir="/", user="", cmd=("/bin/bash",))


class Entry(NamedTuple):
    """One thing on the image's own disk; `data` is what a file holds, or where a link leads."""

    path: str
    kind: bytes
    mode: int
    data: bytes = b""


def skeleton(directories_of_usr: bool) -> list[Entry]:
    """What is on the image's own disk; the same machine gives the same."""
    entries = [Entry(path, tarfile.DIRTYPE, mode) for path, mode in DIRECTORIES.items()]
    entries += [Entry(path, tarfile.REGTYPE, 0o644, text.encode()) for path, text in TEXTS.items()]
    entries += [_link(name, f"usr/{name}") for name in LINKS if Path(f"/usr/{name}").is_dir()]
    etc = Path("/etc")
    for source in [*map(etc.joinpath, COPIED), *sorted(etc.glob(f"{JAVA_PREFIX}*"))]:
        entries += _copied(source)
    if directories_of_usr:
        entries += _directories_of_usr()
    return entries


def name_of(entries: list[Entry]) -> str:
    """What the image of these is called. It is asked for at each start, when there rarely is one to make."""
    digest = hashlib.sha256()
    for path, kind, mode, data in entries:
        digest.update(b"%s\0%s%o %d\0" % (os.fsencode(path), kind, mode, len(data)))
        digest.update(data)
    return f"{HOST}@{digest.hexdigest()[:12]}"


def packed(entries: list[Entry]) -> bytes:
    """An archive of them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, kind, mode, data in entries:
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = kind, mode
            if kind == tarfile.SYMTYPE:
                entry.linkname = os.fsdecode(data)
            else:
                entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _link(path: str, target: str) -> Entry:
    return Entry(path, tarfile.SYMTYPE, 0o777, os.fsencode(target))


def _copied(source: Path | os.DirEntry[str]) -> Iterator[Entry]:
    """One public file or tree of /etc; what only root may read is left out."""
    path = os.fspath(source).lstrip("/")
    if source.is_symlink():
        yield _link(path, str(Path(source).readlink()))
    elif source.is_dir() and source.stat().st_mode & 0o005 == 0o005:
        yield Entry(path, tarfile.DIRTYPE, 0o755)
        with os.scandir(source) as found:
            children = sorted(found, key=lambda child: child.name)
        for child in children:
            yield from _copied(child)
    elif source.is_file() and (mode := source.stat().st_mode) & 0o004:
        yield Entry(path, tarfile.REGTYPE, mode & 0o755, Path(source).read_bytes())


def _directories_of_usr() -> Iterator[Entry]:
    for path, names, _ in os.walk("/usr"):
        names.sort()
        yield Entry(path.lstrip("/"), tarfile.DIRTYPE, 0o755)
