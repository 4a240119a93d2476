"""The verbs of a client that nobody has to make: that of the environment, or the one that was configured."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from forkyard.client.client import Client
from forkyard.client.verbs import Verb, verb

P = ParamSpec("P")
T = TypeVar("T")

_client: Client | None = None


def configure(url: str | None = None, key: str | None = None) -> None:
    """Use that server from now on; without a `url`, what the environment says. What was made before stays with its own.

    ConfigError.
    """
    global _client
    before, _client = _client, Client(url, key)
    if before is not None:
        before.close()


def default_client() -> Client:
    """The client of the module's verbs."""
    global _client
    if _client is None:
        _client = Client()
    return _client


def _of_module(of: verb[Client, P, T]) -> Verb[P, T]:
    call: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]] = of.call

    def of_default(*args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
        return call(default_client(), *args, **options)

    of_default.__name__, of_default.__doc__ = call.__name__, call.__doc__
    told = inspect.signature(call)
    of_default.__signature__ = told.replace(parameters=[*told.parameters.values()][1:])  # type: ignore[attr-defined]
    return Verb(of_default)


create_sandbox = _of_module(Client.create_sandbox)
list_sandboxes = _of_module(Client.list_sandboxes)
get_sandbox = _of_module(Client.get_sandbox)
create_disk = _of_module(Client.create_disk)
list_disks = _of_module(Client.list_disks)
get_disk = _of_module(Client.get_disk)
exec = _of_module(Client.exec)
