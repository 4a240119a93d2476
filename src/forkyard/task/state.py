"""What a task keeps about one rollout while it runs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeVar


class State(BaseModel):
    """Subclass it to add fields; it is `trace.state` and never on a line.

    `artifacts` holds what left the agent's sandbox: the archive of each declared path, None for one that was not
    there.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    artifacts: dict[str, bytes | None] = Field(default_factory=dict)


StateT_co = TypeVar("StateT_co", bound=State, covariant=True, default=State)
