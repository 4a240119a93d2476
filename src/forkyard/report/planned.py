"""What was planned of the runs that a report is on: how many rollouts, and under which setting."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forkyard.trace import SINGLE_AGENT, unit_of
from forkyard.trace.store import PLAN_FILE, TRACES_FILE, Record, slot_of
from forkyard.values import counted

SETTINGS = ("base", "action")  # rollouts that were graded again are not new samples
IGNORED = ("max_concurrent_agents", "retries")  # they change how long it takes, not how well it is done
TOKENS = "return_token_ids"
SAID_APART = ("model", "verifier")  # of an agent; every line has them


@dataclass(slots=True)
class PlannedRun:
    """A run as its directory tells it.

    `run` is its name on its lines, `name` what a report calls it: the directory's path when another run bears the same
    name. `tasks` and `samples` say what was planned, of which `chosen` is played when there are any; nobody knows when
    `flaw` says that the plan cannot be read.
    """

    run: str
    name: str
    directory: Path
    created: Any = None
    setting: str = ""
    tasks: frozenset[str] = frozenset()
    samples: int = 0
    chosen: frozenset[tuple[str, int]] = frozenset()
    unit: str = "rollout"
    flaw: str | None = None
    seen: set[tuple[str, int]] = field(default_factory=set)
    tokens_asked: bool = False
    tokens_told: bool = False
    replies: int = 0

    @property
    def planned(self) -> int:
        """How many rollouts, or episodes of several, the whole run is."""
        return len(self.chosen) or len(self.tasks) * self.samples

    @property
    def recorded(self) -> int:
        """How many of them are on record, counting what was given to `add`."""
        return len(self.seen)

    def add(self, record: Record) -> None:
        """Count a line of the run."""
        if self.tokens_asked and not self.tokens_told and record.get("trainable") is not False:
            self.replies += bool(record.get("steps"))
            self.tokens_told = _tells_tokens(record)
        slot = slot_of(record)
        if slot is None or (self.chosen and slot not in self.chosen):
            return
        if slot[0] in self.tasks and 0 <= slot[1] < self.samples:
            self.seen.add(slot)

    @property
    def notes(self) -> Iterator[str]:
        """What a reader has to know of it."""
        if self.flaw is not None:
            yield f"{self.directory / PLAN_FILE} {self.flaw}: whether run {self.name} is finished is not known"
        elif self.recorded < self.planned:
            yield (
                f"run {self.name} is unfinished: planned {counted(self.planned, self.unit)}, have {self.recorded}; its "
                f"numbers are interim (unless it is at work: forkyard resume {shlex.quote(str(self.directory))})"
            )
        if self.tokens_asked and self.replies and not self.tokens_told:
            yield (
                f"run {self.name} asked for token ids (sampling.{TOKENS}), and no reply of it has any: its provider "
                "does not tell them, so its lines cannot train a model token by token"
            )


def planned_runs(files: Iterable[Path]) -> dict[Path, PlannedRun]:
    """The runs of those files that lie beside a plan, by file."""
    runs = {file: run for file in files if file.name == TRACES_FILE and (run := _read(file.parent))}
    doubles = []
    for run in runs.values():
        others = [other for other in runs.values() if other is not run]
        if any(other.name == run.name and other.created != run.created for other in others):
            doubles.append(run)
    for run in doubles:
        run.name = str(run.directory)
    return runs


def _read(directory: Path) -> PlannedRun | None:
    name = directory.name
    try:
        plan = json.loads((directory / PLAN_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as err:
        return PlannedRun(name, name, directory, flaw=f"cannot be read ({err.strerror})")
    except (ValueError, RecursionError):
        return PlannedRun(name, name, directory, flaw="is damaged")
    name, tasks, samples = _field(plan, "run", str), _field(plan, "tasks", dict), _field(plan, "samples", int)
    if not name or tasks is None or samples is None:
        return PlannedRun(directory.name, directory.name, directory, flaw="is no plan of a run")
    return PlannedRun(
        *(name, name, directory, str(plan.get("created")), _setting(plan)),
        tasks=frozenset(tasks),
        samples=samples,
        chosen=frozenset(_chosen(plan)),
        unit=unit_of(plan.get("env", SINGLE_AGENT)),
        tokens_asked=_asks_for_tokens(plan),
    )


def _asks_for_tokens(plan: dict[str, Any]) -> bool:
    """Whether what agents inherit, or what one of the env's is told, asks for token ids."""
    seats = [plan.get("agent"), *(_field(plan, "env_config", dict) or {}).values()]
    for sampling in (_field(seat, "sampling", dict) or {} for seat in seats):
        if sampling.get(TOKENS) or (_field(sampling, "extra_body", dict) or {}).get(TOKENS):
            return True
    return False


def _tells_tokens(record: Record) -> bool:
    rows = [row for name in ("branches", "calls") if isinstance(found := record.get(name), list) for row in found]
    return any(isinstance(row, dict) and row.get("token_ids") for row in rows)


def _chosen(plan: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """The slots of a run that took some rollouts of another one."""
    for task, samples in (_field(plan, "regraded", dict) or {}).items():
        yield from ((task, sample) for sample in samples if isinstance(sample, int))


def _field(plan: Any, name: str, kind: type[Any]) -> Any:
    value = plan.get(name) if isinstance(plan, dict) else None
    return value if isinstance(value, kind) else None


def _setting(plan: dict[str, Any]) -> str:
    """What of the plan bears on how well an agent does, the tasks, the harness and the model aside."""
    given = {name: plan.get(name) for name in SETTINGS}
    for table in (*_of_the_agent(plan), _field(plan, "env_config", dict), _field(plan, "taskset_config", dict)):
        given |= dict(_flat(table or {}))
    return ", ".join(f"{name} {given[name]}" for name in sorted(given) if given[name] is not None)


def _of_the_agent(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What agents inherit of the plan; of their harness and their provider that is the options."""
    agent = _field(plan, "agent", dict) or {}
    for name, theirs in (("harness", "id"), ("runtime", "type"), ("sampling", "")):
        table = _field(agent, name, dict) or {}
        yield {key: value for key, value in table.items() if key != theirs}
    yield {key: agent[key] for key in agent if key not in (*SAID_APART, "harness", "runtime", "sampling")}


def _flat(table: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if name in IGNORED:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value
