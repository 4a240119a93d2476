"""The conversation that an agent is to go on with: a task's `trajectory.json`, as messages before the instruction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from forkyard.task.directory.atif import Content, Result, Step, Trajectory
from forkyard.trace import Message, ToolCall, messages
from forkyard.values import MIB

MOST = 16 * MIB
_TOLD = 3


def read_trajectory(path: Path, problems: list[str]) -> tuple[Message, ...]:
    """What was said and done so far; what is wrong with the file is added to `problems`."""
    try:
        return tuple(_messages(_read(path)))
    except ValidationError as err:
        problems += [f"{path}: {said}" for said in _told(err)[:_TOLD]]
    except (ValueError, OSError, RecursionError) as err:
        problems.append(f"{path} is no trajectory that can be gone on with: {err or type(err).__name__}")
    return ()


def _told(err: ValidationError) -> list[str]:
    """A sentence for each fault; of what may be a text or a list of parts, that it is no text says nothing."""
    faults = err.errors(include_url=False)
    said = []
    for fault in [fault for fault in faults if fault["loc"][-1:] != ("str",)] or faults:
        where = ".".join(str(part) for part in fault["loc"] if "[" not in str(part)) or "the whole"
        said.append(f"{where}: {fault['msg'].removeprefix('Value error, ')}")
    return said


def _read(path: Path) -> Trajectory:
    if path.stat().st_size > MOST:
        raise ValueError(f"it is larger than {MOST} bytes")
    text = path.read_bytes().decode("utf-8-sig")
    return Trajectory.model_validate(json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object in it holds a key twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _messages(trajectory: Trajectory) -> Iterator[Message]:
    for step in trajectory.steps:
        if step.source == "agent":
            yield _said(step)
        else:
            yield {"role": step.source, "content": _text(step.message, step)}
        yield from _came_back(step)


def _said(step: Step) -> Message:
    said: Message = {"role": "assistant", "content": _text(step.message, step)}
    calls = [
        ToolCall(call.tool_call_id, call.function_name, json.dumps(call.arguments)) for call in step.tool_calls or ()
    ]
    return {**said, "tool_calls": [dict(call) for call in calls]} if calls else said


def _came_back(step: Step) -> Iterator[Message]:
    """The answers to the calls, each of which has one, and then whatever else was observed."""
    results = step.observation.results if step.observation else []
    answers: dict[str, list[str]] = {call.tool_call_id: [] for call in step.tool_calls or ()}
    for result in results:
        if result.source_call_id is not None:
            answers[result.source_call_id].append(_observed(result, step))
    for call, texts in answers.items():
        yield messages.tool_result(call, "\n".join(texts))
    for result in results:
        if result.source_call_id is None:
            yield messages.user(_observed(result, step))


def _observed(result: Result, step: Step) -> str:
    return "" if result.content is None else _text(result.content, step)


def _text(content: Content, step: Step) -> str:
    """ValueError for pictures and sounds, which lie in files that no agent is handed."""
    if isinstance(content, str):
        return content
    if other := next((part.type for part in content if part.type != "text"), None):
        raise ValueError(f"step {step.step_id} holds an {other}, and only text is handed on to an agent")
    return "\n".join(part.text or "" for part in content)
