"""Which rollouts can be graded again, and why not the others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from forkyard.env import Seat
from forkyard.env.checks import separate_problems
from forkyard.grade.again import collected_in
from forkyard.grade.evidence import ARTIFACTS, ARTIFACTS_LIST
from forkyard.grade.logs import COLLECTED_LIST
from forkyard.run.source import SourceRun
from forkyard.sandbox import Provider
from forkyard.sandbox.keeping import KeepsDisks
from forkyard.task import State, Task, VerifierMode
from forkyard.task.data import ARTIFACTS_DIR
from forkyard.trace.store import Record, TaskSample, was_graded

_JUDGED = "judges grade it: to ask them again costs, and is another opinion; --ask-judges does so"


@dataclass(frozen=True, slots=True)
class Eligibility:
    """What decides. `disks` are the names of the disks that are kept, `unloadable` why tasks are missing, if known."""

    source: SourceRun
    tasks: Mapping[str, Task]
    seat: Seat
    disks: Set[str]
    mode: VerifierMode | None = None
    unloadable: str = ""
    ask_judges: bool = False

    def refusal(self, slot: TaskSample) -> str | None:
        """Why the rollout of a slot cannot be graded again, None when it can."""
        record = self.source.record(slot)
        if record is None:
            return "it has not been played: go on with its run first"
        task = self.tasks.get(slot[0])
        return self._why_not_graded(record) or (self._why_not_by_task(record, task) if task else self._why_no_task())

    def mode_of(self, record: Record) -> VerifierMode:
        """Where a rollout is graded again: as it was, or as somebody asks."""
        return self.mode or cast(VerifierMode, _mode(record))

    def _why_not_graded(self, record: Record) -> str | None:
        status, mode = record.get("status"), _mode(record)
        if not was_graded(record):
            return f"it ended as {status} and was never graded"
        if mode is None:
            return f"it was never graded ({record.get('reason') or status})"
        own = self.seat.provider.name
        if record.get("provider") != own:
            return f"it was played on the provider {record.get('provider')}, and the run's is {own}"
        return None

    def _why_no_task(self) -> str:
        return f"its task cannot be loaded: {self.unloadable}" if self.unloadable else "its task is no longer there"

    def _why_not_by_task(self, record: Record, task: Task) -> str | None:
        if not self.ask_judges and (_asks(task) or any(map(_is_judges, record.get("calls") or ()))):
            return _JUDGED
        return _why_no_rollout(task) or self._why_not_from_what_is_left(record, task)

    def _why_not_from_what_is_left(self, record: Record, task: Task) -> str | None:
        mode = self.mode_of(record)
        if mode == "separate" and (problems := separate_problems(task, self.seat)):
            return problems[0]
        if _mode(record) == "shared":
            return self._why_not_after_shared(record, task, mode)
        if _mode(record) == "separate":
            if mode != "separate":
                return "it was verified in a sandbox of its own: the artifacts are kept, and no disk"
            return _why_not_from_artifacts(self.source.collected(record), task)
        if str(record["id"]) in self.disks:
            return None
        return _why_no_disk(record, self.seat.provider)

    def _why_not_after_shared(self, record: Record, task: Task, mode: VerifierMode) -> str | None:
        """Its verifier was at work on the agent's disk, so that is not kept; what was collected before is."""
        collected = self.source.collected(record)
        there = (collected / COLLECTED_LIST).is_file()
        if there and mode == "separate":
            return _why_not_from_artifacts(collected, task)
        why = "it was graded in the agent's own sandbox, among the hidden files, and no disk is kept of that: "
        instead = "grade its artifacts with --verifier separate, or play it" if there else "play it"
        return f"{why}{instead} with --verifier forked, which keeps what the agent left"


def foreseen(task: Task, mode: VerifierMode) -> str | None:
    """Why no rollout of a task can be graded again as it was, as far as that is known before it is played."""
    if _asks(task):
        return _JUDGED
    if why := _why_no_rollout(task):
        return why
    if mode != "shared":
        return None
    instead = "its artifacts can, by --verifier separate; " if task.data.artifacts else ""
    return f"it is graded in the agent's own sandbox; {instead}played with --verifier forked it can"


def _is_judges(call: Mapping[str, Any]) -> bool:
    """Whether a call on a line was a judge's."""
    return call.get("purpose") == "judge"


def _asks(task: Task) -> bool:
    return bool(task.plugged_judges() or task.models_asked)


def _why_no_rollout(task: Task) -> str | None:
    if task.in_stages() is not None:
        return "its task has several steps, of which only the last one's disk would be there"
    if type(task).state_type() is not State:
        return f"its task keeps what it knows in {type(task).state_type().__name__}, which is not on the record"
    return None


def _mode(record: Record) -> Any:
    verifier = record.get("verifier")
    return verifier.get("mode") if isinstance(verifier, dict) else None


def _why_no_disk(record: Record, provider: Provider) -> str:
    if not isinstance(provider, KeepsDisks):
        return f"the provider {provider.name} keeps no disks"
    told = (record.get("info") or {}).get("disk")
    return f"its disk was {told}" if told else "its disk was pruned, or never kept"


def _why_not_from_artifacts(directory: Path, task: Task) -> str | None:
    try:
        collected = collected_in(directory)
        excluded = _excluded(directory.parent / ARTIFACTS / ARTIFACTS_LIST)
    except (OSError, ValueError) as err:
        return f"what was collected of it cannot be read: {err}"
    known = [each for each in task.data.artifacts if each.source in excluded]
    if changed := sorted(each.source for each in known if set(each.exclude) != excluded[each.source]):
        return f"its task leaves out other parts of artifacts than it did: {', '.join(changed)}"
    declared = {artifact.source for artifact in task.data.artifacts if artifact.source.startswith("/")}
    missing = sorted(source for source in declared if source.rstrip("/") not in collected and source != ARTIFACTS_DIR)
    return f"its task declares artifacts that were not collected: {', '.join(missing)}" if missing else None


def _excluded(manifest: Path) -> dict[str, set[str]]:
    """What was left out of each artifact, by its source. Raises OSError, and ValueError for what is no manifest."""
    try:
        return {str(entry["source"]): set(entry["exclude"]) for entry in json.loads(manifest.read_bytes())}
    except (TypeError, KeyError) as err:
        raise ValueError(f"{manifest} is no manifest") from err
