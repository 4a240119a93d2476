"""Every error Forkyard raises on purpose, named by the boundary that was crossed.

    ForkyardError
    +-- ConfigError              found before anything starts: what, where, and the mend
    +-- RolloutError             one rollout went wrong; recorded on its trace, never a crash of the run
        +-- SandboxError         a sandbox could not do what it was asked
        |   +-- TooLarge         a file or an archive has more bytes than the caller takes
        |   +-- NotAFile         what was to be read is no regular file, nor a directory
        |   +-- SandboxLost      this sandbox is gone (its PID 1 died or it was closed)
        |       +-- EngineLost   so is the provider's engine: infrastructure, whoever acted last
        |           +-- ProviderLost   and nobody is there to make another: the run stops early
        +-- TaskError            code of a task raised
        |   +-- JudgeError       a verifier was refused its judge, for what the run lacks
        +-- HarnessError         the program around the model failed
        +-- EnvError             code of an env raised
        +-- ToolsetError         a tool server failed
        +-- InterceptionError    the model gateway failed
        +-- ModelError           the model's provider failed (after retries)
            +-- AuthenticationError, ModelNotFoundError   wrong for every rollout: the run stops early
            +-- ContextLengthError                        the conversation no longer fits: a stop, not a failure
            +-- ContentFilterError                        the provider refused to answer
            +-- KeyReturnedError                          the provider's reply holds the key it was sent
            +-- StoppedError                              a limit or a budget refused the call: the agent's end

A bad rollout is data: extension code raises plain Python, `boundary` turns it into the class of the boundary. Deadlines
of ours stand around a boundary, never inside it, so that a TimeoutError within one is the foreign code's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class ForkyardError(Exception):
    """Root of all errors of this package.

    `lasting` says that another attempt at the same rollout would fail in the same way, `fatal` that every other
    rollout of the run would, too.
    """

    lasting: ClassVar[bool] = False
    fatal: ClassVar[bool] = False


class ConfigError(ForkyardError):
    """Bad configuration, found before anything starts; `problems` holds one sentence per mistake."""

    lasting = True

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class RolloutError(ForkyardError):
    """Something failed inside one rollout.

    `kind` is the short word used in records (`error.type`) and in stop conditions (`<kind>_error`).
    """

    kind: ClassVar[str] = "rollout"
    status_code: int | None = None


class SandboxError(RolloutError):
    """A sandbox could not do what it was asked; not said of commands that merely exit non-zero."""

    kind = "sandbox"


class TooLarge(SandboxError):
    """A file or an archive has more bytes than whoever asked for it takes; the same with a higher limit may work."""


class NotAFile(SandboxError):
    """What was to be read is neither a regular file nor a directory: a FIFO, a device, a window of the kernel."""


class SandboxLost(SandboxError):
    """The sandbox is gone: its PID 1 died, or it was closed."""


class EngineLost(SandboxLost):
    """The provider's engine is gone: no sandbox of it can be had, through no fault of who used the last one."""


class ProviderLost(EngineLost):
    """What the provider needs to make any sandbox, a server elsewhere, is gone and cannot be reached again."""

    fatal = True


class TaskError(RolloutError):
    """A hook, reward or metric of a task raised."""

    kind = "task"


class JudgeError(TaskError):
    """A judge never answered the verifier that asked it, for what the run lacks; its verdict is none."""

    kind = "judge"
    lasting = True


class HarnessError(RolloutError):
    """The program around the model failed."""

    kind = "harness"


class EnvError(RolloutError):
    """`Env.run` or `Env.finalize` raised."""

    kind = "env"


class ToolsetError(RolloutError):
    """A tool server failed."""

    kind = "toolset"


class InterceptionError(RolloutError):
    """The model gateway failed."""

    kind = "interception"


class ModelError(RolloutError):
    """The model's provider failed for good: retries are spent, or retrying cannot help."""

    kind = "provider"

    def __init__(self, message: str, status_code: int | None = 502) -> None:
        super().__init__(message)
        self.status_code = status_code


class AuthenticationError(ModelError):
    """The provider refused the key (401, 403)."""

    kind = "authentication"
    fatal = True


class ModelNotFoundError(ModelError):
    """The provider does not know the model (404)."""

    kind = "model_not_found"
    fatal = True


class ProxyRefusedError(ModelError):
    """The proxy that the environment names does not let the provider be reached."""

    fatal = True


class ContextLengthError(ModelError):
    """The conversation no longer fits into the model's context."""

    kind = "context_length"


class ContentFilterError(ModelError):
    """The provider declined to answer this conversation."""

    kind = "content_filter"


class KeyReturnedError(ModelError):
    """A reply held the key that the provider was sent, and was passed on to nobody."""

    kind = "key_returned"
    lasting = True


class StoppedError(ModelError):
    """No call was made: `condition` has stopped the agent. A harness lets it pass, and whoever launched it ends it."""

    kind = "stopped"

    def __init__(self, message: str, condition: str) -> None:
        super().__init__(message, 400)
        self.condition = condition


@contextmanager
def boundary(error: type[RolloutError], what: str) -> Iterator[None]:
    """Turn whatever foreign code raises into `error`, also that it wants to exit; named errors and bad configuration
    pass.
    """
    try:
        yield
    except ForkyardError:
        raise
    except (Exception, SystemExit) as err:
        raise error(f"{what}: {type(err).__name__}: {err}") from err
