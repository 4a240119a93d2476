"""The boundary between an agent and its model, where the task's own code may look, change and stop.

The gateway calls these functions around every model call of an agent, in this order: `stopped` before anything,
`apply_request_hooks` on what is about to be sent, `apply_response_hooks` on what came back. `gate_tool` is asked before
a tool runs. Each raises TaskError when the task's code fails, or changes what it may not.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forkyard.errors import TaskError, boundary
from forkyard.task.hooks import Signal
from forkyard.task.intercept import Request, Response
from forkyard.task.task import Task
from forkyard.trace import AnyMessage, AssistantMessage, ToolCall, ToolMessage, Trace, message_key, typed

AnyTask = Task[Any, Any, Any]
_FAILED = "model boundary hook failed"


@dataclass(frozen=True, slots=True)
class ToolGate:
    """Whether a tool may run: "deny" gives the model `text` as its result, "stop" ends the agent by `text`."""

    action: Literal["allow", "deny", "stop"] = "allow"
    text: str = ""


async def stopped(task: AnyTask, trace: Trace) -> str | None:
    """The name of the task's stop that says the agent is done, looking at its trace."""
    return await _stops(task, trace, "trace", trace)


async def apply_request_hooks(task: AnyTask, trace: Trace, request: Request) -> tuple[Request, str | None]:
    """What to send in the place of a request, the same object when nothing changes it, and the stop that forbids it.

    What an interceptor put in the place of a message stays there in every later request, whatever the agent sends.
    """
    hooks = _at(task, "intercept", "request")
    if not hooks and not trace.rewritten:
        return request, await _stops(task, trace, "request", request)
    sent = [trace.rewritten.get(_pin(place, message), message) for place, message in enumerate(request.messages)]
    pinned = {place for place, (one, other) in enumerate(zip(sent, request.messages, strict=True)) if one is not other}
    current = request.model_copy(update={"messages": sent}) if pinned else request
    known = trace.graph.known(current.messages, current.tools or ())
    for hook in hooks:
        shown = current.model_copy(update={"messages": _shown(current.messages, known)})
        answer = await _call(hook, task, trace, "request", shown)
        changed = _changed(hook, current, answer, known, pinned)
        if changed is not current:
            trace.info.setdefault("request_rewrites", []).append({"handler": hook.name})
        current = changed
    for place, (before, after) in enumerate(zip(request.messages, current.messages, strict=True)):
        if before is not after and place not in pinned:
            trace.rewritten[_pin(place, before)] = after
    return current, await _stops(task, trace, "request", current)


async def apply_response_hooks(task: AnyTask, trace: Trace, response: Response) -> tuple[Response, str | None]:
    """What to give the agent in the place of a response, the same object when nothing changes it, and its stop."""
    current = response
    for hook in _at(task, "intercept", "response"):
        shown = current.model_copy(update={"message": copy.deepcopy(current.message)})
        answer = await _call(hook, task, trace, "response", shown)
        if answer is None or answer.message == current.message:
            continue
        current = current.model_copy(update={"message": _inert(hook, answer.message), "finish_reason": "stop"})
        trace.info.setdefault("response_rewrites", []).append({"handler": hook.name})
    return current, await _stops(task, trace, "response", current)


async def gate_tool(task: AnyTask, trace: Trace, request: Request, call: ToolCall) -> ToolGate:
    """Whether a tool may run that the model has called after `request` (which ends with that reply).

    The task's interceptors are shown an empty result of the call: one that fills it in has answered in the tool's
    place.
    """
    if not _at(task, "intercept", "request") and not _at(task, "stop", "request"):
        return ToolGate()
    empty = ToolMessage(call["id"], "", name=call.name)
    asked = request.model_copy(update={"messages": [*request.messages, empty]})
    # What is put in its place is for this call alone: there are models that use the number of a call again.
    pin = _pin(-1, empty)
    kept = trace.rewritten.pop(pin, None)
    try:
        answer, stop = await apply_request_hooks(task, trace, asked)
    finally:
        trace.rewritten.pop(pin, None)
        if kept is not None:
            trace.rewritten[pin] = kept
    if stop is not None:
        return ToolGate("stop", stop)
    result = answer.messages[-1]
    return ToolGate() if result is empty else ToolGate("deny", result.text)


def _at(task: AnyTask, kind: Literal["stop", "intercept"], what: str) -> list[Signal]:
    return [signal for signal in task.signals(kind) if signal.at == what]


async def _stops(task: AnyTask, trace: Trace, what: str, value: Any) -> str | None:
    for hook in _at(task, "stop", what):
        answer = await _call(hook, task, trace, what, value)
        if not isinstance(answer, bool):
            raise TaskError(f"{_FAILED}: the stop {hook.name} is to say True or False, and says {answer!r}")
        if answer:
            return hook.name
    return None


async def _call(hook: Signal, task: AnyTask, trace: Trace, what: str, value: Any) -> Any:
    values = {"task": task.data, "trace": trace, what: value}
    with boundary(TaskError, _FAILED):
        answer = hook.bound(task)(**{name: values[kind] for name, kind in hook.given})
        if hasattr(answer, "__await__"):
            answer = await answer
    if hook.kind == "intercept" and answer is not None and not isinstance(answer, type(value)):
        raise TaskError(f"{_FAILED}: {hook.name} is to return a {type(value).__name__} or None, not {answer!r}")
    return answer


def _changed(hook: Signal, before: Request, answer: Request | None, known: int, pinned: set[int]) -> Request:
    """The request with what the hook may change changed. Raises TaskError for the rest."""
    if answer is None:
        return before
    if len(answer.messages) != len(before.messages) or answer.tools != before.tools:
        raise TaskError(f"{_FAILED}: {hook.name} may change messages, and neither their number nor the tools")
    messages: list[AnyMessage] = list(before.messages)
    for place, (old, new) in enumerate(zip(before.messages, answer.messages, strict=True)):
        if old == new or place in pinned:
            continue
        if place < known or old["role"] not in ("user", "tool") or _identity(old) != _identity(new):
            raise TaskError(
                f"{_FAILED}: {hook.name} changed message {place} ({old['role']}); only the content of user's messages "
                "and tool results that are new can be changed"
            )
        messages[place] = typed(new)
    if all(old is new for old, new in zip(before.messages, messages, strict=True)):
        return before
    return before.model_copy(update={"messages": messages})


def _shown(messages: Sequence[AnyMessage], known: int) -> list[AnyMessage]:
    """Copies for a hook to work on; it may reach deep into what is new only."""
    return [*(message.model_copy() for message in messages[:known]), *copy.deepcopy(list(messages[known:]))]


def _identity(message: AnyMessage) -> Sequence[Any]:
    return [message.get(name) for name in ("role", "tool_call_id", "name")]


def _pin(place: int, message: AnyMessage) -> tuple[int, str]:
    """How a message is known again: the result of a call anywhere, another where it stood."""
    return -1 if message["role"] == "tool" else place, message_key(message)


def _inert(hook: Signal, message: AssistantMessage) -> AssistantMessage:
    """The message when it is plain text. Raises TaskError when it could make the agent act."""
    extra = [name for name in message if name not in ("role", "content") and message[name]]
    if extra or not isinstance(message.content, str):
        raise TaskError(
            f"{_FAILED}: {hook.name} may put plain text in the place of a reply, without {', '.join(extra) or 'parts'}"
        )
    return AssistantMessage(message.content)
