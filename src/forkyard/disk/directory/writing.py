"""Writing an object: into a file that nobody sees, then into its place in one step."""

from __future__ import annotations

import os
from contextlib import suppress

from forkyard.disk.directory.attributes import (
    Attributes,
    describe,
    mark_no_object,
    read_attributes,
    settle,
    write_attributes,
)
from forkyard.disk.directory.hashes import EMPTY_MD5
from forkyard.disk.directory.place import Place
from forkyard.disk.directory.tree import clear_empty, inner, is_directory, made, segments_of, top
from forkyard.disk.errors import DiskError, always_removed
from forkyard.disk.parts import new_md5
from forkyard.disk.values import PUT_LIMIT, About, Condition, ObjectInfo

_TRIES = 8


class Draft:
    """A file in the making. Whoever makes one opens it and calls `discard` at the end, published or not."""

    def __init__(self, place: Place, limit: int = PUT_LIMIT) -> None:
        self.path = place.tmp / place.new_name()
        self.md5 = new_md5()
        self.size = 0
        self.fd = -1
        self._limit = limit

    def open(self) -> None:
        """Make the file. NoSuchBucket."""
        try:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise DiskError("NoSuchBucket", "this disk, or branch, was deleted") from None

    def write(self, data: bytes) -> None:
        """Add bytes. EntityTooLarge."""
        self.size += len(data)
        if self.size > self._limit:
            raise DiskError(
                "EntityTooLarge", f"an object, or a part, written in one piece has {self._limit} bytes at most"
            )
        self.md5.update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]

    def discard(self) -> None:
        """Close it, and remove it unless it was published."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.path.unlink(missing_ok=True)


def publish(
    place: Place, draft: Draft, key: str, about: About, when: Condition | None = None, shown: str = ""
) -> ObjectInfo:
    """Make the draft the object of this key; durable on return. `shown`: its ETag, if that is not its MD5."""
    md5 = draft.md5.hexdigest()
    more = {"whole": md5, "shown": shown} if shown else {}
    attributes = settle(draft.fd, about, 0o644, **more)
    os.fsync(draft.fd)
    before = os.fstat(draft.fd)
    *parents, name = segments_of(key)
    owner = None if about.uid is None and about.gid is None else (about.uid or 0, about.gid or 0)
    _check(place, key, when, held=False)  # before directories are made for nothing
    with top(place.objects) as root:
        for _ in range(_TRIES):
            with suppress(FileNotFoundError), made(root, parents, owner) as (parent, _new):
                with place.stripes.held(key):
                    _check(place, key, when)
                    _replace(draft, parent, name)
                    after = os.fstat(draft.fd)
                    if (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
                        place.hashes.keep(after, draft.md5)
                os.fsync(parent)
                return describe(key, after, draft.size, md5, attributes)
    raise always_removed(key)


def _check(place: Place, key: str, when: Condition | None, *, held: bool = True) -> None:
    """Raise unless the condition holds; only with the object's lock held it goes on holding."""
    if when is not None:
        there = place.info(key, held=held)
        when.check(None if there is None else there.etag, key)


def _replace(draft: Draft, parent: int, name: bytes) -> None:
    try:
        os.rename(draft.path, name, dst_dir_fd=parent)
    except IsADirectoryError:
        if not clear_empty(parent, name):
            raise
        os.rename(draft.path, name, dst_dir_fd=parent)


def put_directory(place: Place, key: str, about: About, when: Condition | None) -> ObjectInfo:
    """Make a directory an object of its own; one that exists keeps mode and owner."""
    *parents, name = segments_of(key)
    with top(place.objects) as root, place.stripes.held(key):
        _check(place, key, when)
        try:
            with made(root, parents, None) as (parent, _new):
                fresh = not is_directory(parent, name)
            with made(root, [*parents, name], None) as (fd, _new):
                return _marked(fd, key, about, fresh=fresh)
        except FileNotFoundError:
            raise always_removed(key) from None


def _marked(fd: int, key: str, about: About, *, fresh: bool) -> ObjectInfo:
    there = read_attributes(fd)
    if fresh:
        there = settle(fd, about, 0o755, marked=True)
    elif not there.marked:
        there = Attributes(about.content_type, about.metadata, owner=there.owner, marked=True)
        write_attributes(fd, there)
    os.fsync(fd)
    return describe(key, os.fstat(fd), 0, EMPTY_MD5, there)


def remove(place: Place, key: str, when: Condition | None) -> bool:
    """Remove an object; whether there was one."""
    *parents, name = segments_of(key)
    with place.stripes.held(key):
        there = place.info(key, held=True)
        if there is None:
            if when is not None and when.if_match is not None:
                raise DiskError("PreconditionFailed", f"If-Match was given, but there is no object {key!r}")
            return False
        if when is not None:
            when.check(there.etag, key)
        with suppress(FileNotFoundError), top(place.objects) as root, inner(root, parents) as parent:
            _unlink(parent, name, directory=key.endswith("/"))
            os.fsync(parent)
        return True


def _unlink(parent: int, name: bytes, *, directory: bool) -> None:
    if not directory:
        os.unlink(name, dir_fd=parent)
        return
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError:  # it holds something: it stays, but is no object any more
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            mark_no_object(fd)
        finally:
            os.close(fd)
