"""How a verifier that is a program in a sandbox reaches a model: at an address that whoever has `score` run opens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from forkyard.errors import TaskError
from forkyard.sandbox import Sandbox

if TYPE_CHECKING:  # the clients of models are not loaded to read tasks
    from forkyard.model import Endpoint

Serve = Callable[[Sandbox], Awaitable["Endpoint"]]
"""Opens an address for verifiers in a sandbox."""

_serve: ContextVar[Serve | None] = ContextVar("forkyard_verifier_endpoint", default=None)


@contextmanager
def serving_by(serve: Serve | None) -> Iterator[None]:
    """Let the verifiers inside reach a model in this way; None leaves it as it is."""
    if serve is None:
        yield
        return
    token = _serve.set(serve)
    try:
        yield
    finally:
        _serve.reset(token)


async def verifier_endpoint(runtime: Sandbox) -> Endpoint:
    """Where a verifier in this sandbox reaches a model. Raises TaskError when the run has none for it."""
    serve = _serve.get()
    if serve is None:
        raise TaskError("the verifier asks a model, and this run has none for it")
    return await serve(runtime)
