"""The Plan: everything one run was asked for, and everything that is needed to go on with it later."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forkyard.errors import ConfigError
from forkyard.task import VerifierMode
from forkyard.values import counted, printable

KEY_VARIABLE = "OPENAI_API_KEY"


def new_run_name() -> str:
    """`run-<UTC date>-<time>-<4 hex digits>`."""
    return f"run-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedTask(_Frozen):
    """One task as it was when the run began; `notes` are what a user should know before trusting its results."""

    digest: str
    notes: tuple[str, ...] = ()


class Plan(_Frozen):
    """One run. `tasks` is empty until the tasks were read; it then holds every task's name in the order of play.

    The model's key is never part of it: `api_key_env` names the variable that holds it.
    """

    run: str = Field(default_factory=new_run_name)
    out: Path = Path("runs")
    paths: tuple[Path, ...]
    harness: str
    options: dict[str, str] = Field(default_factory=dict)
    model: str | None = None
    base_url: str | None = None
    api_key_env: str = KEY_VARIABLE
    samples: int = Field(1, ge=1)
    concurrent: int = Field(4, ge=1)
    provider: str = "local"
    verifier: VerifierMode | None = None
    base: str | None = None
    unbounded: bool = False  # whether tasks are played without the bounds that the provider cannot keep
    max_turns: int | None = Field(None, ge=1)
    agent_timeout: float | None = Field(None, gt=0, allow_inf_nan=False)
    retries: int = Field(2, ge=0, le=10)
    limit: int | None = Field(None, ge=1)
    forkyard: str = Field(default_factory=lambda: version("forkyard"))
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))
    tasks: dict[str, PlannedTask] = Field(default_factory=dict)

    @property
    def planned(self) -> int:
        """How many rollouts the whole run is."""
        return len(self.tasks) * self.samples


def read_plan(path: Path) -> Plan:
    """A plan that was saved. Raises ConfigError when there is none, or it cannot be read."""
    try:
        return Plan.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path.parent} is no run: {_instead(path)}") from None
    except OSError as err:
        raise ConfigError(f"{path} cannot be read: {err.strerror}") from None
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(printable(f"{path} is no plan of a run: {where}: {first['msg']}")) from None


def _instead(path: Path) -> str:
    """What somebody who named no run may have meant: one that lies in it, or the one of that name in ./runs."""
    inside = [plan.parent for plan in path.parent.glob(f"*/{path.name}")]
    if inside:
        latest = max(inside, key=lambda run: run.stat().st_mtime)
        return f"it holds {counted(len(inside), 'run')}; name one of them, as {latest}"
    default = Path("runs") / path.parent
    if (default / path.name).is_file():
        return f"did you mean {default}?"
    return f"it holds no {path.name}" if path.parent.is_dir() else "it does not exist"


def check_name(run: str) -> None:
    """Raises ConfigError for a run name that is not the name of one directory."""
    if not run or run in (".", "..") or "/" in run or not run.isprintable() or len(run.encode()) > 200:
        raise ConfigError(f"{run!r} cannot be a run's name: it becomes the name of one directory")
