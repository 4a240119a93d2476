"""A provider that fails on purpose: raises at the n-th call, so that a program can be tried against every failure.

for n in itertools.count(1):
    faulty = FaultyProvider(inner, fail_at=n)
    ...  # run the program over `faulty`: what must hold, holds
    if faulty.count < n:
        break  # it was tried at every call it makes
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from forkyard.errors import SandboxError
from forkyard.sandbox.network import Visit
from forkyard.sandbox.protocol import ImageStore, Provider, Sandbox
from forkyard.sandbox.values import Feature, ImageConfig, ImageInfo, SandboxInfo, SandboxSpec

P = ParamSpec("P")
R = TypeVar("R")
ErrorFactory = Callable[[str], Exception]


class _Fuse:
    """Counts calls and blows at one of them."""

    def __init__(self, fail_at: int, error: ErrorFactory) -> None:
        self._fail_at, self._error = fail_at, error
        self.calls: list[str] = []

    def call(self, name: str) -> None:
        """Count one call; raises at the `fail_at`-th, before anything was done."""
        self.calls.append(name)
        if len(self.calls) == self._fail_at:
            raise self._error(f"fault injected at call {self._fail_at}: {name}")


def _as_inner(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], name: str = ""
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A method that does as the inner object's of that name, or the fault; counted as `name` if it is given."""

    @wraps(method)
    async def forward(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
        self.fuse.call(name or method.__name__)
        return cast(R, await getattr(self.inner, method.__name__)(*args, **options))

    return forward


class FaultyProvider:
    """A provider that does what `inner` does, except at the `fail_at`-th call to it or its sandboxes, counted from 1.

    That call raises `error(message)` and does nothing; the calls around it work, so a `close` that failed works when
    it is tried again. `fail_at` 0 never fails. Leaving it as a context manager closes `inner`, which counts as well.
    """

    def __init__(self, inner: Provider, fail_at: int, error: ErrorFactory = SandboxError) -> None:
        self.inner = inner
        self.fuse = _Fuse(fail_at, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def count(self) -> int:
        """How many calls were made."""
        return len(self.fuse.calls)

    @property
    def calls(self) -> list[str]:
        """The names of the calls made, in order."""
        return list(self.fuse.calls)

    @property
    def name(self) -> str:
        """The inner provider's name."""
        return self.inner.name

    @property
    def features(self) -> frozenset[Feature]:
        """The inner provider's features."""
        return self.inner.features

    _create = _as_inner(Provider.create)
    _open = _as_inner(Provider.open)
    _commit = _as_inner(ImageStore.commit)
    sandboxes = _as_inner(Provider.sandboxes)
    sweep = _as_inner(Provider.sweep)
    close = _as_inner(Provider.close, "close provider")
    images = _as_inner(ImageStore.images)
    image = _as_inner(ImageStore.image)
    remove_image = _as_inner(ImageStore.remove_image)
    prune_images = _as_inner(ImageStore.prune_images)

    async def create(self, spec: SandboxSpec) -> FaultySandbox:
        """As the inner provider, or the fault."""
        return FaultySandbox(await self._create(spec), self.fuse)

    async def open(self, id_or_name: str) -> FaultySandbox:
        """As the inner provider, or the fault."""
        return FaultySandbox(await self._open(id_or_name), self.fuse)

    async def commit(self, sandbox: Sandbox, name: str, config: ImageConfig) -> ImageInfo:
        """As the inner provider, which has to be an image store, or the fault."""
        inner = sandbox.inner if isinstance(sandbox, FaultySandbox) else sandbox
        return await self._commit(inner, name, config)


class FaultySandbox:
    """A sandbox of a `FaultyProvider`; `inner` is the real one, whose calls are neither counted nor failed."""

    def __init__(self, inner: Sandbox, fuse: _Fuse) -> None:
        self.inner = inner
        self.fuse = fuse

    @property
    def id(self) -> str:
        """The inner sandbox's id."""
        return self.inner.id

    @property
    def info(self) -> SandboxInfo:
        """The inner sandbox's line."""
        return self.inner.info

    @property
    def visits(self) -> tuple[Visit, ...]:
        """As the inner sandbox."""
        return self.inner.visits

    run = _as_inner(Sandbox.run)
    spawn = _as_inner(Sandbox.spawn)
    read = _as_inner(Sandbox.read)
    write = _as_inner(Sandbox.write)
    pull = _as_inner(Sandbox.pull)
    push = _as_inner(Sandbox.push)
    listen = _as_inner(Sandbox.listen)
    connect = _as_inner(Sandbox.connect)
    set_network = _as_inner(Sandbox.set_network)
    pause = _as_inner(Sandbox.pause)
    resume = _as_inner(Sandbox.resume)
    changes = _as_inner(Sandbox.changes)
    is_quiet = _as_inner(Sandbox.is_quiet)
    stop = _as_inner(Sandbox.stop)
    start = _as_inner(Sandbox.start)
    close = _as_inner(Sandbox.close)
    _fork = _as_inner(Sandbox.fork)
    _pristine = _as_inner(Sandbox.pristine)

    async def fork(self, name: str | None = None) -> FaultySandbox:
        """As the inner sandbox, or the fault."""
        return FaultySandbox(await self._fork(name), self.fuse)

    async def pristine(self) -> FaultySandbox:
        """As the inner sandbox, or the fault."""
        return FaultySandbox(await self._pristine(), self.fuse)
