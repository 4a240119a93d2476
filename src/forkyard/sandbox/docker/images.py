"""The Engine's images as this package names and describes them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from forkyard.sandbox.values import Healthcheck, ImageConfig, ImageInfo

NAME_LABEL, CONFIG_LABEL, HOME_LABEL, OWNER_LABEL = (f"forkyard.{what}" for what in ("name", "config", "home", "owner"))
RECORD_LABEL = "forkyard.record"
OWN_LABELS = frozenset({NAME_LABEL, CONFIG_LABEL, HOME_LABEL, OWNER_LABEL, RECORD_LABEL})
UNSET = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES")  # an image's would change PID 1's Python
SCRATCH = "scratch"
_SCRATCH_REFERENCE = "forkyard.local/scratch:latest"
_CONFIG = TypeAdapter(ImageConfig)
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(rf"(?:[a-zA-Z0-9.-]+(?::\d+)?/)?{_PART}(?:/{_PART})*(?P<tag>:[\w][\w.-]{{0,127}})?", re.ASCII)
_SECOND = 1e9


def reference(name: str) -> str:
    """What the Engine knows an image as: its name where that can be one there, or a name made of it."""
    if name == SCRATCH:
        return _SCRATCH_REFERENCE
    found = _REFERENCE.fullmatch(name) if len(name) < 200 else None
    if found is None or re.fullmatch(r"[0-9a-f]{12,64}", name):  # the latter would be read as an id
        return f"forkyard.local/image:{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:40]}"
    return name if found["tag"] else f"{name}:latest"


def described(name: str, inspected: Mapping[str, Any]) -> ImageInfo:
    """An image as it was committed; one of another's making by what Docker says of it."""
    config = inspected.get("Config") or {}
    return ImageInfo(name, _own(name, config) or from_docker(config), _seconds(str(inspected.get("Created", ""))))


def name_of(tag: str, labels: Mapping[str, str] | None) -> str:
    """The name an image was committed under, if this tag is that name's; else the tag."""
    name = (labels or {}).get(NAME_LABEL, "")
    return name if name and reference(name) == tag else tag


def _own(name: str, config: Mapping[str, Any]) -> ImageConfig | None:
    labels = config.get("Labels") or {}
    if labels.get(NAME_LABEL) != name:  # inherited from an image this one was made of
        return None
    try:
        return _CONFIG.validate_json(labels[CONFIG_LABEL])
    except (KeyError, ValidationError):
        return None


def from_docker(config: Mapping[str, Any]) -> ImageConfig:
    """A configuration as Docker says it."""
    pairs = [entry.partition("=") for entry in config.get("Env") or []]
    labels = config.get("Labels") or {}
    return ImageConfig(
        env={name: value for name, _, value in pairs if value or name not in UNSET},
        workdir=config.get("WorkingDir") or "/",
        user=config.get("User") or "",
        entrypoint=tuple(config.get("Entrypoint") or ()),
        cmd=tuple(config.get("Cmd") or ()),
        labels={key: value for key, value in labels.items() if key not in OWN_LABELS},
        ports=tuple(config.get("ExposedPorts") or ()),
        volumes=tuple(config.get("Volumes") or ()),
        stop_signal=config.get("StopSignal") or "",
        shell=tuple(config.get("Shell") or ()),
        healthcheck=_healthcheck(config.get("Healthcheck")),
        onbuild=tuple(config.get("OnBuild") or ()),
    )


def to_docker(name: str, config: ImageConfig, labels: Mapping[str, str]) -> dict[str, Any]:
    """The same in Docker's words, for `docker run` and the like; ours is kept beside it, word for word."""
    check = config.healthcheck
    own = {NAME_LABEL: name, CONFIG_LABEL: _CONFIG.dump_json(config).decode()}
    return {
        "Env": [f"{key}={value}" for key, value in config.env.items()],
        "WorkingDir": config.workdir,
        "User": config.user,
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.cmd),
        "Labels": {**config.labels, **labels, RECORD_LABEL: "", **own},
        "ExposedPorts": {port: {} for port in config.ports},
        "StopSignal": config.stop_signal,
        "Shell": list(config.shell) or None,
        "OnBuild": list(config.onbuild) or None,
        "Healthcheck": check
        and {
            "Test": list(check.test),
            "Interval": int(check.interval * _SECOND),
            "Timeout": int(check.timeout * _SECOND),
            "StartPeriod": int(check.start_period * _SECOND),
            "Retries": check.retries,
        },
    }


def _healthcheck(said: Mapping[str, Any] | None) -> Healthcheck | None:
    if not said or not said.get("Test"):
        return None

    def seconds(key: str) -> float:
        return float(said.get(key) or 0) / _SECOND

    return Healthcheck(
        test=tuple(said["Test"]),
        interval=seconds("Interval"),
        timeout=seconds("Timeout"),
        start_period=seconds("StartPeriod"),
        start_interval=seconds("StartInterval"),
        retries=int(said.get("Retries") or 0),
    )


def _seconds(text: str) -> float:
    """Epoch seconds of a time as Docker writes it, with nanoseconds."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
