"""What is said of an object, in the headers a bucket keeps with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from forkyard.disk.errors import DiskError
from forkyard.disk.keys import check_about
from forkyard.disk.values import About, ObjectInfo

OURS = "forkyard-"
"""Begins the names of metadata that are not the user's."""

WRITER = f"{OURS}writer"
_QUOTED = f"{OURS}quoted"
_MODES = {"mode": 8, "uid": 10, "gid": 10}


def as_arguments(about: About) -> dict[str, Any]:
    """Arguments of the client. Headers are ASCII, so other text is percent-encoded, and that is noted."""
    metadata = {name: text for name, text in about.metadata.items() if not name.startswith(OURS)}
    if not all(text.isascii() and text == text.strip() for text in metadata.values()):
        metadata = {name: quote(text) for name, text in metadata.items()} | {_QUOTED: "1"}
    if about.mode is not None:
        metadata[f"{OURS}mode"] = f"{about.mode:o}"
    for name, number in (("uid", about.uid), ("gid", about.gid)):
        if number is not None:
            metadata[OURS + name] = str(number)
    content_type = {} if about.content_type is None else {"ContentType": quote(about.content_type, safe=_TYPE)}
    return {"Metadata": metadata, **content_type}


_TYPE = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


def info_of(key: str, head: Mapping[str, Any]) -> ObjectInfo:
    """An object from what HEAD or GET said of it. What others wrote there and makes no sense counts as nothing."""
    said = {str(name).lower(): str(text) for name, text in head.get("Metadata", {}).items()}
    numbers = {name: _number(said.get(OURS + name), base) for name, base in _MODES.items()}
    metadata = {name: text for name, text in said.items() if not name.startswith(OURS)}
    if _QUOTED in said:
        metadata = {name: unquote(text) for name, text in metadata.items()}
    size = int(str(head["ContentRange"]).rpartition("/")[2]) if "ContentRange" in head else int(head["ContentLength"])
    return ObjectInfo(
        key,
        size,
        str(head["ETag"]).strip('"'),
        head["LastModified"].timestamp(),
        0o755 if numbers["mode"] is None and key.endswith("/") else _or(numbers["mode"], 0o644),
        _or(numbers["uid"], 0),
        _or(numbers["gid"], 0),
        head.get("ContentType"),
        metadata,
    )


def listed(key: str, entry: Mapping[str, Any]) -> ObjectInfo:
    """An object from what a listing says of it."""
    modified = entry["LastModified"].timestamp()
    return ObjectInfo(key, int(entry["Size"]), str(entry["ETag"]).strip('"'), modified)


def _number(text: str | None, base: int) -> int | None:
    try:
        number = None if text is None else int(text, base)
        check_about(About(mode=number) if base == 8 else About(uid=number))
    except (ValueError, DiskError):
        return None
    return number


def _or(number: int | None, default: int) -> int:
    return default if number is None else number
