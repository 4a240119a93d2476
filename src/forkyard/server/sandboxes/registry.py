"""Every sandbox of the server: made, forked, found, deleted; recovered when the server starts, sealed when it ends."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from forkyard.errors import EngineLost
from forkyard.image import ensure_image
from forkyard.sandbox import BoundsDisk, Feature, Provider, Sandbox, image_provider
from forkyard.server.envelope import ApiError
from forkyard.server.images import Images
from forkyard.server.sandboxes.attendants import Attendants
from forkyard.server.sandboxes.life import Ground, Life
from forkyard.server.sandboxes.names import new_name
from forkyard.server.sandboxes.record import Record, shown
from forkyard.server.sandboxes.recovery import recovered
from forkyard.server.sandboxes.refusals import told
from forkyard.server.sandboxes.states import Action, Phase, Rule
from forkyard.server.sandboxes.values import DEFAULT_IMAGE, CreateSandbox, ForkSandbox, SandboxObject
from forkyard.server.state import State, TakenError

HOLD = 20.0
"""Seconds an answer is held; clients give up at 30."""
_AT_ONCE = 16  # sandboxes that are stopped together when the server ends
_SHOWN = 10

Made = Callable[[Life], None]
"""Called with a new life as soon as it is written down, in the same transaction."""


class Sandboxes:
    """The sandboxes of one server, by id."""

    def __init__(
        self,
        provider: Provider,
        state: State,
        images: Images,
        attendants: Attendants,
        hold: float = HOLD,
        storage_mib: int | None = None,
    ) -> None:
        self._ground = Ground(provider, state.table("sandboxes", Record), attendants, hold)
        self._state = state
        self._images = images
        self._storage_mib = storage_mib  # of a sandbox that asks for none
        self._lives: dict[str, Life] = {}

    def __iter__(self) -> Iterator[Life]:
        """Every sandbox, oldest first."""
        return iter(list(self._lives.values()))

    def get(self, sandbox_id: str) -> Life:
        """The life of a sandbox. Raises ApiError 404 for an unknown one."""
        life = self._lives.get(sandbox_id)
        if life is None:
            named = next((other.id for other in self if other.record.name == sandbox_id), None)
            told = (
                "it was deleted, or never was" if named is None else f"that is the name of the one with the id {named}"
            )
            raise ApiError(404, f"there is no sandbox with the id {sandbox_id[:40]!r}: {told}", "not_found")
        return life

    def has(self, sandbox_id: str) -> bool:
        """Whether there is such a sandbox."""
        return sandbox_id in self._lives

    def children(self, life: Life) -> list[Life]:
        """The forks of a sandbox that are still there."""
        return [other for other in self if other.record.parent == life.id]

    def shown(self, life: Life, phase: Phase | None = None) -> SandboxObject:
        """The object clients see; as it was in another phase, if one is given."""
        more: dict[str, Any] = {}
        for attendant in self._ground.attendants:
            more |= attendant.shown(life.record)
        return shown(life.record, self._ground.provider.features, more, phase)

    async def create(self, asked: CreateSandbox, *, wait: bool, made: Made) -> Life:
        """A new sandbox, which runs or soon will. Raises ApiError."""
        name = asked.name or new_name(life.record.name for life in self)
        record = _new_record(asked, name, asked.storage_mib or self._storage_mib)
        if asked.image_id is not None:
            image = self._images.ready(asked.image_id)
            record = record.model_copy(update={"image": image.source, "image_digest": image.digest or ""})
        for attendant in self._ground.attendants:
            record = record.model_copy(update=dict(await attendant.accept(asked, name)))
        await self._clear_name(name)
        life = self._add(record, made)
        life.make(lambda: self._launched(life))
        failure = await life.held(self._ground.holds(wait))
        if isinstance(failure, EngineLost | ApiError):  # nothing came of it, and the client may try again
            self._discard(life)
            raise told(failure, record)
        return life

    async def fork(self, source: Life, asked: ForkSandbox, *, made: Made) -> Life:
        """A copy of a sandbox, which runs or soon will; when that fails, none is left. Raises ApiError."""
        name = asked.name or new_name(life.record.name for life in self)
        await self._clear_name(name)  # before: between the source, which may be deleted, and its fork nobody may come
        sandbox = await source.source(asked.checkpoint)
        child = self._add(_forked_record(source.record, asked, name), made)
        child.make(lambda: _forked(sandbox, child.record, asked.storage_mib))
        if (failure := await child.held(self._ground.hold)) is not None:
            self._discard(child)
            raise told(failure, source.record)
        return child

    async def again(self, sandbox_id: str | None) -> Life:
        """A sandbox that was made by a request, which is sent again now. Raises ApiError."""
        life = self._lives.get(sandbox_id or "")
        if life is None:
            raise ApiError(409, "what this Idempotency-Key has made was deleted: use a new one", "idempotency_spent")
        failure = await life.held(self._ground.hold)
        if life.id not in self._lives and failure is not None:
            raise told(failure, life.record)
        return life

    async def change_mounts(self, life: Life, mounts: list[dict[str, Any]]) -> None:
        """Other disks for a sandbox that does not run. Raises ApiError."""
        if await life.rule(Action.START) is not Rule.GO:
            raise ApiError(
                409, f"sandbox {life.record.name!r} runs, or soon will: stop it before its mounts are changed"
            )
        asked = CreateSandbox(mounts=mounts)
        changes: dict[str, Any] = {"mounts": mounts}
        for attendant in self._ground.attendants:
            changes |= await attendant.accept(asked, life.record.name)
        life.note(mounts=changes["mounts"])

    async def delete(self, life: Life, *, cascade: bool) -> None:
        """End a sandbox for good, with `cascade` its forks first. Raises ApiError 409 while it runs or has forks."""
        while True:
            if cascade:
                for child in self.children(life):
                    await self.delete(child, cascade=True)
                await life.do(Action.STOP)
                await life.settled()
            if not (cascade and self.children(life)):  # another may have been made meanwhile
                return await life.delete(lambda: self._check_has_no_forks(life), lambda: self._forget(life))

    def _check_has_no_forks(self, life: Life) -> None:
        if children := self.children(life):
            names = ", ".join(f"{child.record.name} ({child.id})" for child in children[:_SHOWN])
            more = ", ..." if len(children) > _SHOWN else ""
            count = "1 fork" if len(children) == 1 else f"{len(children)} forks"
            raise ApiError(
                409,
                f"sandbox {life.record.name!r} has {count}: delete {names}{more} first, the deepest before others, or "
                "all of them with ?cascade=true",
                "has_forks",
            )

    async def recover(self) -> None:
        """Take over what another server left, however it ended."""
        await self._ground.provider.sweep()  # what was not whole yet, and is no row's
        boxes = await self._ground.provider.sandboxes()
        for record in self._ground.rows.list():
            now = await recovered(record, self._ground.provider, boxes)
            if now is None:
                self._ground.rows.delete(record.sandbox_id)
                continue
            if now != record:
                self._ground.rows.set(record.sandbox_id, now)
            self._lives[record.sandbox_id] = Life(self._ground, now)

    async def close(self) -> None:
        """Bring every sandbox to rest, with its disk sealed."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def leave(life: Life) -> None:
            async with places:
                await life.leave("the server was stopped")

        await asyncio.gather(*(leave(life) for life in self), return_exceptions=True)

    async def _launched(self, life: Life) -> Sandbox:
        provider, record = self._ground.provider, life.record
        if Feature.IMAGES in provider.features:
            image = (await ensure_image(image_provider(provider), record.image)).name
            life.note(image=image)
            record = life.record
        spec = record.spec(provider.features)
        for attendant in self._ground.attendants:
            spec = attendant.spec(record, spec)
        return await provider.create(spec)

    async def _clear_name(self, name: str) -> None:
        """Forget a sandbox of that name of which nothing is there: it keeps its name from nobody."""
        for life in self:
            if life.record.name == name and life.record.never_was and not self.children(life):
                await life.delete(lambda: None, partial(self._forget, life))

    def _add(self, record: Record, made: Made) -> Life:
        life = Life(self._ground, record)
        try:
            with self._state.transaction():
                made(life)
                self._ground.rows.add(record.sandbox_id, record, name=record.name)
        except TakenError:
            raise ApiError(
                409,
                f"a sandbox named {record.name!r} is there already: choose another name, or delete it",
                "name_taken",
            ) from None
        self._lives[record.sandbox_id] = life
        return life

    def _discard(self, life: Life) -> None:
        self._ground.rows.delete(life.id)
        self._forget(life)

    def _forget(self, life: Life) -> None:
        self._lives.pop(life.id, None)


