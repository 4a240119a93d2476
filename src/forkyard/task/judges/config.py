"""What a user says of a judge, and judges by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, field_validator

from forkyard.errors import ConfigError
from forkyard.plugins import Kind, exported, load, module_name, module_of, names
from forkyard.task.data import Frozen
from forkyard.task.sampling import check_names
from forkyard.values import nearest

if TYPE_CHECKING:
    from forkyard.task.judges.judge import Judge


class JudgeConfig(Frozen):
    """A judge: `id` says which, `name` is its reward's name, `weight` that of its reward.

    `model` None is the run's own. `sampling` holds `temperature`, `top_p`, `max_tokens`, `seed`, and whatever else is
    to stand in the request; what is nearly a known name is refused unless it is in a table `extra_body`.
    `prompt` is a file with a template in the place of the judge's own.
    """

    id: str = ""
    name: str = ""
    weight: float = Field(1.0, allow_inf_nan=False)
    model: str | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)
    prompt: Path | None = None

    @field_validator("sampling")
    @classmethod
    def _names_are_meant(cls, sampling: dict[str, Any]) -> dict[str, Any]:
        check_names(sampling)
        return sampling

    @property
    def key(self) -> str:
        """The name of its reward: `name`, else the last part of `id`; "" when it has neither."""
        return self.name or module_name(self.id.rpartition(":")[2])


_OWN = {
    "decision": "forkyard.task.judges.decision:DecisionJudge",
    "reference": "forkyard.task.judges.reference:ReferenceJudge",
    "rubric": "forkyard.task.judges.rubric:RubricJudge",
    "score": "forkyard.task.judges.score:ScoreJudge",
}
JUDGES = Kind("judge", "forkyard.judges")


def judge_class(id: str) -> type[Judge[Any, Any]]:
    """The judge of an id: ours, one that a package offers by entry point, module:Class, or a module that exports one.

    Raises ValueError when there is none.
    """
    from forkyard.task.judges.judge import Judge

    what = f"judge {id!r}"
    try:
        if id in names(JUDGES) or id in _OWN or ":" in id:
            found = load(JUDGES, _OWN.get(id, id))
        else:
            found = exported(what, module_of("judge", id), Judge)
    except ConfigError as err:
        near = nearest(id, _OWN)
        hint = f"; did you mean {near!r}?" if near else f"; ours are {', '.join(_OWN)}"
        raise ValueError(f"{err}{hint}") from err
    if not (isinstance(found, type) and issubclass(found, Judge)):
        raise ValueError(f"{what} is not a class derived from forkyard.Judge")
    return found


def make_judge(config: JudgeConfig) -> Judge[Any, Any]:
    """The judge of a config. Raises ValueError for one that cannot be made, for want of a file too."""
    try:
        return judge_class(config.id)(config)
    except OSError as err:
        raise ValueError(f"judge {config.key!r}: {err}") from err


def resolve_judges(entries: Sequence[Any]) -> tuple[JudgeConfig, ...]:
    """Each entry as its judge's own config. Raises ValueError for one without an id, and for two of one name."""
    resolved = []
    for entry in entries:
        given: Mapping[str, Any] = entry.model_dump(exclude_unset=True) if isinstance(entry, BaseModel) else entry
        id = given.get("id") or getattr(entry, "id", "")
        if not id:
            raise ValueError(f"a judge needs an `id`: one of {', '.join(_OWN)}, a package's, or module:Class")
        resolved.append(judge_class(id).config_type().model_validate({**given, "id": id}))
    twice = [key for key, count in Counter(config.key for config in resolved).items() if count > 1]
    if twice:
        raise ValueError(f"judges share a reward key, {', '.join(twice)}: give each a `name` of its own")
    return tuple(resolved)
