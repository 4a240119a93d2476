"""What all tables of task.toml have in common: unknown keys and wrong types are refused, values are frozen."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from forkyard.task.directory.fields import Host

NetworkMode = Literal["no-network", "public", "allowlist"]
Item = TypeVar("Item")
Several = Annotated[tuple[Item, ...], Field(strict=False)]  # TOML has lists, a frozen value has tuples


class Table(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Networked(Table):
    """The keys by which a baseline or a phase says what it may reach."""

    network_mode: NetworkMode | None = None
    allowed_hosts: Several[Host] | None = None

    @field_validator("allowed_hosts")
    @classmethod
    def _only_with_allowlist(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("network_mode", "allowlist") != "allowlist":
            raise ValueError('has no meaning without network_mode = "allowlist"')
        return value
