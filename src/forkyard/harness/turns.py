"""The pieces every harness with a model is made of: open the conversation, and ask."""

from __future__ import annotations

import time
from collections.abc import Sequence

from forkyard.errors import HarnessError
from forkyard.model import Model, Reply, Sampling, ToolSpec
from forkyard.task import Task
from forkyard.trace import ModelCall, Trace, messages


def open_conversation(task: Task, trace: Trace) -> None:
    """Make the user's turn the last message of the trace.

    A conversation that already ends with a user's message is taken as it is: whoever launched the harness opened
    it. Otherwise the task's prompt is added. Raises HarnessError when there is nothing to say.
    """
    talk = trace.messages
    data = task.data
    if data.system_prompt and not any(message["role"] == "system" for message in talk):
        talk.insert(0, messages.system(data.system_prompt))
    if talk and talk[-1]["role"] == "user":
        return
    if data.prompt is None:
        raise HarnessError(f"task {task.name} has no prompt, and nobody opened the conversation")
    talk.extend([messages.user(data.prompt)] if isinstance(data.prompt, str) else map(dict, data.prompt))


async def ask(model: Model, trace: Trace, tools: Sequence[ToolSpec], sampling: Sampling) -> Reply:
    """Ask for the next message and put it, its tokens and its time on the trace; the time of failed calls too.

    While a call is failing, `trace.model_failing` says why: an agent that runs out of time then was not given any.
    """
    started = time.monotonic()
    try:
        reply = await model.complete(trace.messages, tools, sampling, trace.note_model_failure)
        trace.model_failing = None
    finally:
        trace.timing.model_ms += (time.monotonic() - started) * 1000
    trace.messages.append(reply.message)
    if not reply.recorded:
        seconds = time.monotonic() - started
        trace.record_call(
            ModelCall(model=model.name, seconds=seconds, usage=reply.usage, finish_reason=reply.finish_reason)
        )
    trace.info["finish_reason"] = reply.finish_reason
    if reply.retries:
        trace.info["model_retries"] = trace.info.get("model_retries", 0) + reply.retries
        trace.info["model_wait_ms"] = trace.info.get("model_wait_ms", 0.0) + reply.waited_ms
    return reply
