"""Why something cannot be done with a sandbox, as the answer to a client."""

from __future__ import annotations

from forkyard.errors import ConfigError, EngineLost, SandboxError, SandboxLost
from forkyard.server.envelope import ApiError
from forkyard.server.sandboxes.record import Record
from forkyard.server.sandboxes.states import Phase, status_of

_MEND = {
    Phase.CREATING: "wait until it runs, or stop it",
    Phase.STARTING: "wait until it runs",
    Phase.RESUMING: "wait until it runs",
    Phase.RUNNING: "stop it first",
    Phase.PAUSING: "wait until it is paused",
    Phase.PAUSED: "resume it, or stop it",
    Phase.STOPPING: "wait until it is stopped",
    Phase.STOPPED: "start it",
    Phase.EXITED: "start it",
    Phase.FAILED: "start it, or delete it",
    Phase.DELETING: "it is going away",
}
_DONE = {
    "start": "started", "resume": "resumed", "pause": "paused", "stop": "stopped", "fork": "forked",
    "delete": "deleted", "timeout": "given other timeouts",
}  # fmt: skip


def conflict(what: str, record: Record) -> ApiError:
    """409: this cannot be asked of a sandbox in its phase. `what` is an action, or a participle such as "used"."""
    phase = record.phase
    why = f", because {record.exit_reason}" if phase in (Phase.EXITED, Phase.FAILED) and record.exit_reason else ""
    mend = "it has no disk: delete it, and create another" if record.never_was else _MEND[phase]
    word = "pending a resume" if phase is Phase.RESUMING else status_of(phase)
    done = _DONE.get(what, what)
    return ApiError(409, f"sandbox {record.name!r} cannot be {done} while it is {word}{why}: {mend}", "invalid_state")


def told(failure: Exception, record: Record) -> Exception:
    """What a client is told of an error; the error itself when it is a fault of ours."""
    if isinstance(failure, EngineLost):
        return ApiError(503, str(failure), "no_capacity", retry_after=1)
    if isinstance(failure, SandboxLost):
        return ApiError(409, f"sandbox {record.name!r} has ended: {failure}", "sandbox_ended")
    if isinstance(failure, ConfigError):
        return ApiError(400, str(failure))
    if isinstance(failure, SandboxError):
        return ApiError(500, f"sandbox {record.name!r}: {failure}", "sandbox_error")
    return failure
