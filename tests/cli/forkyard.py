"""The command line as users run it: here, or in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from forkyard.cli.app import run_command_line

PROGRAM = (sys.executable, "-m", "forkyard.cli")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class Forkyard:
    """Runs commands over the store in `home`, the current directory being `cwd`."""

    def __init__(
        self, cwd: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        for name in list(os.environ):
            if name.startswith(("FORKYARD", "OPENAI")):
                monkeypatch.delenv(name)
        monkeypatch.setenv("FORKYARD_HOME", str(home))
        monkeypatch.setenv("FORKYARD_MIRRORS", "docker.io=http://127.0.0.1:9")  # where nothing listens
        monkeypatch.chdir(cwd)
        self._capfd = capfd

    def __call__(self, *arguments: object) -> Done:
        """Run a command in this process."""
        self._capfd.readouterr()
        code = run_command_line([str(argument) for argument in arguments])
        return Done(code, *self._capfd.readouterr())

    def started(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a command in a process of its own."""
        pipe = subprocess.PIPE
        return subprocess.Popen([*PROGRAM, *map(str, arguments)], stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def apart(self, *arguments: object, stdin: str = "") -> Done:
        """Run a command in a process of its own."""
        process = self.started(*arguments)
        out, err = process.communicate(stdin, timeout=280)
        return Done(process.returncode, out, err)
