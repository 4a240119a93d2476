"""Unpacking archives beneath a directory that stands for "/", and applying layers of images to it."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any, BinaryIO

from . import kernel
from .files import INSIDE, create, make_directories, make_directory
from .removing import remove_tree

CHUNK = 1 << 20
_BUFFER = 1 << 16  # of which the rest is copied at each header
WHITEOUT, OPAQUE_MARK = ".wh.", ".wh..wh..opq"  # names in a layer of an image
_ATTRIBUTE = "SCHILY.xattr."
_TRAVELLING = ("user.", "security.capability", "system.posix_acl_")
_LATEST = float(1 << 34)


def push(
    root: int, path: str, source: BinaryIO, *, skip: tuple[str, ...] = (), owners: bool = True, layer: bool = False
) -> None:
    """Unpack a tar stream into the directory `path`, created if missing; a `layer` as images have them.

    What is beneath a directory of `skip` is left out when `path` is the root. Without `owners` everything belongs to
    this process's user. Extended attributes that may not be set are left out.
    """
    base = make_directories(root, path)
    try:
        whole = os.path.samestat(os.fstat(base), os.fstat(root))
        resolve = INSIDE if whole else kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_MAGICLINKS
        unpacker = (_LayerUnpacker if layer else _Unpacker)(base, resolve, skip if whole else (), owners)
        with closing(unpacker), tarfile.open(fileobj=source, mode="r|", bufsize=_BUFFER) as archive:
            while (entry := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined] # which would hold all it saw
                unpacker.add(archive, entry)
            unpacker.finish()
    finally:
        os.close(base)


class _Unpacker:
    """Puts members under one directory; owners and modes of directories are set at the end."""

    def __init__(self, base: int, resolve: int, skip: tuple[str, ...], owners: bool) -> None:
        self._base, self._resolve, self._skip, self._owners = base, resolve, skip, owners
        self._device = os.fstat(base).st_dev
        self._directories: dict[str, tarfile.TarInfo] = {}
        self._here: tuple[list[str], int] | None = None  # the directory of the last member, which is open

    def close(self) -> None:
        """Let go of the directory of the last member; by its path there may be another from now on."""
        if self._here is not None:
            os.close(self._here[1])
            self._here = None

    def _enter(self, parts: list[str]) -> int:
        """The directory of a member, made if it is missing; it stays open for those beside it."""
        if self._here is None or self._here[0] != parts:
            self.close()
            self._here = parts, self._directory(parts)
        return self._here[1]

    def add(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        parts = _parts(entry.name)
        if entry.name.startswith("/") or ".." in parts:
            raise ValueError(f"the archive's member {entry.name!r} points outside")
        if not parts:
            self._directories[""] = entry
            return
        if len(parts) > 1 and parts[0] in self._skip:
            return
        self._place(archive, entry, self._enter(parts[:-1]), parts)

    def _place(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, parent: int, parts: list[str]) -> None:
        name = parts[-1]
        if entry.isdir():
            self._make(parent, parts)
            self._directories["/".join(parts)] = entry
            return
        try:
            self._put(archive, entry, parent, name)
        except FileExistsError:  # which is less to ask for than whether there is something, each time
            self._make_room(parent, name)
            self._put(archive, entry, parent, name)

    def _put(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, parent: int, name: str) -> None:
        """Make what is no directory where nothing is; otherwise FileExistsError, and nothing was read."""
        if entry.issym():
            os.symlink(entry.linkname, name, dir_fd=parent)
            self._own(entry, name, parent)
            os.utime(name, _times(entry), dir_fd=parent, follow_symlinks=False)
        elif entry.islnk():
            self._link(entry, parent, name)
        elif entry.isfifo():
            os.mkfifo(name, 0o600, dir_fd=parent)
            self._own(entry, name, parent)
            os.chmod(name, entry.mode, dir_fd=parent)
        elif entry.isfile():
            self._write(parent, name, entry, archive)
        else:
            raise ValueError(f"the archive's member {entry.name!r} is a device or of an unknown kind")

    def _make_room(self, parent: int, name: str) -> None:
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):
            os.rmdir(name, dir_fd=parent)

    def _link(self, entry: tarfile.TarInfo, parent: int, name: str) -> None:
        parts = _parts(entry.linkname)
        if entry.linkname.startswith("/") or ".." in parts or not parts:
            raise ValueError(f"the archive's member {entry.name!r} is a link to outside")
        source = kernel.open_beneath(self._base, "/".join(parts[:-1]), os.O_PATH | os.O_DIRECTORY, self._resolve)
        try:
            os.link(parts[-1], name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def _write(self, parent: int, name: str, entry: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        fd = create(parent, name)
        try:
            for data in _content(archive, entry):
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            self._finish(fd, entry)
        finally:
            os.close(fd)

    def _directory(self, parts: list[str]) -> int:
        """Open a directory beneath the base, making what is missing."""
        there = len(parts)
        while True:
            try:
                folder = self._open("/".join(parts[:there]))
                break
            except FileNotFoundError:
                if there == 0:
                    raise
                there -= 1
        for end in range(there + 1, len(parts) + 1):
            try:
                self._make(folder, parts[:end])
            finally:
                os.close(folder)
            folder = self._open("/".join(parts[:end]))
        return folder

    def _make(self, parent: int, parts: list[str]) -> None:
        """Make a directory; one that is there stays, and so does a link to one inside."""
        try:
            make_directory(parent, parts[-1])
        except FileExistsError:
            try:
                os.close(self._open("/".join(parts)))
            except NotADirectoryError:
                os.unlink(parts[-1], dir_fd=parent)
                make_directory(parent, parts[-1])

    def _open(self, path: str) -> int:
        try:
            return kernel.open_beneath(self._base, path, kernel.FOLDER_OR_LINK, self._resolve)
        except OSError as err:
            if err.errno == errno.EXDEV:
                raise ValueError(
                    f"the archive's path {path!r} leads through a link that leaves the directory"
                ) from None
            raise

    def finish(self) -> None:
        for path, entry in reversed(self._directories.items()):
            fd = self._open(path)
            try:
                self._finish(fd, entry)
            except OSError:
                if os.fstat(fd).st_dev == self._device:  # not /proc or /sys, which are not of this disk
                    raise
            finally:
                os.close(fd)

    def _finish(self, fd: int, entry: tarfile.TarInfo) -> None:
        self._own(entry, fd)
        os.fchmod(fd, entry.mode & 0o7777)
        os.utime(fd, _times(entry))
        for key, value in entry.pax_headers.items():
            if key.startswith(_ATTRIBUTE) and (name := key.removeprefix(_ATTRIBUTE)) and self._may_set(name):
                with suppress(OSError, ValueError):  # where its user or the file system may not have it
                    os.setxattr(fd, os.fsencode(name), value.encode("utf-8", "surrogateescape"))

    def _may_set(self, name: str) -> bool:
        return _travels(name) and (self._owners or name.startswith("user."))

    def _own(self, entry: tarfile.TarInfo, what: int | str, folder: int | None = None) -> None:
        """Set the owner. An ordinary user's sandbox may know root only, whose all is then (see the feature `users`)."""
        if not self._owners:
            return
        try:
            if isinstance(what, int):
                os.fchown(what, entry.uid, entry.gid)
            else:
                os.chown(what, entry.uid, entry.gid, dir_fd=folder, follow_symlinks=False)
        except OSError as err:
            if err.errno != errno.EINVAL:
                raise


