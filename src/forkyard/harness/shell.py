"""Commands a model wrote, run in its sandbox by bash, or by sh where there is no bash."""

from __future__ import annotations

from collections.abc import Mapping

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox import EndedBy, ProgramResult, Sandbox
from forkyard.task import TaskResources
from forkyard.values import tail

_ENDED = {
    "oom": "this sandbox's memory is full: processes were killed",
    "disk": "this sandbox's disk is full: processes were killed",
    "output": "commands have written all the output they may: they were killed, and no more are started",
}
_BOUNDED = {
    "oom": "this sandbox may use {} of memory, and had more: processes were killed",
    "disk": "this sandbox may write {} to its disk, and wrote more: processes were killed",
}
_NO_BOUNDS = TaskResources()
LONGEST_ARGUMENT = 100_000
"""Linux takes 131,071 bytes in one argument; a longer command goes in by stdin."""


class Shell:
    """The shell of one rollout. It outlives what its commands do to it: no bash, or no working directory any more."""

    def __init__(
        self,
        runtime: Sandbox,
        env: Mapping[str, str],
        *,
        cwd: str | None,
        user: str | None,
        timeout: float,
        shown: int,
        resources: TaskResources = _NO_BOUNDS,
    ) -> None:
        self._runtime = runtime
        self._env = env
        self._cwd = cwd
        self._user = user
        self._timeout = timeout
        self._shown = shown
        self._resources = resources
        self._program = "bash"
        self._has_run = False

    async def run(self, command: str) -> str:
        """What a model is told of a command: `exit N`, then both outputs, cut to the last characters.

        Raises SandboxLost when no shell can be started any more.
        """
        try:
            result = await self._run(command)
        except (FileNotFoundError, NotADirectoryError) as err:
            if not self._has_run:
                raise SandboxError(f"no command can start in the working directory: {err}") from err
            self._cwd = "/"  # an earlier command removed it: the agent's doing, no failure of the machine
            result = await self._run(command)
        if result.exit_code == 127 and not await self._exists():
            # Nothing has run yet: it is the shell that was not found.
            self._program = "sh"
            if not await self._exists():
                raise SandboxLost("nothing can run in the sandbox any more: neither bash nor sh starts")
            result = await self._run(command)
        self._has_run = True
        return describe(result, self._timeout, self._shown, self._resources)

    async def _run(self, command: str) -> ProgramResult:
        code = command.encode()
        by_stdin = len(code) > LONGEST_ARGUMENT
        return await self._runtime.run(
            [self._program, "-c", 'eval "$(cat)"' if by_stdin else command],
            self._env,
            cwd=self._cwd,
            user=self._user,
            stdin=code if by_stdin else b"",
            timeout=self._timeout,
            output_limit=4 * self._shown + 4,  # a character is at most four bytes
        )

    async def _exists(self) -> bool:
        probe = await self._runtime.run([self._program, "-c", ":"], cwd="/", user=self._user, timeout=self._timeout)
        return probe.exit_code != 127


def describe(result: ProgramResult, timeout: float, shown: int, resources: TaskResources = _NO_BOUNDS) -> str:
    """A command's result as one text, the last `shown` characters of it; `resources` bound the sandbox."""
    text = f"exit {result.exit_code}\n{result.stdout}{result.stderr}"
    if result.timed_out:
        text += f"\n[timed out after {timeout:g} s and was killed]"
    if result.ended_by:
        text += f"\n[{_why(result.ended_by, resources)}]"
    return tail(text, shown)


def _why(limit: EndedBy, resources: TaskResources) -> str:
    """Which limit it was: the sandbox's own, since the machine that it is on may have plenty."""
    gigabytes = {"oom": resources.memory, "disk": resources.disk}.get(limit)
    return _ENDED[limit] if gigabytes is None else _BOUNDED[limit].format(f"{gigabytes * 1024:g} MB")
