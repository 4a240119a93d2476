"""Providers by name: those that installed packages offer, or any class given as "module:Class"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from forkyard.plugins import Kind, load, make, names
from forkyard.sandbox.protocol import Provider

DEFAULT_PROVIDER = "local"
_PROVIDERS = Kind("provider", "forkyard.providers")


def provider_names() -> list[str]:
    """The names providers are known by here."""
    return names(_PROVIDERS)


def make_provider(name: str, options: Mapping[str, Any] | None = None) -> Provider:
    """A provider by name or as "module:Class", made with `options`, which are the arguments of its construction.

    Raises ConfigError for an unknown name (the known and the nearest are told), a provider that cannot be imported,
    and options it does not take or of another type than it says.
    """
    return cast(Provider, make(_PROVIDERS, name, load(_PROVIDERS, name), options or {}))


def provider_factory(name: str) -> Callable[..., Any]:
    """What makes the provider of that name, without making one. Raises ConfigError."""
    return load(_PROVIDERS, name)
