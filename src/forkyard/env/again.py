"""A rollout that is graded again: its agent's part is on the trace already, and what it left was kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from forkyard.env.boxes import seated_task
from forkyard.env.episode import Episode
from forkyard.env.judges import judges_money, judging
from forkyard.env.phases import grading_of, let_go, note_visits, on_record
from forkyard.env.seat import OnPhase, Seat
from forkyard.errors import SandboxError, boundary
from forkyard.grade import graded
from forkyard.grade.again import graded_again, read_collected
from forkyard.sandbox import Sandbox
from forkyard.task import Task, VerifierMode
from forkyard.trace import Slot, Trace
from forkyard.values import new_id


@dataclass(frozen=True, slots=True)
class Left:
    """The agent's part of a rollout on a trace of its own, how to grade it, and what the agent left.

    That is a directory with what was collected for a separate verifier, or what opens a sandbox on the agent's disk.
    """

    trace: Trace
    mode: VerifierMode
    what: Path | Callable[[], Awaitable[Sandbox]]


async def grade_again(
    env: str,
    left_by: Callable[[Task, Slot], Left],
    task: Task,
    slot: Slot,
    seats: Mapping[str, Seat],
    on_phase: OnPhase,
) -> Episode:
    """Grade one rollout of before anew; no agent is played. `env` is the id its trace goes under.

    What goes wrong is on the trace.
    """
    episode = Episode(new_id(), env, task.name)
    left = left_by(task, Slot(slot.run, slot.sample, slot.attempt, episode.id, env))
    episode.traces.append(left.trace)
    left.trace.state = type(task).state_type()()
    on_phase(left.trace, "grade")
    try:
        await _grade(seats["agent"], seated_task(seats["agent"], task), left)
    finally:
        on_phase(left.trace, "done")
    return episode


async def _grade(seat: Seat, task: Task, left: Left) -> None:
    opened: list[Sandbox] = []
    touched = False

    async def end() -> None:
        while opened:
            note_visits(left.trace, opened[-1])
            await let_go(left.trace, opened.pop())

    try:
        async with judging(seat.gateway, left.trace, seat.model, judges_money(seat)) as judges:
            with on_record(left.trace, lambda: touched):
                graded_at = replace(seat, verifier=left.mode)
                grading = await grading_of(graded_at, task, left.trace, left.mode, end, judges=judges)
                if isinstance(left.what, Path):
                    with boundary(SandboxError, "what was collected"):
                        collected = await asyncio.to_thread(read_collected, left.what)
                    await graded_again(replace(grading, mode="separate"), left.trace, collected)
                else:
                    opened.append(await left.what())  # nothing of the agent's runs yet: so far it is the machine's
                    touched = True
                    await graded(grading, left.trace, opened[-1])
    finally:
        await end()
