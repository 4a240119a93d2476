"""A state as it is when a line is scored again: what was in it is gone, and no default may stand for that."""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from types import new_class
from typing import Any

from forkyard.errors import TaskError
from forkyard.task.state import State

_READS: ContextVar[list[str] | None] = ContextVar("_READS", default=None)


class UnrecordedStateError(TaskError):
    """What was read of a state is on no line."""


def unrecorded(state_type: type[State]) -> State:
    """A state without values. Reading a field before it is set raises UnrecordedStateError."""
    state = _unknown(state_type).model_construct()
    state.__dict__.clear()
    if state.__pydantic_private__ is not None:
        state.__pydantic_private__.clear()
    return state


def note_reads(reads: list[str]) -> None:
    """Have the fields that this task and those it starts read in vain put into `reads`, also when they go on."""
    _READS.set(reads)


@cache
def _unknown(state_type: type[State]) -> type[State]:
    def of_nothing(self: State, name: str) -> Any:
        private = self.__pydantic_private__
        if private is not None and name in private:
            return private[name]
        if name not in state_type.model_fields and name not in state_type.__private_attributes__:
            raise AttributeError(f"{state_type.__name__!r} object has no attribute {name!r}")
        reads = _READS.get()
        if reads is not None:
            reads.append(name)
        raise UnrecordedStateError(f"{name} of {state_type.__name__} is live only: no line holds it")

    own = {"__getattr__": of_nothing, "__module__": __name__}
    made: type[State] = new_class(state_type.__name__, (state_type,), exec_body=lambda names: names.update(own))
    return made
