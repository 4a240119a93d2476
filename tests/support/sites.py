"""`forkyard serve` as a program, and the environment that points the programs of others at it."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.guide import MODEL_HOST, Model
from tests.support.web import served

FORKYARD = (sys.executable, "-m", "forkyard.cli")


@dataclass(frozen=True, slots=True)
class Site:
    """A server that runs, and the variables its clients have."""

    home: Path
    origin: str
    env: Mapping[str, str]
    model: Model

    async def run(self, *command: str | Path, cwd: Path) -> str:
        """What a client's program prints; it must succeed."""
        code, out, err = await self.ran(*command, cwd=cwd)
        assert code == 0, f"{command}: {out}{err}"
        return out

    async def ran(self, *command: str | Path, cwd: Path) -> tuple[int | None, str, str]:
        """Its exit code and what it prints."""
        process = await asyncio.create_subprocess_exec(
            *command, cwd=cwd, env=self.env, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            out, err = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def serving_site(home: Path) -> AsyncIterator[Site]:
    """A server over a home, with a model at the host that the guide's scripts ask."""
    key = _variables(forkyard(home, "key", "create", "clients"))
    model = Model()
    try:
        async with served(model) as port:
            arguments = ("--port", "0", "--map", f"{MODEL_HOST}=http://127.0.0.1:{port}")
            async with _serving(home, arguments) as origin:
                plain = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
                env = {**plain, **_variables(forkyard(home, "env")), **key, "AI_GATEWAY_API_KEY": "of-the-gateway"}
                yield Site(home, origin, {**env, "HOME": str(home)}, model)
    finally:
        forkyard(home, "key", "revoke", "clients")


@asynccontextmanager
async def _serving(home: Path, arguments: Sequence[str]) -> AsyncIterator[str]:
    log = home / "serve.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *FORKYARD, "serve", *arguments, env=_own(home), stdout=asyncio.subprocess.PIPE, stderr=stderr
        )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("serving   "), log.read_text()
        yield line.split()[1]
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        assert await process.wait() == 0 and "Traceback" not in log.read_text(), log.read_text()


def _own(home: Path) -> dict[str, str]:
    return {**os.environ, "FORKYARD_HOME": str(home)}


def forkyard(home: Path, *arguments: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run([*FORKYARD, *arguments], env=_own(home), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _variables(exports: str) -> dict[str, str]:
    """What a shell would have after `eval` of these lines."""
    words = (shlex.split(line) for line in exports.splitlines())
    return dict(word.split("=", 1) for export, word in words if export == "export")
