"""Ctrl-C and SIGTERM: the first asks for an orderly end, the second ends the process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Inside it, the first signal cancels the current task, and leaving swallows that cancellation.

    A second signal calls `last_words` and ends the process on the spot with 128 plus the signal's number; sandboxes
    die by themselves because their sockets close. `signal` is the number of the first, None when there was none.
    Outside the main thread, which alone hears signals, it does nothing.
    """

    def __init__(self, last_words: Callable[[], None] = lambda: None) -> None:
        self.signal: int | None = None
        self._last_words = last_words
        self._task: asyncio.Task[Any] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            for number in _SIGNALS:
                self._before[number] = signal.getsignal(number)
                loop.add_signal_handler(number, self._received, number)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        loop = asyncio.get_running_loop()
        for number, handler in self._before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
        if self._task is None or self.signal is None or not isinstance(error, asyncio.CancelledError):
            return False
        self._task.uncancel()
        return True

    def _received(self, number: int) -> None:
        if self.signal is not None:
            self._last_words()
            os._exit(128 + number)
        self.signal = number
        if self._task is not None:
            self._task.cancel()
