"""The harness `oracle`: runs the task's own solution. A task it cannot solve is broken."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import ClassVar

from forkyard.errors import HarnessError
from forkyard.harness.base import Harness, ModelContext
from forkyard.sandbox import Sandbox
from forkyard.sandbox.archive import pack
from forkyard.task import Task
from forkyard.trace import Trace, messages
from forkyard.values import tail

SOLUTION_DIR = "/solution"
SCRIPT = "solve.sh"


class OracleHarness(Harness):
    """Copies the solution to /solution and runs its solve.sh as the agent would, in the working directory.

    The exit code is recorded and decides nothing. Raises HarnessError for a task without a solution.
    `output_chars` is what the record keeps of the output, from its end.
    """

    name: ClassVar[str] = "oracle"
    needs_model: ClassVar[bool] = False
    converses: ClassVar[bool] = False

    def __init__(self, *, output_chars: int = 10_000) -> None:
        if output_chars < 1:
            raise ValueError("output_chars must be greater than 0")
        self.output_chars = output_chars

    def problems(self, task: Task) -> list[str]:
        """A task may lack its solution."""
        found = task.solution is not None and (task.solution / SCRIPT).is_file()
        return [] if found else ["there is no solution/solve.sh for the oracle to run"]

    async def launch(self, ctx: ModelContext, task: Task, trace: Trace, runtime: Sandbox) -> None:
        """Run the solution to its end."""
        solution = task.solution
        if solution is None or not (solution / SCRIPT).is_file():
            where = f" in {solution}" if solution else ""
            raise HarnessError(f"task {task.name} has no {SCRIPT}{where}: the oracle has nothing to run")
        if task.data.prompt is not None:
            trace.messages.append(messages.user(task.data.prompt_text))
        script = (solution / SCRIPT).read_bytes()
        await runtime.push(await asyncio.to_thread(pack, solution), SOLUTION_DIR)
        await runtime.write(f"{SOLUTION_DIR}/{SCRIPT}", script, mode=0o755)  # a checkout may have lost its x bit
        first_line = script[:256].partition(b"\n")[0]
        heard = bytearray()
        exit_code: int | None = None
        ended_by: str | None = None
        try:
            result = await runtime.run(
                _argv(first_line),
                {"DEBIAN_FRONTEND": "noninteractive", **task.runtime_env(), **task.solution_env()},
                cwd=task.data.workdir,
                user=task.data.agent_user,
                on_output=partial(self._hear, heard),
            )
            exit_code, ended_by = result.exit_code, result.ended_by
            if not heard:  # what the provider says of a script that cannot be started was never streamed
                heard.extend(result.stderr_bytes)
        finally:
            # Also when the deadline cuts it off: its output is what tells why.
            self._record(trace, exit_code, heard.decode("utf-8", "replace"), first_line)
            if ended_by:
                trace.info["oracle"]["ended_by"] = ended_by
        trace.stop("agent_completed")

    def _hear(self, heard: bytearray, stream: str, data: bytes) -> None:
        heard.extend(data)
        del heard[: -4 * self.output_chars]

    def _record(self, trace: Trace, exit_code: int | None, output: str, first_line: bytes) -> None:
        output = tail(output, self.output_chars)
        if exit_code in (126, 127) and first_line.endswith(b"\r"):
            output += f"[the first line of {SCRIPT} ends in a carriage return: save it with Unix line ends]"
        trace.info["oracle"] = {"exit_code": exit_code, "output": output}
        ended = "did not end" if exit_code is None else f"exit {exit_code}"
        trace.messages.append({"role": "assistant", "content": f"Ran {SOLUTION_DIR}/{SCRIPT}: {ended}\n{output}"})


def _argv(first_line: bytes) -> list[str]:
    """A script that names no interpreter is for bash."""
    path = f"{SOLUTION_DIR}/{SCRIPT}"
    return [path] if first_line.startswith(b"#!") else ["bash", path]
