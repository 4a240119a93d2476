"""One sandbox's life: what is asked of it, one thing after another, each written down before anybody is told.

A step, such as a stop, belongs to the life and not to the request that began it: a client that goes away leaves nothing
half done. `states.py` says what may begin when; a step begins in no other way than by the table there.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forkyard.errors import ForkyardError, SandboxLost
from forkyard.sandbox import Feature, Provider, Sandbox
from forkyard.server.envelope import ApiError
from forkyard.server.sandboxes.attendants import Attendants
from forkyard.server.sandboxes.body import Body
from forkyard.server.sandboxes.record import Record, session
from forkyard.server.sandboxes.refusals import conflict, told
from forkyard.server.sandboxes.states import RULES, WAY, WITH_CHECKPOINT, Action, Phase, Rule
from forkyard.server.sandboxes.timers import Alarm, due
from forkyard.server.state import Table

_QUICK = 0.25  # seconds
_AGAIN = 30.0  # seconds until it is tried again to bring to rest what could not be
_LIVE = (Phase.RUNNING, Phase.PAUSED)


@dataclass(frozen=True, slots=True)
class Ground:
    """What the lives of one server share. An answer is held for `hold` seconds at most."""

    provider: Provider
    rows: Table[Record]
    attendants: Attendants
    hold: float

    def holds(self, wait: bool) -> float:
        """For how long an answer is held. What takes no time is also waited for by who would not wait."""
        return self.hold if wait else min(self.hold, _QUICK)


class Life:
    """One sandbox of the server. `record` is what is known of it now, and what is written down."""

    def __init__(self, ground: Ground, record: Record) -> None:
        self.record = record
        self._ground = ground
        self._body = Body(self, ground.provider, ground.attendants)
        self._work: asyncio.Task[None] | None = None  # what is under way, which can be given up
        self._step: asyncio.Task[Exception | None] | None = None  # the same to its end, which cannot
        self._alarm = Alarm(self._ring)
        self._ringing: asyncio.Task[None] | None = None
        self._connections = 0
        self._why: str | None = None  # it comes to rest, if nobody asked for that

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self.record.sandbox_id

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, which runs. Raises ApiError 409 when it does not; it is not woken."""
        if self.record.phase is not Phase.RUNNING or self._body.sandbox is None:
            raise conflict("used", self.record)
        return self._body.sandbox

    @property
    def at_hand(self) -> Sandbox:
        """The sandbox as it is, for attendants: it may be about to come up, or to go down. Raises ApiError 409."""
        if self._body.sandbox is None:
            raise conflict("used", self.record)
        return self._body.sandbox

    # What other parts tell it.

    def connected(self) -> None:
        """A process socket was opened: the idle time stands still until as many were closed."""
        self._connections += 1
        self.touch()

    def disconnected(self) -> None:
        """A process socket was closed."""
        self._connections -= 1
        self.touch()

    def touch(self) -> None:
        """It is used now; this is written down with whatever comes next."""
        self.record = self.record.model_copy(update={"last_active": time.time()})
        self._set_alarm()

    async def lost(self, why: str) -> None:
        """Somebody met `SandboxLost`: it has ended by itself. Its disk is sealed as it was left."""
        if self.record.phase in _LIVE:
            self._begin(Phase.STOPPING, self._seal(why))
        await self.settled()

    async def wake(self) -> None:
        """Have it run, wherever it rests. Raises ApiError when it cannot, or does not soon."""
        while self.record.phase in (Phase.PAUSING, Phase.STOPPING, Phase.RESUMING):
            await self.settled()
        await self.do(Action.RESUME if self.record.phase is Phase.PAUSED else Action.START)
        if self.record.phase is not Phase.RUNNING:
            raise conflict("used", self.record)

    # What clients ask of it.

    async def do(self, action: Action, *, wait: bool = True) -> Phase:
        """Do what is asked, or wait for whoever does it already; the phase is the one it led through, if it did.

        Returns when it is done, or is not done soon, or, without `wait`, nearly at once. Raises ApiError for a phase
        in which it cannot be asked, and for what failed.
        """
        if action is Action.STOP:
            self._hurry()
        rule = await self.rule(action)
        if action is Action.PAUSE:
            self._body.moments.hand_out(self.record.checkpoint if rule in (Rule.SAME, Rule.JOIN) else None)
        if rule is Rule.SAME:
            return self.record.phase
        if rule is Rule.END and self._work is not None:
            self._work.cancel()
            await self.settled()
            return self.record.phase
        if rule is Rule.GO:
            self._begin(WAY[action][0], self._steps[action]())
        through = self.record.phase
        if (failure := await self.held(self._ground.holds(wait))) is not None:
            raise told(failure, self.record)
        return through

    async def rule(self, action: Action) -> Rule:
        """What an action means now, or once it is settled what is under way. Raises ApiError 409 when it is refused."""
        while (rule := RULES[action, self.record.phase]) is Rule.WAIT:
            await self.settled()
        if rule is Rule.NO or (rule is Rule.GO and action is Action.START and self.record.box is None):
            raise conflict(action, self.record)
        if action is Action.PAUSE and rule is Rule.GO and Feature.PAUSE not in self._ground.provider.features:
            raise ApiError(
                409, f"sandboxes of the provider {self._ground.provider.name} cannot be paused: stop it instead"
            )
        return rule

    async def held(self, seconds: float) -> Exception | None:
        """Wait for what is under way, for so long; the error it ended with, if it did."""
        step = self._step
        if step is None:
            return None
        await asyncio.wait([step], timeout=seconds)
        return step.result() if step.done() and not step.cancelled() else None

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        while self._step is not None and not self._step.done():
            await asyncio.wait([self._step])

    def note(self, **changes: Any) -> None:
        """Write down what else is known of it by now: fields of its record."""
        self._set(**changes)

    def set_timeout(self, timeout: int | None, idle: int | None) -> None:
        """Change its lifetime, from now on and for later sessions, and how long nobody may be connected to it."""
        now, changes = time.time(), dict[str, Any]()
        if timeout is not None:
            changes["max_ttl_seconds"] = timeout
            if self.record.phase is Phase.RUNNING and self.record.running_at is not None:
                changes["expires_at"] = min(now + timeout, self.record.running_at + 86_400)
        if idle is not None:
            changes |= {"idle_ttl_seconds": idle, "last_active": now}
        self._set(**changes)

    async def source(self, checkpoint: str | None) -> Sandbox:
        """What a fork is made of: this sandbox, or a moment of it that was handed out. Raises ApiError 409."""
        await self.rule(Action.FORK)
        if self.record.box is None:
            raise conflict(Action.FORK, self.record)
        if self.record.mounts and self.record.phase not in (Phase.STOPPED, Phase.EXITED, Phase.FAILED):
            raise ApiError(409, f"sandbox {self.record.name!r} has disks mounted: stop it before it is forked")
        if checkpoint is not None and (moment := self._body.moments.taken(checkpoint)) is not None:
            return moment
        if checkpoint is not None and not (
            self.record.phase in WITH_CHECKPOINT and checkpoint == self.record.checkpoint
        ):
            raise ApiError(
                409,
                f"the checkpoint {checkpoint!r} of sandbox {self.record.name!r} is superseded: pause or stop it for a "
                "new one, or fork it without naming a checkpoint",
                "checkpoint_superseded",
            )
        live = self.record.phase in _LIVE
        if live and Feature.FORK_RUNNING not in self._ground.provider.features:
            raise ApiError(
                409,
                f"the provider {self._ground.provider.name} forks stopped sandboxes alone: stop {self.record.name!r}",
            )
        sandbox = await self._body.opened()
        if self.record.phase is Phase.DELETING:  # by now
            raise conflict(Action.FORK, self.record)
        return sandbox

    # What is under way.

    def make(self, making: Callable[[], Awaitable[Sandbox]]) -> None:
        """Begin to live, in the sandbox that `making` gives."""
        self._begin(Phase.CREATING, self._make(making))

    async def delete(self, check: Callable[[], None], gone: Callable[[], None]) -> None:
        """End for good, row and disk; `gone` is called when it is done. Raises ApiError, and what `check` raises.

        Nothing happens between `check` and the phase in which it cannot be forked any more.
        """
        if await self.rule(Action.DELETE) is Rule.GO:
            check()
            self._begin(Phase.DELETING, self._delete(gone))
        if (failure := await self.held(self._ground.hold)) is not None:
            raise told(failure, self.record)

    async def leave(self, why: str) -> None:
        """Come to rest, because the server ends: what runs is stopped, what is being made is given up."""
        if self.record.phase is Phase.CREATING and self._work is not None:
            self._work.cancel()
        self._hurry()
        await self.settled()
        if self._ringing is not None:
            self._ringing.cancel()
        if self.record.phase in _LIVE:
            self._why = why
            await self.do(Action.STOP)
            await self.settled()
        self._alarm.set(None)
        await self._body.moments.drop_all()

    def _hurry(self) -> None:
        for attendant in self._ground.attendants:
            attendant.hurry(self)

    @property
    def _steps(self) -> dict[Action, Callable[[], Coroutine[Any, Any, None]]]:
        return {
            Action.START: self._start,
            Action.RESUME: self._resume,
            Action.PAUSE: self._pause,
            Action.STOP: self._stop,
        }

    def _begin(self, phase: Phase, step: Coroutine[Any, Any, None]) -> None:
        if phase is not self.record.phase:  # as it is when it is made: its row is there already
            fresh = phase in WITH_CHECKPOINT and self.record.phase not in WITH_CHECKPOINT
            self._set(phase=phase, **({"checkpoint": f"ckpt-{uuid.uuid4().hex[:16]}"} if fresh else {}))
        self._work = asyncio.create_task(step)
        self._step = asyncio.create_task(self._whole(self._work))

    async def _whole(self, work: asyncio.Task[None]) -> Exception | None:
        """Do a step to its end, whatever that is; afterwards the phase is one in which something can be asked."""
        try:
            await work
        except asyncio.CancelledError:  # of what was being made: nothing else is given up
            self._end(Phase.EXITED, "it was given up before it ran")
        except SandboxLost as err:
            if self._rests() in _LIVE:
                await self._seal(str(err))
            else:
                self._end(self._rests(), str(err))
            return err
        except Exception as err:  # noqa: BLE001 - whatever it is, it is told to who asked, and the phase is settled
            self._end(self._rests(), str(err) or type(err).__name__)
            return err
        return None

    def _rests(self) -> Phase:
        """Where it is when what was under way failed: where the provider has it, or nowhere."""
        if self._body.sandbox is None or self.record.phase in (Phase.CREATING, Phase.DELETING):
            return Phase.FAILED
        return Phase(self._body.sandbox.info.state)

    def _end(self, phase: Phase, why: str) -> None:
        over = {} if phase in _LIVE else {"finished_at": time.time()}
        self._set(phase=phase, exit_reason=why[:1000], **over)

    def _set(self, **changes: Any) -> None:
        self.record = self.record.model_copy(update=changes)
        self._ground.rows.set(self.id, self.record)
        self._set_alarm()

    def _set_alarm(self) -> None:
        self._alarm.set(due(self.record, self._connections > 0))

    def _ring(self, why: str) -> None:
        self._ringing = asyncio.create_task(self._expire(why))

    async def _expire(self, why: str) -> None:
        """Pause, or stop what cannot be paused."""
        if self.record.phase is not Phase.RUNNING:
            return
        self._why = why
        for action in (Action.PAUSE, Action.STOP):
            with suppress(ForkyardError, OSError):  # told by the phase
                await self.do(action)
            await self.settled()
            if self.record.phase is not Phase.RUNNING:
                return
        self._alarm.set((time.time() + _AGAIN, why))

    # The steps.

    async def _make(self, making: Callable[[], Awaitable[Sandbox]]) -> None:
        try:
            await self._body.make(making, self._found)
        except BaseException:
            self._set(box=None)
            raise
        self._power_on()

    def _found(self, sandbox: Sandbox) -> None:
        """It has a sandbox; this is written down when it runs, since by then the box is known by its name."""
        self.record = self.record.model_copy(update={"box": sandbox.id})

    async def _start(self) -> None:
        await self._body.start()
        self._power_on()

    async def _resume(self) -> None:
        await self._body.resume()
        self._power_on()

    async def _pause(self) -> None:
        await self._body.pause()
        self._set(phase=Phase.PAUSED, **self._reason())

    async def _stop(self) -> None:
        await self._body.stop()
        self._set(phase=Phase.STOPPED, finished_at=time.time(), **self._reason())

    def _reason(self) -> dict[str, str]:
        return {} if self._why is None else {"exit_reason": self._why}

    async def _seal(self, why: str) -> None:
        try:
            await self._body.seal()
        except Exception as err:  # noqa: BLE001 - it has ended already; what is left of it is told
            self._end(Phase.FAILED, f"{why}; and its disk could not be sealed: {err}")
        else:
            self._end(Phase.EXITED, why)

    async def _delete(self, gone: Callable[[], None]) -> None:
        await self._body.close()
        self._ground.rows.delete(self.id)
        self._alarm.set(None)
        gone()
        await self._body.gone()

    def _power_on(self) -> None:
        self._why = None
        self._set(phase=Phase.RUNNING, **session(self.record))
