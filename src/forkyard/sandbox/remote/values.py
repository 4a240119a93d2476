"""The values of the sandbox protocol as they cross the engine's socket: checked, since either side may lie."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from forkyard.errors import ConfigError, EngineLost, NotAFile, SandboxError, SandboxLost, TooLarge
from forkyard.sandbox.keeping import KeptDisk
from forkyard.sandbox.network import Visit
from forkyard.sandbox.values import Change, ImageInfo, ProgramResult, SandboxInfo, SandboxSpec

T = TypeVar("T")
VERSION = 1
SMALL = 4 << 20
"""Bytes an answer has at most beside what was asked for; a listing may have `LARGE`."""
LARGE = 256 << 20
_TEXT = 10_000
_KINDS: tuple[type[Exception], ...] = (
    EngineLost,
    SandboxLost,
    TooLarge,
    NotAFile,
    SandboxError,
    ConfigError,
    FileNotFoundError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
    BrokenPipeError,
    ConnectionRefusedError,
    ConnectionError,
    ValueError,
)


class BrokenWire(ValueError):
    """The other side says what this protocol does not have."""


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def dumped(value: Any) -> Any:
    """A value as JSON has it."""
    return _adapter(type(value)).dump_python(value, mode="json")


def read(kind: Callable[..., T], value: Any) -> T:
    """A value of that type. Raises BrokenWire; a ConfigError that the value itself raises passes."""
    try:
        return cast(T, _adapter(kind).validate_python(value))
    except ValidationError as err:
        first = err.errors()[0]
        raise BrokenWire(f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None


def spec_out(spec: SandboxSpec) -> dict[str, Any]:
    """A spec without mounts, which mean nothing elsewhere; the environment as it is, whatever its bytes."""
    plain: dict[str, Any] = dumped(replace(spec, mounts=(), env={}))
    return {**plain, "env": dict(spec.env)}


def spec_in(value: Any) -> SandboxSpec:
    """A spec that was sent. Raises BrokenWire, and ConfigError for what is none."""
    if not isinstance(value, dict) or value.get("mounts"):
        raise BrokenWire("no spec of a sandbox")
    return replace(read(SandboxSpec, {**value, "env": {}}), env=environment(value.get("env")))


def environment(value: Any) -> dict[str, str]:
    """Variables; their text need not be UTF-8."""
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise BrokenWire("no environment")
    return value


def result_out(result: ProgramResult) -> tuple[dict[str, Any], bytes]:
    """A result, its output beside it."""
    plain = {
        "exit_code": result.exit_code,
        "stdout": len(result.stdout_bytes),
        "stdout_total": result.stdout_total,
        "stderr_total": result.stderr_total,
        "timed_out": result.timed_out,
        "ended_by": result.ended_by,
    }
    return plain, result.stdout_bytes + result.stderr_bytes


def result_in(value: Any, data: bytes) -> ProgramResult:
    """A result that was sent."""
    value = dict(mapping(value))
    length = value.pop("stdout", None)
    if not isinstance(length, int) or not 0 <= length <= len(data):
        raise BrokenWire("no length of the output")
    result = read(ProgramResult, value)
    return replace(result, stdout_bytes=data[:length], stderr_bytes=data[length:])


def changes_out(changes: list[Change]) -> list[list[Any]]:
    """Changes, whose paths need not be UTF-8."""
    return [[change.path, change.kind, change.regular] for change in changes]


def changes_in(value: Any) -> list[Change]:
    """Changes that were sent."""
    found = []
    for each in value if isinstance(value, list) else [None]:
        match each:
            case [str(path), "added" | "modified" | "deleted" as kind, bool(regular)]:
                found.append(Change(path, kind, regular))
            case _:
                raise BrokenWire("no change of a sandbox")
    return found


def infos_in(value: Any) -> list[SandboxInfo]:
    """Lines of a listing."""
    return read(list[SandboxInfo], value)


def images_in(value: Any) -> list[ImageInfo]:
    """Images of a listing."""
    return read(list[ImageInfo], value)


def kept_in(value: Any) -> list[KeptDisk]:
    """Kept disks of a listing."""
    return read(list[KeptDisk], value)


def visits_in(value: Any) -> tuple[Visit, ...]:
    """What a sandbox asked for."""
    return read(tuple[Visit, ...], value)


def mapping(value: Any) -> Mapping[str, Any]:
    """An object of JSON."""
    if not isinstance(value, dict):
        raise BrokenWire("no object where one belongs")
    return value


def error_out(error: Exception) -> dict[str, Any]:
    """An error as the other side is told of it: one of the protocol's own, or that something failed."""
    kind = next((kind for kind in _KINDS if isinstance(error, kind)), None)
    if kind is None:
        return {"kind": "SandboxError", "text": f"the server failed at this: {type(error).__name__}"}
    if isinstance(error, OSError):
        name = error.filename if isinstance(error.filename, str) else None
        return {"kind": kind.__name__, "text": error.strerror or str(error), "errno": error.errno, "path": name}
    return {"kind": kind.__name__, "text": str(error)}


def error_in(value: Any) -> Exception:
    """The error that was told."""
    value = mapping(value)
    text = str(value.get("text"))[:_TEXT]
    kind = next((kind for kind in _KINDS if kind.__name__ == value.get("kind")), SandboxError)
    if issubclass(kind, OSError):
        number, path = value.get("errno"), value.get("path")
        return kind(number if isinstance(number, int) else errno.EIO, text, *([path] if isinstance(path, str) else []))
    return kind(text)
