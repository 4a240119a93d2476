"""Which bounds a provider keeps: those it declares, no others."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from forkyard.errors import ConfigError
from forkyard.sandbox.protocol import Feature, Limits

FEATURES = {
    "cpus": Feature.LIMIT_CPU,
    "memory_mb": Feature.LIMIT_MEMORY,
    "pids": Feature.LIMIT_PIDS,
    "disk_mb": Feature.LIMIT_DISK,
    "open_files": Feature.LIMIT_FILES,
    "file_mb": Feature.LIMIT_FILES,
}


def unkept(limits: Limits, features: Set[Feature]) -> list[str]:
    """The names of the bounds in `limits` that a provider with these features would not keep."""
    return [name for name, feature in FEATURES.items() if getattr(limits, name) is not None and feature not in features]


def kept(limits: Limits, features: Set[Feature]) -> Limits:
    """The bounds in `limits` that such a provider keeps."""
    return replace(limits, **dict.fromkeys(unkept(limits, features)))


def check_limits(provider: str, limits: Limits, features: Set[Feature]) -> None:
    """Raise ConfigError for bounds that `provider` would not keep."""
    problems = [
        f"the provider {provider} cannot bound {name} on this machine (it does not promise {FEATURES[name]}): "
        "leave it None; `forkyard doctor` says what is missing"
        for name in unkept(limits, features)
    ]
    if problems:
        raise ConfigError(*problems)
