"""The help of a model's flags, made from its types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from rich.cells import cell_len

from forkyard.cli.dotted.fill import flag
from forkyard.cli.dotted.types import fields_of, is_switch, members, model_of, named
from forkyard.values import strict_json

WIDEST = 44


@dataclass(frozen=True, slots=True)
class Option:
    """One flag: what it is called, what it takes, what it is by default, what it does."""

    flags: tuple[str, ...]
    takes: str
    default: str
    about: str


def options_of(
    model: type[BaseModel], aliases: Mapping[str, str] | None = None, above: tuple[str, ...] = ()
) -> Iterator[Option]:
    """The flags of a model in order, those of its tables among them; `aliases` are other names of flags."""
    yield from _options(model, None, aliases or {}, above)


def _options(
    model: type[BaseModel], instance: BaseModel | None, aliases: Mapping[str, str], above: tuple[str, ...]
) -> Iterator[Option]:
    for name, field in fields_of(model).items():
        key = (*above, name)
        inner = model_of(field.annotation)
        default = getattr(instance, name, None) if instance is not None else _default(field)
        plain = [kind for kind in members(field.annotation) if kind is not NoneType and kind is not inner]
        if inner is None or not inner.model_fields or plain:
            long = flag(key)
            short = tuple(alias for alias, target in aliases.items() if target == long)
            yield Option((*short, long), _takes(field, inner), _shown(default), field.description or "")
        if inner is not None and inner.model_fields:
            yield from _options(inner, default if isinstance(default, inner) else None, aliases, key)


def _takes(field: FieldInfo, inner: type[BaseModel] | None) -> str:
    if is_switch(field.annotation):
        return ""
    return " or ".join(
        dict.fromkeys(named(kind) for kind in members(field.annotation) if kind not in (NoneType, inner))
    )


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True) if not field.is_required() else PydanticUndefined


def _shown(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None or value is False or value in ((), [], {}, ""):
        return ""
    if isinstance(value, str | Path | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, BaseModel):
        return value.model_dump_json(exclude_defaults=True)
    return strict_json(value)


def help_text(options: Iterator[Option] | list[Option]) -> str:
    """One line for each option, the meanings under each other."""
    rows = [(_head(option), _tail(option)) for option in options]
    width = min(WIDEST, max((cell_len(head) for head, _ in rows), default=0))
    lines = []
    for head, tail in rows:
        gap = "\n" + " " * (width + 4) if cell_len(head) > width and tail else " " * (width - cell_len(head) + 2)
        lines.append(f"  {head}{gap}{tail}".rstrip())
    return "\n".join(lines)


def _head(option: Option) -> str:
    return ", ".join(option.flags) + (f" {option.takes}" if option.takes else "")


def _tail(option: Option) -> str:
    default = f"[{option.default}]" if option.default else ""
    return " ".join(part for part in (option.about, default) if part)