def _new_record(asked: CreateSandbox, name: str, storage_mib: int | None) -> Record:
    now = time.time()
    image = asked.base_image or ("" if asked.image_id else DEFAULT_IMAGE)
    return Record(
        sandbox_id=str(uuid.uuid4()),
        name=name,
        base_image=image,
        image=image,
        storage_mib=storage_mib,
        created=now,
        last_active=now,
        ports=asked.ports or [],
        mounts=asked.mounts or [],
        **asked.model_dump(include=_AS_ASKED),
    )


_AS_ASKED = {
    "vcpu_count", "mem_size_mib", "image_id", "env", "labels", "max_ttl_seconds", "idle_ttl_seconds",
    "max_concurrent_execs", "network", "enable_service_ingress",
}  # fmt: skip


async def _forked(source: Sandbox, record: Record, storage_mib: int | None) -> Sandbox:
    fork = await source.fork(record.box_name)
    if storage_mib is not None and isinstance(fork, BoundsDisk):
        try:
            await fork.bound_disk(storage_mib)
        except BaseException:
            await fork.close()
            raise
    return fork


def _forked_record(source: Record, asked: ForkSandbox, name: str) -> Record:
    now = time.time()
    own: dict[str, Any] = {
        "sandbox_id": str(uuid.uuid4()),
        "name": name,
        "phase": Phase.CREATING,
        "parent": source.sandbox_id,
        "labels": {**source.labels, **asked.labels},
        "storage_mib": asked.storage_mib or source.storage_mib,
        "created": now,
        "last_active": now,
        **dict.fromkeys(("running_at", "expires_at", "finished_at", "exit_reason", "checkpoint", "box")),
    }
    return source.model_copy(update=own)
