"""The options of `RUN --mount=type=...,target=...`, read into values."""

from __future__ import annotations

import csv
from typing import cast, get_args

from forkyard.image.instructions import Mount, MountKind
from forkyard.image.problem import Problem
from forkyard.image.scalars import parse_id, parse_mode, parse_switch
from forkyard.image.statement import Statement

_KINDS: tuple[str, ...] = get_args(MountKind)
_SAME = {"target": "dst destination", "source": "src", "readonly": "ro", "readwrite": "rw"}
_NAMES = {other: name for name, others in _SAME.items() for other in others.split()}
# `readonly`, `readwrite` and `size` are taken and have no effect: see docs/tasks.md.
_OPTIONS = {
    "bind": {"target", "source", "from", "readonly", "readwrite"},
    "cache": {"target", "source", "from", "readonly", "readwrite", "id", "sharing", "mode", "uid", "gid"},
    "secret": {"target", "id", "required", "mode", "uid", "gid", "env", "source"},
    "tmpfs": {"target", "size"},
}


def parse_mount(text: str, statement: Statement) -> Mount:
    """One mount. Raises Problem for an option that is not possible."""
    options = _options(text)
    kind = options.pop("type", "bind")
    if kind == "ssh":
        raise Problem("RUN --mount=type=ssh is not supported: give the key as a secret, or fetch before the build")
    if kind not in _KINDS:
        raise Problem(f"RUN --mount=type={kind[:40]} is not supported: the types are {', '.join(_KINDS)}")
    for option in options:
        if option not in _OPTIONS[kind]:
            raise Problem(f"RUN --mount=type={kind} has no option {option[:40]!r}: delete it")
    if kind == "secret":
        return _secret(options, statement)
    if not options.get("target"):
        raise Problem(f"RUN --mount=type={kind} has no target: write target=/path")
    sharing = options.get("sharing", "shared")
    if sharing not in ("shared", "private", "locked"):
        raise Problem(f"sharing={sharing[:40]} is not possible: it is shared, private or locked")
    return Mount(
        cast(MountKind, kind),
        statement.word(options["target"]),
        origin=options.get("from", ""),
        source=statement.word(options.get("source", "")),
        name=statement.word(options.get("id", "")),
        mode=_mode(options, 0o755 if kind == "cache" else 0o1777 if kind == "tmpfs" else 0o755),
        uid=_number(options, "uid"),
        gid=_number(options, "gid"),
        locked=sharing == "locked",
    )


def _secret(options: dict[str, str], statement: Statement) -> Mount:
    name = options.get("id") or options.get("source") or options.get("target", "").rpartition("/")[2]
    if not name:
        raise Problem("RUN --mount=type=secret names no secret: write id=name")
    target = options.get("target")
    if target is None and "env" not in options:
        target = f"/run/secrets/{name}"
    return Mount(
        "secret",
        statement.word(target) if target else None,
        name=statement.word(name),
        variable=options.get("env", ""),
        mode=_mode(options, 0o400),
        uid=_number(options, "uid"),
        gid=_number(options, "gid"),
        required=_true(options, "required"),
    )


def _options(text: str) -> dict[str, str]:
    try:
        (fields,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError):
        raise Problem(f"RUN --mount={text[:80]} cannot be read: write --mount=type=...,target=...") from None
    options: dict[str, str] = {}
    for field in fields:
        name, _, value = field.partition("=")
        name = _NAMES.get(name.strip().lower(), name.strip().lower())
        if name in options:
            raise Problem(f"the mount option {name} is given twice: keep one")
        options[name] = value
    return options


def _mode(options: dict[str, str], default: int) -> int:
    text = options.get("mode")
    if text is None:
        return default
    mode = parse_mode(text)
    if mode is None:
        raise Problem(f"the mount option mode={text[:40]} is not possible: write it in octal digits, for example 0400")
    return mode


def _number(options: dict[str, str], name: str) -> int:
    text = options.get(name, "0")
    number = parse_id(text)
    if number is None:
        raise Problem(f"the mount option {name}={text[:40]} is not possible: write a number")
    return number


def _true(options: dict[str, str], name: str) -> bool:
    text = options.get(name, "false")
    on = parse_switch(text)
    if on is None:
        raise Problem(f"the mount option {name}={text[:40]} is not possible: it is true or false")
    return on
