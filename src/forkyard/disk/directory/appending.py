"""Appending to a file: a whole group at once, after a note of where it ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from forkyard.disk.appends import Outcome, Waiting, lost_race
from forkyard.disk.directory.attributes import describe, read_attributes, settle
from forkyard.disk.directory.hashes import mark_of
from forkyard.disk.directory.place import Place
from forkyard.disk.directory.stripes import Note, Stripe
from forkyard.disk.directory.tree import clear_empty, inner, is_directory, made, open_file, segments_of, top
from forkyard.disk.directory.writing import Draft
from forkyard.disk.errors import always_removed
from forkyard.disk.values import ObjectInfo


def exists(place: Place, key: str) -> bool:
    """Whether there is an object of this key now."""
    *parents, name = segments_of(key)
    try:
        with top(place.objects) as root, inner(root, parents) as parent:
            fd = open_file(parent, name)
    except FileNotFoundError:
        return False
    if fd is not None:
        os.close(fd)
    return fd is not None


def write_group(place: Place, key: str, group: Sequence[Waiting]) -> list[Outcome]:
    """Append in this order, each whole or not at all; durable on return. An outcome for each, in the same order."""
    with top(place.objects) as root:
        try:
            return _write_group(place, root, key, group)
        except FileNotFoundError:
            raise always_removed(key) from None


def _write_group(place: Place, root: int, key: str, group: Sequence[Waiting]) -> list[Outcome]:
    *parents, name = segments_of(key)
    first = group[0].about
    owner = None if first.uid is None and first.gid is None else (first.uid or 0, first.gid or 0)
    outcomes: list[Outcome] = []
    with made(root, parents, owner) as (parent, _new):
        with place.stripes.held(key) as stripe:
            fd = open_file(parent, name, os.O_RDWR | os.O_APPEND)
            created = fd is None
            if fd is None:
                fd, info = _create(place, key, parent, name, group[0])
                outcomes.append(info)
            try:
                outcomes += _append(place, stripe, key, fd, group[1:] if created else group)
            except BaseException:
                os.close(fd)
                raise
        try:
            os.fdatasync(fd)
            if created:
                os.fsync(parent)
        finally:
            os.close(fd)
    return outcomes


def _create(place: Place, key: str, parent: int, name: bytes, first: Waiting) -> tuple[int, ObjectInfo]:
    """A new object of one append: whole from the first moment."""
    draft = Draft(place)
    try:
        draft.open()
        draft.write(first.data)
        attributes = settle(draft.fd, first.about, 0o644)
        os.fsync(draft.fd)
        if is_directory(parent, name):
            clear_empty(parent, name)
        try:
            os.link(draft.path, name, dst_dir_fd=parent)
        except FileExistsError:
            made_by_another = open_file(parent, name)
            if made_by_another is None:  # a directory, a link
                raise IsADirectoryError from None
            os.close(made_by_another)
            raise lost_race(key) from None
        draft.path.unlink()
        stat = os.fstat(draft.fd)
        place.hashes.keep(stat, draft.md5)
        fd = os.open(f"/proc/self/fd/{draft.fd}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        return fd, describe(key, stat, draft.size, draft.md5.hexdigest(), attributes)
    finally:
        draft.discard()


def _append(place: Place, stripe: Stripe, key: str, fd: int, group: Sequence[Waiting]) -> list[Outcome]:
    turned_away = [not waiting.existed for waiting in group]  # now there is one, which another made
    data = b"".join(waiting.data for waiting, away in zip(group, turned_away, strict=True) if not away)
    before = os.fstat(fd)
    md5 = place.hashes.running(fd, before)
    if data:
        _write_whole(stripe, Note(key.encode(), before.st_ino, before.st_size, before.st_size + len(data)), fd, data)
    after, attributes = os.fstat(fd), read_attributes(fd)
    outcomes: list[Outcome] = []
    size = before.st_size
    for waiting, away in zip(group, turned_away, strict=True):
        if away:
            outcomes.append(lost_race(key))
            continue
        size += len(waiting.data)
        if md5 is not None:
            md5.update(waiting.data)
        outcomes.append(describe(key, after, size, mark_of(after) if md5 is None else md5.hexdigest(), attributes))
    if md5 is not None and after.st_size == size:  # else a command wrote at the same time
        place.hashes.keep(after, md5)
    return outcomes


def _write_whole(stripe: Stripe, note: Note, fd: int, data: bytes) -> None:
    stripe.note(note)
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        written = len(data) - len(view)
        with suppress(OSError):
            if os.fstat(fd).st_size == note.start + written:
                os.ftruncate(fd, note.start)
        raise
    finally:
        stripe.strike()