class _LayerUnpacker(_Unpacker):
    """Applies a layer over lower ones: whiteouts delete, and a member replaces what is of another kind.

    Device nodes are left out, which the root of a sandbox could not make.
    """

    def add(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        parts = _parts(entry.name)
        ours = len(parts) == 1 and parts[0].removeprefix(WHITEOUT) in self._skip
        if entry.ischr() or entry.isblk() or (ours and not entry.isdir()):
            return
        if parts and parts[-1].startswith(WHITEOUT) and ".." not in parts:
            if parts[0] not in self._skip:
                self._delete(parts)
            return
        super().add(archive, entry)

    def _delete(self, parts: list[str]) -> None:
        """Do as a whiteout says; what it names need not be there."""
        name = parts[-1].removeprefix(WHITEOUT)
        if name in ("", ".", ".."):
            raise ValueError(f"the layer's whiteout {'/'.join(parts)!r} names nothing")
        self.close()  # which may be what is deleted
        try:
            parent = self._open("/".join(parts[:-1]))
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            if parts[-1] == OPAQUE_MARK:
                for below in os.listdir(parent):
                    if len(parts) > 1 or below not in self._skip:
                        remove_tree(parent, below)
            elif not name.startswith(WHITEOUT):  # other names of two prefixes are notes of an old storage driver
                remove_tree(parent, name)
        finally:
            os.close(parent)

    def _make(self, parent: int, parts: list[str]) -> None:
        try:
            status = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            make_directory(parent, parts[-1])
            return
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(parts[-1], dir_fd=parent)
            make_directory(parent, parts[-1])

    def _make_room(self, parent: int, name: str) -> None:
        remove_tree(parent, name)


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> Iterator[bytes]:
    """What a file holds. Of one without holes the archive's own stream is asked, which is half the work."""
    if entry.issparse():
        sparse: Any = archive.extractfile(entry)
        while data := sparse.read(CHUNK):
            yield data
        return
    stream: Any = archive.fileobj
    stream.seek(entry.offset_data)
    left = entry.size
    while left:
        data = stream.read(min(left, CHUNK))
        if not data:
            raise tarfile.ReadError("the archive is cut")
        left -= len(data)
        yield data


def attributes_of(fd: int) -> dict[str, str]:
    """The extended attributes of an open file that mean something elsewhere, as the headers of its tar member."""
    try:
        names = os.listxattr(fd)
    except OSError:  # a file system without any
        return {}
    found = {}
    for name in names:
        if _travels(name) and "=" not in name:  # which would end the name in a header
            with suppress(OSError):  # removed meanwhile
                found[_ATTRIBUTE + name] = os.getxattr(fd, name).decode("utf-8", "surrogateescape")
    return found


def _travels(name: str) -> bool:
    """Whether an extended attribute belongs to a file: those of overlays would be an order to the file system."""
    return name.startswith(_TRAVELLING) and not name.startswith("user.overlay.")


def _times(entry: tarfile.TarInfo) -> tuple[float, float]:
    """Access and modification time; 0 where an archive claims what no file system can hold."""
    time = entry.mtime if -_LATEST < entry.mtime < _LATEST else 0
    return time, time
