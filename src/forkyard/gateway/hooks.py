"""Where a task's own code looks at requests and replies, and may change them before they pass."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forkyard.gateway.dialects import Answered
from forkyard.gateway.terms import Draft, StopError, Terms
from forkyard.task import Request, Response
from forkyard.task.boundary import apply_request_hooks, apply_response_hooks
from forkyard.trace import text_of

if TYPE_CHECKING:
    from forkyard.gateway.call import Call


def looks_at(terms: Terms, what: str) -> bool:
    """Whether the rollout's task has code that looks at each "request" or "response" of its agent."""
    if terms.task is None or terms.purpose != "agent":
        return False
    signals = (*terms.task.signals("intercept"), *terms.task.signals("stop"))
    return any(signal.at == what for signal in signals)


async def request_passed(terms: Terms, draft: Draft) -> None:
    """Show a request to the task's code, and change the draft as it says. Raises StopError and TaskError."""
    if terms.task is None or not looks_at(terms, "request"):
        return
    asked = draft.asked
    request = Request.model_validate({"messages": asked.messages, "tools": list(map(dict, asked.tools))})
    answer, stop = await apply_request_hooks(terms.task, terms.trace, request)
    if stop is not None:
        raise StopError(stop)
    pairs = enumerate(zip(request.messages, answer.messages, strict=True))
    contents = {place: text_of(new.get("content")) for place, (old, new) in pairs if old is not new}
    if contents:
        draft.changes |= draft.dialect.retold(draft.body | draft.changes, asked, contents)
        draft.asked = replace(asked, messages=list(answer.messages))


async def reply_passed(call: Call, answered: Answered) -> tuple[Answered, str | None, str | None]:
    """Show a reply to the task's code: the reply it is from now on, its text when that is new, and a stop's name."""
    terms, message = call.route.terms, answered.message
    if terms.task is None or message is None:
        return answered, None, None
    response = Response.model_validate(
        {
            "message": message,
            "finish_reason": answered.finish_reason,
            "model": call.draft.model,
            "usage": answered.usage,
        }
    )
    answer, stop = await apply_response_hooks(terms.task, terms.trace, response)
    if answer is response:
        return answered, None, stop
    said = text_of(answer.message.get("content"))
    # The provider's token ids are those of what it said itself.
    changed = replace(
        answered,
        message=dict(answer.message),
        finish_reason=answer.finish_reason,
        prompt_token_ids=None,
        token_ids=None,
        logprobs=None,
    )
    return changed, said, stop
