"""Values of task.toml whose rules are more than a type: users, hosts, names, sizes, artifacts' places."""

from __future__ import annotations

import ipaddress
import math
import re
import unicodedata
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_TASK_NAME = re.compile(rf"{_PART}/{_PART}")
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f]')
_DEVICE = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9\u00b9\u00b2\u00b3]) *(?:\..*)?", re.IGNORECASE | re.DOTALL
)
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([GMK])\s*", re.IGNORECASE)
_MEGABYTES = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


def _user(value: Any) -> Any:
    """A user name, or a number as the same text a command line would take."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return str(value)
    if isinstance(value, str) and value.strip() and value.isprintable():
        return value
    raise ValueError("is not a user; write a name or a non-negative number")


def _number_from_text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        raise ValueError("is not a number") from None


def _task_name(value: str) -> str:
    if not _TASK_NAME.fullmatch(value) or ".." in value:
        raise ValueError("is not of the form org/name (letters, digits, '.', '_' and '-', no '..')")
    return value


def _service(value: str) -> str:
    if not _SERVICE.fullmatch(value):
        raise ValueError("is not the name of a service (letters, digits, '_', '.' and '-', no '-' in front)")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or "\0" in value or ".." in PurePosixPath(value).parts:
        raise ValueError("is not an absolute path inside the sandbox")
    return value


def _host(value: str) -> str:
    host = value.strip().lower().removesuffix(".")
    if not (_is_address(host) or _is_host_name(host.removeprefix("*."))):
        raise ValueError("is not a host name, '*.' and a host name, an IP address, or a network such as 10.0.0.0/8")
    return host


def _is_address(host: str) -> bool:
    if "%" in host:
        return False
    try:
        ipaddress.ip_network(host)
    except ValueError:
        return False
    return "/" in host or bool(ipaddress.ip_address(host))


def _is_host_name(name: str) -> bool:
    return len(name) <= 253 and all(_LABEL.fullmatch(label) for label in name.split("."))


def _variables(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not name or "=" in name or "\0" in name or "\0" in text:
            raise ValueError(f"holds {name!r}, which cannot be an environment variable (no '=' in its name, no NUL)")
    return value


def megabytes(size: str) -> int:
    """Megabytes of a size such as "2G", "512M" or "1024K"; ValueError for anything else."""
    match = _SIZE.fullmatch(size)
    count = int(float(match[1]) * _MEGABYTES[match[2].upper()]) if match else 0
    if count < 1:
        raise ValueError('is not a size of at least one megabyte such as "2G", "512M" or "2048K"')
    return count


def _size(value: str) -> str:
    megabytes(value)
    return value


def _source(value: str) -> str:
    if not value or ".." in PurePosixPath(value).parts or "\0" in value:
        raise ValueError("must not be empty or contain '..'")
    return value


def _destination(value: str) -> str | None:
    if not value:
        return None
    path = PurePosixPath(value)
    if (
        path.is_absolute()
        or ".." in path.parts
        or "\\" in value
        or "\0" in value
        or str(path) in (".", "manifest.json")
    ):
        raise ValueError("must be a relative path with forward slashes, without '..', and not manifest.json")
    return value


def _step_name(value: str) -> str:
    """The name of a directory on any system."""
    if not value or len(value.encode()) > 255:
        raise ValueError("is not of 1 to 255 bytes, which the name of a directory can have")
    if _FORBIDDEN.search(value) or value[-1] in ". ":
        raise ValueError(
            'cannot be the name of a directory everywhere: leave out control characters and <>:"/\\|?*, and a dot or '
            "a blank at its end"
        )
    if _DEVICE.fullmatch(value):
        raise ValueError("is the name of a device on Windows and cannot be that of a directory")
    return value


def same_name(name: str) -> str:
    """What two names have in common that differ in case or Unicode form only."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def _gate(value: Any) -> Any:
    """A number is the least value of the reward called `reward`."""
    if isinstance(value, dict):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("is neither a number nor a table of numbers")
    return {"reward": value}


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Cpus = Annotated[float, BeforeValidator(_number_from_text), Field(gt=0, allow_inf_nan=False)]
Megabytes = Annotated[int, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
Command = Annotated[str, Field(min_length=1)]
User = Annotated[str, BeforeValidator(_user)]
TaskName = Annotated[str, AfterValidator(_task_name)]
Service = Annotated[str, AfterValidator(_service)]
Absolute = Annotated[str, AfterValidator(_absolute)]
Host = Annotated[str, AfterValidator(_host)]
Variables = Annotated[dict[str, str], AfterValidator(_variables)]
Size = Annotated[str, AfterValidator(_size)]
Source = Annotated[str, AfterValidator(_source)]
Destination = Annotated[str, AfterValidator(_destination)]
StepName = Annotated[str, AfterValidator(_step_name)]
Gate = Annotated[dict[str, Annotated[float, Field(allow_inf_nan=False)]], BeforeValidator(_gate)]
