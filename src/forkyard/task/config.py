"""What a user can say of a task beside its data: judges, and other stops, metrics and rewards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SerializeAsAny, field_validator
from typing_extensions import TypeVar

from forkyard.errors import ConfigError
from forkyard.plugins import function_of
from forkyard.task.data import Frozen
from forkyard.task.hooks import Kind, Signal, in_order, plugged
from forkyard.task.judges.config import JudgeConfig, make_judge, resolve_judges
from forkyard.task.judges.judge import Judge

_function = cache(function_of)  # signals are asked for again and again


class DecoratedFunctionConfig(Frozen):
    """A function in the place of a marked method, or another priority for it; None leaves it as it is."""

    fn: str | None = None
    priority: int | None = None


class RewardFunctionConfig(DecoratedFunctionConfig):
    """The same for a reward, with its weight."""

    weight: float | None = Field(None, allow_inf_nan=False)


class TaskConfig(Frozen):
    """Subclass it to add options of a task.

    Functions are "pkg.module.function", "pkg.module:function" or "path/file.py:function"; they take `task`, `trace`
    and `runtime` by name and have no `self`.
    """

    model_config = ConfigDict(validate_default=True)

    judges: tuple[SerializeAsAny[JudgeConfig], ...] = ()
    stops: dict[str, DecoratedFunctionConfig] = Field(default_factory=dict)
    metrics: dict[str, DecoratedFunctionConfig] = Field(default_factory=dict)
    rewards: dict[str, RewardFunctionConfig] = Field(default_factory=dict)

    _made: tuple[Judge[Any, Any], ...] | None = PrivateAttr(None)

    @property
    def made_judges(self) -> tuple[Judge[Any, Any], ...]:
        """The judges, made once. Raises ValueError for one that cannot be made."""
        if self._made is None:
            self._made = tuple(make_judge(config) for config in self.judges)
        return self._made

    @field_validator("judges", mode="before")
    @classmethod
    def _by_id(cls, entries: Any) -> tuple[JudgeConfig, ...]:
        return resolve_judges(entries)


def said(config: BaseModel) -> dict[str, Any]:
    """What was said in a config, as material for one of another class; what was left open is that class's to fill."""
    return {name: getattr(config, name) for name in config.model_fields_set}


ConfigT_co = TypeVar("ConfigT_co", bound=TaskConfig, covariant=True, default=TaskConfig)


def with_plugged(kind: Kind, own: tuple[Signal, ...], config: TaskConfig) -> tuple[Signal, ...]:
    """A task's marked methods with what its config says of them.

    Raises ValueError for an entry that names neither a function nor a method, and for a function that is not there.
    """
    tables: dict[str, Mapping[str, DecoratedFunctionConfig]] = {
        "stop": config.stops,
        "metric": config.metrics,
        "reward": config.rewards,
    }
    entries = tables.get(kind)
    if not entries:
        return own
    signals = {signal.name: signal for signal in own}
    for name, entry in entries.items():
        signals[name] = _plugged(kind, name, entry, signals.get(name))
    return in_order(list(signals.values()))


def _plugged(kind: Kind, name: str, entry: DecoratedFunctionConfig, own: Signal | None) -> Signal:
    if own is None and entry.fn is None:
        raise ValueError(f"no @vf.{kind} method named {name!r}: give the entry a `fn`, or name a method there is")
    weight = getattr(entry, "weight", None)
    signal = Signal(
        own.kind if own else kind,
        name,
        (own.weight if own else 1.0) if weight is None else weight,
        (own.priority if own else 0) if entry.priority is None else entry.priority,
        own.takes_runtime if own else False,
        own.needs_runtime if own else False,
        own.at if own else "",
        own.given if own else (),
    )
    if entry.fn is None:
        return signal
    try:
        return plugged(signal, _function(entry.fn))
    except TypeError as err:
        raise ValueError(f"{kind} {name!r}: {err}") from err
    except ConfigError as err:
        raise ValueError(str(err)) from err
