"""The parts of the server, in the order they are started; the faces are asked in this order, too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from forkyard.server.endpoints import Endpoint, Face, Socket

if TYPE_CHECKING:
    from forkyard.server.serving import Server

PARTS = ("activity", "tokens", "images", "network", "sandboxes", "processes", "ports", "engine", "disks", "s3")
Lifetime = Callable[["Server"], AbstractAsyncContextManager[None]]


def lifetimes() -> list[Lifetime]:
    """What each part enters before the first request and leaves after the last."""
    return [found for part in _parts() if (found := getattr(part, "lifetime", None)) is not None]


def endpoints(server: Server) -> list[Endpoint]:
    """The endpoints of every part."""
    return _gathered("endpoints", server)


def sockets(server: Server) -> list[Socket]:
    """The web sockets of every part."""
    return _gathered("sockets", server)


def faces(server: Server) -> list[Face]:
    """What answers in place of the control plane."""
    return _gathered("faces", server)


def _gathered(what: str, server: Server) -> list[Any]:
    return [each for part in _parts() for each in getattr(part, what, lambda _: ())(server)]


def _parts() -> list[ModuleType]:
    return [import_module(f"forkyard.server.{part}.routes") for part in PARTS]
