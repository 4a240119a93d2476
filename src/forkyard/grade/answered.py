"""Whether the judges that a verifier asked have answered it: a verdict without them is none.

A program that grades writes 0 when its judge fails, as it does when the answer is wrong. So what it wrote counts only
if each judge that was asked answered in the end. Not where the asker was at fault, whose 0 stands.

The agent may be the asker: its code may be run by the verifier, and ask what it likes. So what a request alone decides
(a model without a price, or one that the run's key does not open) leads to a status that earns no second try. That a
provider fails is nothing it decides, and a judge that answers afterwards makes good whatever it did before.
"""

from __future__ import annotations

from collections.abc import Iterable

from forkyard.errors import JudgeError, ModelError
from forkyard.trace import ModelCall, Trace

CODE = "judge_unanswered"


def check_answered(trace: Trace, calls: Iterable[ModelCall]) -> None:
    """Take a verdict back when a judge that `calls` asked has not answered it.

    Raises JudgeError when the run lacks something, or when what the agent left running may have asked; ModelError when
    the provider failed.
    """
    if trace.status is None or not trace.status.graded:
        return
    failed: dict[str, ModelCall] = {}
    for call in calls:
        if call.purpose == "judge" and call.error is None:
            failed.pop(call.model, None)
        elif call.purpose == "judge" and call.fault is not None:
            failed[call.model] = call
    if not failed:
        return
    lacking = next((call for call in failed.values() if call.fault == "run"), None)
    call = lacking or next(iter(failed.values()))
    why = f"the verifier asked model {call.model!r} and got no answer, so what it wrote is no verdict: {call.error}"
    trace.status = trace.reason = None
    trace.rewards = dict.fromkeys(trace.rewards)
    trace.verifier |= {"code": CODE, "reason": why}
    if lacking or _agent_in_reach(trace):
        raise JudgeError(why)
    raise ModelError(why, call.status_code)


def _agent_in_reach(trace: Trace) -> bool:
    """Whether processes of the agent may have read the key of the verifier's address."""
    beside = trace.verifier.get("mode") == "shared" and trace.verifier.get("left_running", True)
    return bool(beside) and not trace.verifier.get("apart", False)
