"""Running an agent CLI inside the sandbox: its instruction, its output on the record, and what its end means."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from forkyard.errors import HarnessError, SandboxError
from forkyard.harness.base import ModelContext
from forkyard.harness.narration import Narrator
from forkyard.harness.turns import open_conversation
from forkyard.model import Endpoint
from forkyard.sandbox import ProgramResult, Sandbox
from forkyard.task import Task
from forkyard.trace import Message, Trace
from forkyard.trace.messages import text_of
from forkyard.values import MIB, printable, tail

LOGS = "/logs/agent"
GRACE = 10.0
"""Seconds a CLI has to end by itself once it said that it is done, or was told that it gets no more replies."""
MOST_KEPT = 16 * MIB  # of its output, the end
MOST_TOLD = 16 * MIB  # of the lines that become messages, from the beginning
MOST_EVENTS = 50_000
_LONGEST_LINE = 8 * MIB
_SHOWN = 2000
_LOOK = 1.0
_NOT_FOUND = 127
_TELLING = ("system", "user")  # who speaks before the first turn


@dataclass(frozen=True, slots=True)
class Program:
    """A CLI of that name and how it is started; it writes one JSON object a line to its standard output."""

    name: str
    argv: Sequence[str]
    stdin: str
    env: Mapping[str, str] = field(default_factory=dict)
    grace: float = GRACE


def endpoint_of(name: str, ctx: ModelContext) -> Endpoint:
    """Where the program of that name reaches its model. Raises HarnessError when nobody opened a way."""
    if ctx.endpoint is None:
        raise HarnessError(f"the harness {name!r} needs a model behind an address inside the sandbox, and has none")
    return ctx.endpoint


def instruction(name: str, task: Task, trace: Trace) -> str:
    """What the program of that name is told: the texts before its first turn, the system prompt first.

    A task that goes on with a conversation is told as one text, in which it is said who spoke. Raises HarnessError for
    a conversation that this rollout began itself, and for one without a word.
    """
    open_conversation(task, trace)
    if any(message["role"] not in _TELLING for message in trace.messages):
        if isinstance(task.data.prompt, list) and trace.messages[-len(task.data.prompt) :] == task.data.prompt:
            return transcript(trace.messages)
        raise HarnessError(f"the harness {name!r} takes one instruction: it cannot go on with a conversation")
    text = "\n\n".join(filter(None, (text_of(message["content"]) for message in trace.messages)))
    if not text.strip():
        raise HarnessError(f"task {task.name} says nothing that {name} could be told")
    return text


def transcript(talk: Sequence[Message]) -> str:
    """A conversation as one text: what was said so far, and then what it ends with."""
    parts = ["This is what was said and done so far:"]
    for message in talk[:-1]:
        text = text_of(message.get("content"))
        for call in message.get("tool_calls") or ():
            text += f"\n{call['function']['name']}({call['function']['arguments']})"
        parts.append(f"[{message['role']}]\n{text.strip()}")
    return "\n\n".join([*parts, f"Go on from there. {text_of(talk[-1].get('content'))}"])


async def run_program(program: Program, narrator: Narrator, task: Task, trace: Trace, runtime: Sandbox) -> None:
    """Run a CLI to its end as the task's agent, in the task's working directory.

    Its output is kept as /logs/agent/NAME.jsonl, also when it is cut off. A CLI that fails after its model was
    refused it (`trace.stop_condition` is set) has ended well. Raises HarnessError with the end of its output when it
    fails otherwise; who answers for that is the caller's to say.
    """
    output = _Output(narrator)
    try:
        result = await _until_done(program, task, trace, runtime, output)
    finally:
        trace.info["program"] = noted = output.noted()
        with suppress(SandboxError, OSError):
            await runtime.write(f"{LOGS}/{program.name}.jsonl", output.kept(), 0o644)
    if result is not None:
        noted["exit_code"] = result.exit_code
        if result.ended_by:
            noted["ended_by"] = result.ended_by
        if not result.ok:
            noted["stderr"] = output.errors()
    _judge(program.name, result, narrator, trace, output)


async def _until_done(
    program: Program, task: Task, trace: Trace, runtime: Sandbox, output: _Output
) -> ProgramResult | None:
    """The end of the program; None for one that was ended since it stayed although nothing more could come."""
    running = asyncio.create_task(
        runtime.run(
            program.argv,
            {**task.runtime_env(), **program.env},
            cwd=task.data.workdir,
            user=task.data.agent_user,
            stdin=program.stdin.encode("utf-8", "replace"),
            on_output=output.take,
            output_limit=4 * _SHOWN,
        )
    )
    waited = 0.0
    try:
        while waited < program.grace:
            done, _ = await asyncio.wait([running], timeout=_LOOK)
            if done:
                return running.result()
            if output.narrator.finished or trace.stop_condition is not None or _key_refused(trace):
                waited += _LOOK
        return None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _judge(name: str, result: ProgramResult | None, narrator: Narrator, trace: Trace, output: _Output) -> None:
    well = narrator.finished if result is None else result.ok
    if trace.stop_condition is None and (narrator.failed or not well):
        said = output.last_words(narrator.failed)
        raise HarnessError(f"{name} {_how(result, narrator.finished)}; the end of what it said:\n{said}")
    trace.stop("agent_completed")


def _key_refused(trace: Trace) -> bool:
    """Whether the provider takes no key of ours, which some CLIs try again for minutes."""
    return bool(trace.calls) and trace.calls[-1].status_code in (401, 403)


def _how(result: ProgramResult | None, finished: bool) -> str:
    if finished and (result is None or result.ok):
        return "said that it failed"
    if result is None:
        return "was ended, since its model's provider refuses the key"
    if result.ended_by:
        return f"was killed: the sandbox ran into its limit ({result.ended_by})"
    if result.exit_code == _NOT_FOUND:
        return "could not be started: it is not in this sandbox, which was made for another harness or lost it"
    return f"was ended by signal {result.signal}" if result.signal else f"ended with exit code {result.exit_code}"


class _Output:
    """What a CLI writes while it runs: told line by line, and kept as far as it fits."""

    def __init__(self, narrator: Narrator) -> None:
        self.narrator = narrator
        self._line = bytearray()
        self._kept = bytearray()
        self._errors = bytearray()
        self._told = 0
        self._events = 0
        self._skipped = 0  # lines that are no events, or more than is told

    def take(self, stream: str, data: bytes) -> None:
        """The next piece."""
        kept, limit = (self._errors, 4 * _SHOWN) if stream == "stderr" else (self._kept, MOST_KEPT)
        kept += data
        if len(kept) > 2 * limit:
            del kept[:-limit]
        if stream == "stdout":
            *whole, rest = data.split(b"\n")
            for piece in whole:
                self._line += piece
                self._tell(bytes(self._line))
                self._line.clear()
            if len(self._line) <= _LONGEST_LINE:  # what is longer is counted as skipped when it ends
                self._line += rest

    def _tell(self, line: bytes) -> None:
        self._told += len(line)
        if not line.strip():
            return
        try:
            self._events += 1
            if self._told > MOST_TOLD or self._events > MOST_EVENTS or len(line) > _LONGEST_LINE:
                raise ValueError("too much")
            self.narrator.hear(json.loads(line))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            self._skipped += 1

    def noted(self) -> dict[str, object]:
        """What the record says of it."""
        return {"skipped_lines": self._skipped} if self._skipped else {}

    def errors(self) -> str:
        """The end of its standard error."""
        return printable(tail(self._errors.decode("utf-8", "replace"), _SHOWN)).strip()

    def kept(self) -> bytes:
        """The end of its standard output, beginning with a whole line."""
        if len(self._kept) <= MOST_KEPT:
            return bytes(self._kept)
        return bytes(self._kept[-MOST_KEPT:]).partition(b"\n")[2]

    def last_words(self, failed: str | None) -> str:
        """What tells best why it failed."""
        said = failed or self.errors() or self._kept[-_SHOWN:].decode("utf-8", "replace")
        return printable(tail(said.strip(), _SHOWN)) or "nothing"
