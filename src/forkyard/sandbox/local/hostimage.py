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
from dataclasses import replace
from pathlib import Path

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
                archive = await asyncio.to_thread(skeleton, not engine.shifted_usr)
                self._name = f"{HOST}@{hashlib.sha256(archive).hexdigest()[:12]}"
                if store.find("image", self._name) is None:
                    await self._make(self._name, archive)
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


def skeleton(directories_of_usr: bool) -> bytes:
    """An archive of the image's own disk; the same machine gives the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, mode in DIRECTORIES.items():
            archive.addfile(_entry(path, tarfile.DIRTYPE, mode))
        for path, text in TEXTS.items():
            data = text.encode()
            entry = _entry(path, tarfile.REGTYPE, 0o644)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        _add_links(archive)
        for name in [*COPIED, *sorted(path.name for path in Path("/etc").glob(f"{JAVA_PREFIX}*"))]:
            _copy(archive, Path("/etc") / name, f"etc/{name}")
        if directories_of_usr:
            _add_directories(archive)
    return buffer.getvalue()


def _entry(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode = kind, mode
    return entry


def _add_links(archive: tarfile.TarFile) -> None:
    for name in LINKS:
        if Path(f"/usr/{name}").is_dir():
            entry = _entry(name, tarfile.SYMTYPE, 0o777)
            entry.linkname = f"usr/{name}"
            archive.addfile(entry)


def _copy(archive: tarfile.TarFile, source: Path, name: str) -> None:
    """Copy one public file or tree of /etc; what only root may read is left out."""
    if source.is_symlink():
        entry = _entry(name, tarfile.SYMTYPE, 0o777)
        entry.linkname = str(source.readlink())
        archive.addfile(entry)
    elif source.is_dir():
        archive.addfile(_entry(name, tarfile.DIRTYPE, 0o755))
        for child in sorted(source.iterdir()):
            _copy(archive, child, f"{name}/{child.name}")
    elif source.is_file() and source.stat().st_mode & 0o004:
        data = source.read_bytes()
        entry = _entry(name, tarfile.REGTYPE, source.stat().st_mode & 0o755)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))


def _add_directories(archive: tarfile.TarFile) -> None:
    for path, names, _ in os.walk("/usr"):
        names.sort()
        archive.addfile(_entry(path.lstrip("/"), tarfile.DIRTYPE, 0o755))
