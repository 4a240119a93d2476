"""One command that PID 1 was told to start: waiting for its end, or not, and killing its tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.held.channel import Channel, Interrupted, Reply, checked

KILL_TIMEOUT = 5.0


class Order:
    """One command that PID 1 was told to start. Left by cancellation, it is killed.

    A PID 1 that does not answer was brought to a halt, and the sandbox ends.
    """

    def __init__(self, channel: Channel, give_up: Callable[[str], None]) -> None:
        self._channel, self._give_up = channel, give_up
        self._request = channel.new_id()
        self._answer: asyncio.Future[Reply] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            with suppress(SandboxError):
                await self.kill()
            self._channel.forget(self._request)
        elif isinstance(error, TimeoutError):
            self._give_up("it takes no commands any more")
            raise SandboxLost("the sandbox takes no commands any more") from None

    async def give(self, op: str, fds: list[int], fields: dict[str, Any]) -> None:
        """Have it started."""
        self._answer = await self._channel.post(self._request, op, fds, **fields)

    async def begun(self) -> None:
        """Wait until it has started; OSError or ValueError when it could not."""
        assert self._answer is not None
        ping = self._channel.new_id()
        try:
            await (await self._channel.post(ping, "ping", []))  # answered in turn, after it was started or was not
        finally:
            self._channel.forget(ping)
        if self._answer.done():
            checked(self._answer.result())

    async def end(self) -> int:
        """How it ended, once it has or was killed for an interrupted wait; OSError or ValueError if it never began."""
        assert self._answer is not None
        try:
            reply = await self._answer
        except Interrupted as interrupted:
            await self.kill()
            reply = await interrupted.later
        return int(checked(reply)[0]["status"])

    def interrupt(self) -> bool:
        """End the wait for its end; whether anybody still waited."""
        return self._channel.interrupt(self._request)

    async def kill(self) -> None:
        """End its whole tree; where that cannot be, the whole sandbox."""
        try:
            async with asyncio.timeout(KILL_TIMEOUT):
                await self._channel.request("kill", target=self._request)
        except TimeoutError:
            self._give_up("its PID 1 does not answer")
        except SandboxLost:
            raise
        except (OSError, SandboxError) as err:
            self._give_up(f"its PID 1 cannot kill what a command started: {err}")


class Early:
    """Ends the wait for a command that has not ended: at its deadline, or when there is enough of its output."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._deadline: asyncio.TimerHandle | None = None
        self._over = False
        self.timed_out = False

    def after(self, timeout: float | None) -> None:
        """Set the deadline."""
        if timeout is not None:
            self._deadline = asyncio.get_running_loop().call_later(timeout, self._late)

    def _late(self) -> None:
        self.timed_out = self.enough()

    def enough(self) -> bool:
        """Wait no longer; whether this ended the wait."""
        if self._over:
            return False
        self._over = self._order.interrupt()
        return self._over

    def cancel(self) -> None:
        """The command has ended."""
        if self._deadline is not None:
            self._deadline.cancel()
