"""Who answers for a failure of a rollout: one law for every phase.

Before the agent has acted, and for the model's provider, a failure is infrastructure: it may be tried again. Once the
agent has acted, whatever breaks in its sandbox is on its own account, unless the engine under all sandboxes is gone:
an agent that wrecks its sandbox, or the program that drives it, earns neither a score nor a second try. The same goes
for words that a provider will not take, the agent's own model's or a judge's: they are the agent's.
"""

from __future__ import annotations

from forkyard.errors import (
    ContentFilterError,
    ContextLengthError,
    EngineLost,
    HarnessError,
    ModelError,
    SandboxError,
    TaskError,
    ToolsetError,
)
from forkyard.trace import Status, Trace

_THE_ASKERS_FAULT = frozenset((400, 405, 413, 415, 422))
"""What providers answer to requests that are none."""


def settle_failure(trace: Trace, error: Exception, acted: bool) -> None:
    """Put an error on the record and settle the status it leads to, when that is still open."""
    trace.record_error(error)
    if not acted or isinstance(error, EngineLost):
        trace.settle(Status.INFRASTRUCTURE_ERROR, str(error))
    elif isinstance(error, SandboxError):
        trace.settle(Status.INDETERMINATE, f"the sandbox broke after the agent acted in it: {error}")
    elif isinstance(error, TaskError):
        trace.settle(Status.SCORING_ERROR, str(error))
    elif isinstance(error, HarnessError):
        trace.settle(Status.INDETERMINATE, f"the harness failed under the agent: {error}")
    elif isinstance(error, ModelError) and _is_about_words(error, trace):
        trace.settle(Status.INDETERMINATE, f"the provider would not take what the agent had said: {error}")
    elif isinstance(error, ToolsetError):
        trace.settle(Status.INDETERMINATE, f"a server of tools failed under the agent: {error}")
    else:
        trace.settle(Status.INFRASTRUCTURE_ERROR, str(error))


def unknown(acted: bool) -> Status:
    """What a failure leads to that nobody can be blamed for: once the agent has acted, it may have had a hand in it."""
    return Status.INDETERMINATE if acted else Status.INFRASTRUCTURE_ERROR


def program_failure(trace: Trace, error: HarnessError) -> HarnessError | ModelError:
    """Why an agent's program failed: one whose model never answered failed for that.

    Later on what it asked may be the agent's own doing.
    """
    failed = [call.error for call in trace.calls if call.error]
    return ModelError(f"{failed[-1]} ({error})") if failed and not trace.steps else error


def unheard(trace: Trace, *, has_model: bool, asks_itself: bool) -> HarnessError | ModelError | None:
    """Why an agent that ran out of time was never given any: its model failed, or never said a word.

    With `asks_itself` programs in its sandbox can ask, too: once it has spoken, what the model is asked may be the
    agent's own doing.
    """
    own = asks_itself and trace.steps > 0
    asked = [call for call in trace.calls if call.purpose == "agent"]
    if own and asked and asked[-1].status_code in _THE_ASKERS_FAULT:
        return None
    if trace.model_failing:
        why = f"the model's provider kept failing ({trace.model_failing})"
    elif has_model and not trace.steps:
        why = "the model did not answer once"
    else:
        return None
    said = f"{why}, until the agent's time was up"
    return HarnessError(said) if own else ModelError(said, 504)


def _is_about_words(error: ModelError, trace: Trace) -> bool:
    """Whether a provider refused a conversation for what is in it; before the first reply that is the task's doing."""
    said = isinstance(error, ContentFilterError | ContextLengthError) or error.status_code in (400, 413, 422)
    return said and trace.steps > 0 and not error.fatal
