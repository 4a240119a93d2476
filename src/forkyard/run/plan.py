"""The Plan: everything one run was asked for, and everything that is needed to go on with it later."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from forkyard.env.config import AgentConfig, HarnessChoice
from forkyard.errors import ConfigError
from forkyard.model.place import API_KEY
from forkyard.run.places import out_of
from forkyard.trace import SINGLE_AGENT, unit_of
from forkyard.trace.store import PLAN_FILE
from forkyard.values import counted, validation_problems


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

    Its tasks are those of `paths`, and of `registered`: sets of `registry` by name@version, and git repositories at a
    commit; or of the installed `taskset`. `select` chooses among them. `env_config` is what the env's class of
    configuration takes, and `agent` what all of its agents inherit. `source` is the run that this one took its
    rollouts from, and `action` how: replayed, all of them, or graded again, those samples of each task that are
    `regraded`, by `tests` in the place of the task's own. The models' keys are never part of it: `api_key_env` names
    the variable that holds one.
    """

    run: str = Field(default_factory=new_run_name)
    out: Path = Path("runs")
    directory: str | None = None  # its name in `out`; the run's own when None
    disk: str | None = None  # the named disk that its lines go to as well
    paths: tuple[Path, ...] = ()
    registered: tuple[str, ...] = ()
    registry: Path | None = None
    taskset: str | None = None
    taskset_config: dict[str, Any] = Field(default_factory=dict)
    select: dict[str, Any] = Field(default_factory=dict)
    env: str = SINGLE_AGENT
    env_config: dict[str, Any] = Field(default_factory=dict)
    agent: AgentConfig
    base_url: str | None = None
    api_key_env: str = API_KEY
    upstreams: Path | None = None
    prices: Path | None = None
    budget_usd: float | None = Field(None, gt=0, allow_inf_nan=False)
    samples: int = Field(1, ge=1)
    concurrent: int | None = Field(4, ge=1)  # None is as many as there are
    verifier_env: dict[str, str] = Field(default_factory=dict)  # over what tasks say to their verifiers
    base: str | None = None
    unbounded: bool = False  # whether tasks are played without the bounds that the provider cannot keep
    retries: int = Field(2, ge=0, le=10)
    limit: int | None = Field(None, ge=1)
    source: Path | None = None
    action: Literal["replay", "regrade"] | None = None
    regraded: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    tests: Path | None = None
    ask_judges: bool = False  # whether what judges graded is graded again, too
    forkyard: str = Field(default_factory=lambda: version("forkyard"))
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))
    tasks: dict[str, PlannedTask] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_tasks(self) -> Self:
        if bool(self.paths or self.registered) == (self.taskset is not None):
            raise ValueError("name either paths of tasks or sets of a registry, or a taskset that is installed")
        return self

    @model_validator(mode="after")
    def _has_a_harness(self) -> Self:
        if self.agent.harness is None:
            raise ValueError("the agent needs a harness")
        return self

    @property
    def harness(self) -> HarnessChoice:
        """What plays where an agent of the env names nothing else."""
        assert self.agent.harness is not None
        return self.agent.harness

    @property
    def place(self) -> Path:
        """The run's directory."""
        return self.out / (self.directory or self.run)

    @property
    def unit(self) -> str:
        """What is planned and counted: rollouts, or episodes that may be of several."""
        return unit_of(self.env)

    @property
    def planned(self) -> int:
        """How many episodes the whole run is: rollouts, in an env of one agent."""
        return sum(map(len, self.regraded.values())) if self.regraded else len(self.tasks) * self.samples

    def holds(self, task: str, sample: int) -> bool:
        """Whether a slot is one of the plan's."""
        known = task in self.tasks and 0 <= sample < self.samples
        return known and (not self.regraded or sample in self.regraded.get(task, ()))


def plan_of(**options: Any) -> Plan:
    """The plan of these options; an `out` of disk:NAME is that disk. Raises ConfigError with all that is wrong."""
    if "out" in options:
        options |= out_of(options["out"])
    try:
        return Plan(**options)
    except ValidationError as err:
        raise ConfigError(*validation_problems(err)) from None


def is_run(place: Path) -> bool:
    """Whether a directory holds a run, if one whose plan cannot be read."""
    return (place / PLAN_FILE).is_file()


def read_plan(place: Path) -> Plan:
    """The plan of the run in a directory. Raises ConfigError when there is none, or it cannot be read."""
    path = place / PLAN_FILE
    try:
        return Plan.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{place} is no run: {_instead(path)}") from None
    except OSError as err:
        raise ConfigError(f"{path} cannot be read: {err.strerror}") from None
    except ValidationError as err:
        raise ConfigError(validation_problems(err, f"{path} is no plan of a run: ")[0]) from None


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
