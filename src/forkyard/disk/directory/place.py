"""Where one disk, or one branch, lies, and how its objects are looked at.

objects/         the objects, as plain files of their own names: what sandboxes mount
state/stripes/   locks (`stripes`)
state/hashes.db  MD5s (`hashes`)
state/tmp/       objects that are being written, by the process that writes them
state/uploads/   uploads in parts
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from forkyard.disk.directory.attributes import describe, read_attributes
from forkyard.disk.directory.hashes import EMPTY_MD5, Hashes
from forkyard.disk.directory.stripes import Note, Stripes
from forkyard.disk.directory.tree import inner, open_file, segments_of, top
from forkyard.disk.errors import DiskError, no_such_key
from forkyard.disk.values import ObjectInfo, RootAttributes

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True)
class Found:
    """An object as it stood at one moment; `fd` is the finder's to close. -1: a directory."""

    fd: int
    info: ObjectInfo


class Place:
    """The files of one disk or branch; `new_name` names a file in the making."""

    def __init__(self, path: Path, root: RootAttributes, new_name: Callable[[], str]) -> None:
        self.objects = path / "objects"
        self.tmp = path / "state" / "tmp"
        self.uploads = path / "state" / "uploads"
        self.new_name = new_name
        stripes = path / "state" / "stripes"
        for directory in (self.tmp, self.uploads, stripes, path / "drafts"):
            directory.mkdir(parents=True, exist_ok=True)
        _make_top(self.objects, root)
        self.hashes = Hashes(path / "state" / "hashes.db")
        self.stripes = Stripes(stripes, self._mend)

    def look(self, key: str, *, held: bool = False) -> Found | None:
        """An object and what it is, or None; `held` says that the caller has the object's lock."""
        calm = nullcontext() if held else self.stripes.calm(key)
        try:
            with top(self.objects) as root:
                if key.endswith("/"):
                    return self._look_at_directory(root, key)
                return self._look_at_file(root, key, calm)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def info(self, key: str, *, held: bool = False) -> ObjectInfo | None:
        """What an object is, or None; `held` as in `look`."""
        found = self.look(key, held=held)
        if found is None:
            return None
        if found.fd >= 0:
            os.close(found.fd)
        return found.info

    def needed(self, key: str) -> Found:
        """As `look`. NoSuchKey."""
        found = self.look(key)
        if found is None:
            raise no_such_key(key)
        return found

    def _look_at_directory(self, root: int, key: str) -> Found | None:
        with inner(root, segments_of(key)) as fd:
            attributes = read_attributes(fd)
            if not attributes.marked:
                return None
            return Found(-1, describe(key, os.fstat(fd), 0, EMPTY_MD5, attributes))

    def _look_at_file(self, root: int, key: str, calm: AbstractContextManager[None]) -> Found | None:
        *parents, name = segments_of(key)
        with inner(root, parents) as parent:
            fd = open_file(parent, name)
        if fd is None:
            return None
        try:
            with calm:
                stat = os.fstat(fd)
                md5, size = self.hashes.find(stat), stat.st_size
            if md5 is None:
                md5, size = self.hashes.of(fd, stat)
            return Found(fd, describe(key, stat, size, md5, read_attributes(fd)))
        except BaseException:
            os.close(fd)
            raise

    def _mend(self, note: Note) -> None:
        """Take back the bytes of an append that its process did not live to write whole."""
        try:
            with top(self.objects) as root:
                *parents, name = segments_of(note.key.decode())
                with inner(root, parents) as parent:
                    fd = open_file(parent, name, os.O_RDWR)
        except (FileNotFoundError, NotADirectoryError):
            return
        if fd is None:
            return
        try:
            stat = os.fstat(fd)
            if stat.st_ino == note.inode and note.start < stat.st_size < note.stop:
                os.ftruncate(fd, note.start)
        finally:
            os.close(fd)


def _make_top(path: Path, root: RootAttributes) -> None:
    """Under another name first, so that it never stands with other attributes."""
    if path.is_dir():
        return
    draft = path.with_name(f".{os.urandom(8).hex()}")
    draft.mkdir()
    draft.chmod(root.mode)
    if os.getuid() == 0:
        os.chown(draft, root.uid, root.gid)
    try:
        draft.rename(path)
    except OSError:  # another process made it, and it holds something already
        draft.rmdir()


@contextmanager
def told(key: str) -> Iterator[None]:
    """Turn what the kernel says while an object is changed into what a caller can act on."""
    try:
        yield
    except (NotADirectoryError, IsADirectoryError) as err:
        raise DiskError(
            "KeyConflict",
            f"{key!r} cannot be written: on this disk a name is a file or a directory, and another object, or a link, "
            "stands in the way",
        ) from err
    except FileNotFoundError as err:  # objects that are not there are told by those who look for them
        raise DiskError("NoSuchBucket", "this disk, or branch, was deleted") from err
    except OSError as err:
        if err.errno in _FULL:
            raise DiskError("InsufficientStorage", "there is no room left for objects: delete some") from err
        if err.errno in _REFUSED:
            raise DiskError("AccessDenied", f"{key!r}: whoever serves this disk may not do that to it") from err
        raise DiskError("InternalError", f"{key!r}: {err.strerror or type(err).__name__}") from err
