"""A toolset that runs in the sandbox, and its state, in a module that holds no task."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import forkyard as vf
from tests.tools import stockparts


class Stock(vf.State):
    apples: int = 3
    log: list[str] = []
    notes: Any = None


class StoreConfig(vf.ToolsetConfig):
    colocated: bool = True
    most: int = 100
    broken: bool = False


class Store(vf.Toolset[StoreConfig, Stock]):
    """What a clerk can do in the sandbox."""

    async def setup(self) -> None:
        if self.config.broken:
            raise RuntimeError("the door is stuck")
        self.base = sqlite3.connect(":memory:")
        self.state.log.append("setup")

    @vf.tool
    async def sell(self, apples: int) -> str:
        """Sell apples."""
        if apples > self.state.apples:
            raise ValueError(stockparts.TOO_FEW)
        self.state.apples -= min(apples, self.config.most)
        return f"sold {apples}"

    @vf.tool
    def look(self, path: str) -> str:
        """Read a file of the sandbox."""
        return Path(path).read_text()

    @vf.tool
    def shell(self, command: str) -> str:
        """Run a program of the sandbox."""
        print("this is no answer", flush=True)
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    @vf.tool
    async def hang(self, note: str = "") -> None:
        """Never end."""
        self.state.notes = note
        Path("/tmp/hanging").touch()
        try:
            await asyncio.Event().wait()
        finally:
            Path("/tmp/cancelled").touch()

    @vf.tool
    async def wait_for(self, path: str) -> str:
        """Note a file's content once it is there."""
        Path(f"{path}.waited").touch()
        while not Path(path).exists():
            await asyncio.sleep(0.005)
        self.state.notes = Path(path).read_text()
        return "there"

    @vf.tool
    def rob(self) -> None:
        """End it all."""
        raise vf.ToolsetError("the store is gone")

    @vf.tool
    def say(self, size: int) -> str:
        """Say much."""
        return "x" * size

    @vf.tool
    def forge(self, line: str, times: int = 1) -> None:
        """Say what is no answer, or another, as whoever has the program in hand could."""
        for fd in (int(path.name) for path in list(Path("/proc/self/fd").iterdir())):
            with suppress(OSError):  # the one it was listed by
                is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
                if fd > 2 and is_pipe and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_WRONLY:
                    for _ in range(times):
                        os.write(fd, line.encode())

    @vf.tool
    def leave(self) -> None:
        """End the program."""
        os._exit(3)


class Reader(vf.Toolset[StoreConfig, Stock]):
    """Is told of the task."""

    async def setup_task(self, task: vf.TaskData) -> None:
        self.state.log.append(f"{task.name} {task.model_extra}")

    @vf.tool
    def apples(self) -> int:
        """How many there are."""
        return self.state.apples


class Lost(vf.Toolset[StoreConfig, Stock]):
    """Needs what is not there."""

    async def setup(self) -> None:
        import pytest  # noqa: F401

    @vf.tool
    def find(self) -> str:
        """Nothing."""
        return ""
