"""Archives of trees beneath a directory that stands for "/".

In a sandbox a child of PID 1 does this, so that no tar program is needed in the image: its standard input and output
carry the archive, its standard error one JSON object when something is wrong.
"""

from __future__ import annotations

import fcntl
import fnmatch
import io
import json
import os
import resource
import stat
import tarfile
from contextlib import suppress
from typing import Any, BinaryIO

from . import kernel
from .files import SYSTEM, create, parent_of, root_at, told_of
from .unpack import CHUNK, attributes_of, push

_REHEARSALS = 9  # after eight calls Python writes what it learned of a function into its code
_COPY = "/there"


def serve(operation: dict[str, Any]) -> int:
    """Do one "pull" or "push" on descriptors 0, 1 and 2; the exit code says whether it worked."""
    # Owner names would be looked up by libc, which loads plug-ins from the sandbox's own disk.
    tarfile.pwd = tarfile.grp = None  # type: ignore[attr-defined]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a walk holds one for each level of a tree
    try:
        with root_at("/") as root:
            if operation["op"] == "pull":
                with os.fdopen(1, "wb") as out:
                    pull(root, operation["path"], operation["exclude"], out)
            else:
                with os.fdopen(0, "rb") as archive:
                    with suppress(OSError):  # some kernels allow less
                        fcntl.fcntl(0, fcntl.F_SETPIPE_SZ, CHUNK)
                    push(root, operation["path"], archive, skip=SYSTEM, layer=operation["layer"])
    except (OSError, tarfile.TarError, ValueError) as err:
        number = err.errno if isinstance(err, OSError) else None
        text = str(err.strerror or err) if isinstance(err, OSError) else str(err)
        report = {"errno": number, "message": text, "path": getattr(err, "filename", None)}
        os.write(2, json.dumps(report, default=repr).encode()[:60000])
        return 1
    return 0


def rehearse(directory: str) -> None:
    """Pack and unpack a little in an empty directory, for what `pid1.rehearse` says."""
    with root_at(directory) as root:
        os.close(create(root, "a"))
        for _ in range(_REHEARSALS):
            archive = io.BytesIO()
            pull(root, "/", [_COPY[1:]], archive)
            for layer in (False, True):
                archive.seek(0)
                push(root, _COPY, archive, layer=layer)


def check_is_there(path: str) -> None:
    """OSError that names `path` when nothing is there to be pulled."""
    with root_at("/") as root, parent_of(root, path) as (folder, name), told_of(path):
        os.stat(name, dir_fd=folder, follow_symlinks=False)


def pull(root: int, path: str, exclude: list[str], out: BinaryIO) -> None:
    """Write a tar of the file or tree at `path`; a link at `path` itself is archived as a link."""
    with parent_of(root, path) as (folder, name):
        with told_of(path):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            packer = _Packer(archive, status.st_dev)
            if stat.S_ISDIR(status.st_mode):
                packer.add_tree(os.open(name, kernel.REAL_FOLDER, dir_fd=folder), exclude)
            else:
                packer.add(folder, name, name, status)


class _Packer:
    """Puts files of one file system into an archive; names of a file it has already are links to the first."""

    def __init__(self, archive: tarfile.TarFile, device: int) -> None:
        self._archive, self._device = archive, device
        self._names: dict[tuple[int, int], str] = {}

    def add_tree(self, top: int, exclude: list[str]) -> None:
        """Add everything beneath an open directory, which is closed; other file systems are not entered."""
        stack = [("", top, iter(sorted(os.listdir(top))))]
        try:
            while stack:
                prefix, folder, names = stack[-1]
                name = next(names, None)
                if name is None:
                    os.close(stack.pop()[1])
                    continue
                member = f"{prefix}{name}"
                if any(fnmatch.fnmatch(member, pattern) or fnmatch.fnmatch(name, pattern) for pattern in exclude):
                    continue
                try:
                    below = self.add(folder, name, member, os.stat(name, dir_fd=folder, follow_symlinks=False))
                except FileNotFoundError:  # a process inside removed it meanwhile
                    continue
                if below is not None:
                    stack.append((f"{member}/", below, iter(sorted(os.listdir(below)))))
        finally:
            for _, folder, _ in stack:
                os.close(folder)

    def add(self, folder: int, name: str, member: str, status: os.stat_result) -> int | None:
        """Add one file, without what a directory holds; of a directory to be entered the descriptor is returned."""
        entry = tarfile.TarInfo(member)
        entry.mode, entry.uid, entry.gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
        entry.mtime = int(status.st_mtime)
        if stat.S_ISREG(status.st_mode):
            self._add_file(entry, folder, name, status)
            return None
        if stat.S_ISDIR(status.st_mode):
            entry.type = tarfile.DIRTYPE
            if status.st_dev == self._device:
                below = os.open(name, kernel.REAL_FOLDER, dir_fd=folder)
                entry.pax_headers = attributes_of(below)
                try:
                    self._archive.addfile(entry)
                except BaseException:
                    os.close(below)
                    raise
                return below
        elif stat.S_ISLNK(status.st_mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=folder)
        elif stat.S_ISFIFO(status.st_mode):
            entry.type = tarfile.FIFOTYPE
        else:
            return None  # sockets and devices say nothing outside the sandbox
        self._archive.addfile(entry)
        return None

    def _add_file(self, entry: tarfile.TarInfo, folder: int, name: str, status: os.stat_result) -> None:
        number = (status.st_dev, status.st_ino)
        if number in self._names:
            entry.type, entry.linkname = tarfile.LNKTYPE, self._names[number]
            self._archive.addfile(entry)
            return
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with os.fdopen(fd, "rb") as content:
            entry.size = os.fstat(fd).st_size
            entry.pax_headers = attributes_of(fd)
            self._archive.addfile(entry, _Exactly(content, entry.size))
        if status.st_nlink > 1:
            self._names[number] = entry.name


class _Exactly:
    """Reads exactly `size` bytes of a file that may shrink or grow meanwhile: a header never lies."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def read(self, count: int = -1, /) -> bytes:
        count = self._left if count < 0 else min(count, self._left)
        data = self._file.read(count)
        self._left -= count
        return data + bytes(count - len(data))
