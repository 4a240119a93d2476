"""Objects that come in parts: a directory for each upload, in it a file for each part, named by its number."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from forkyard.disk.directory.place import Place
from forkyard.disk.directory.tree import remove_tree
from forkyard.disk.directory.writing import Draft, publish
from forkyard.disk.errors import DiskError
from forkyard.disk.parts import check_parts, etag_of_parts, new_md5
from forkyard.disk.values import About, Condition, ObjectInfo, Part, Upload

_ID = re.compile(r"[0-9a-f]{32}")
_MD5 = "user.forkyard.md5"
_FACTS = "upload.json"
_BLOCK = 1 << 20


def begin(place: Place, key: str, about: About) -> Upload:
    """A new upload. Its directory appears with its facts in it."""
    upload = Upload(secrets.token_hex(16), key, time.time())
    draft = place.tmp / place.new_name()
    draft.mkdir()
    facts = {"key": key, "created": upload.created, "about": asdict(about) | {"metadata": dict(about.metadata)}}
    path = draft / _FACTS
    path.write_text(json.dumps(facts))
    _sync(path)
    draft.rename(place.uploads / upload.id)
    _sync(place.uploads)
    return upload


def put_part(place: Place, key: str, upload_id: str, number: int, draft: Draft) -> Part:
    """Make the draft a part, in the place of an earlier one of its number."""
    directory, _ = _opened(place, key, upload_id)
    etag = draft.md5.hexdigest()
    os.setxattr(draft.fd, _MD5, etag.encode())
    os.fsync(draft.fd)
    try:
        draft.path.rename(directory / str(number))
        _sync(directory)
    except FileNotFoundError:
        raise _gone(upload_id) from None
    return Part(number, etag, draft.size, os.fstat(draft.fd).st_mtime)


def complete(
    place: Place, key: str, upload_id: str, parts: Sequence[Part], draft: Draft, when: Condition | None
) -> ObjectInfo:
    """Make the object of its parts, then forget the upload."""
    directory, about = _opened(place, key, upload_id)
    check_parts(parts, {part.number: part for part in found_parts(place, key, upload_id)})
    for part in parts:
        try:
            _add(draft, directory / str(part.number), part.etag.strip('"'))
        except FileNotFoundError:
            raise _gone(upload_id) from None
    info = publish(place, draft, key, about, when, shown=etag_of_parts(parts))
    _forget(place, directory)
    return info


def abort(place: Place, key: str, upload_id: str) -> None:
    """Forget an upload and its parts."""
    directory, _ = _opened(place, key, upload_id)
    _forget(place, directory)


def found_parts(place: Place, key: str, upload_id: str) -> tuple[Part, ...]:
    """The parts that are there, by number."""
    directory, _ = _opened(place, key, upload_id)
    try:
        found = [_part(path) for path in directory.iterdir() if path.name.isdecimal()]
    except FileNotFoundError:
        raise _gone(upload_id) from None
    return tuple(sorted(found, key=lambda part: part.number))


def all_uploads(place: Place, prefix: str) -> tuple[Upload, ...]:
    """The uploads under way, by key and age."""
    found = []
    for path in place.uploads.iterdir():
        try:
            facts = json.loads((path / _FACTS).read_text())
        except FileNotFoundError:  # ended meanwhile
            continue
        if facts["key"].startswith(prefix):
            found.append(Upload(path.name, facts["key"], facts["created"]))
    return tuple(sorted(found, key=lambda upload: (upload.key.encode(), upload.created, upload.id)))


def check_upload(place: Place, key: str, upload_id: str) -> None:
    """NoSuchUpload: there is none of this id and key."""
    _opened(place, key, upload_id)


def _opened(place: Place, key: str, upload_id: str) -> tuple[Path, About]:
    if not _ID.fullmatch(upload_id):  # an id is never a path
        raise _gone(upload_id)
    directory = place.uploads / upload_id
    try:
        facts = json.loads((directory / _FACTS).read_text())
    except FileNotFoundError:
        raise _gone(upload_id) from None
    if facts["key"] != key:
        raise _gone(upload_id)
    return directory, About(**facts["about"])


def _part(path: Path) -> Part:
    stat = path.stat()
    return Part(int(path.name), os.getxattr(path, _MD5).decode(), stat.st_size, stat.st_mtime)


def _add(draft: Draft, path: Path, etag: str) -> None:
    md5 = new_md5()
    with path.open("rb") as part:
        while block := part.read(_BLOCK):
            md5.update(block)
            draft.write(block)
    if md5.hexdigest() != etag:
        raise DiskError("InvalidPart", f"part {path.name} was put again while the upload was being completed")


def _forget(place: Place, directory: Path) -> None:
    """In one step, so that no half of an upload is seen."""
    doomed = place.tmp / place.new_name()
    try:
        directory.rename(doomed)
    except FileNotFoundError:
        raise _gone(directory.name) from None
    _sync(place.uploads)
    remove_tree(doomed)


def _gone(upload_id: str) -> DiskError:
    return DiskError("NoSuchUpload", f"there is no upload {upload_id[:64]!r} of this key: it was ended, or never begun")


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
