"""The task of a judge with a sandbox: look at what an agent did, and write a verdict into a file."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

from forkyard.env.verdict import LIMIT, VERDICT, read_verdict
from forkyard.errors import NotAFile, TaskError, TooLarge
from forkyard.grade import NOTHING, place
from forkyard.sandbox import Network, Sandbox
from forkyard.secrets import Secrets, redact
from forkyard.task import Task, TaskData
from forkyard.task.judges import Criterion
from forkyard.task.machine import Networks, Origin
from forkyard.trace import Trace
from forkyard.values import strict_json

TRACE = "/tmp/trace.json"
_HIDDEN = frozenset({"reasoning_content", "provider_state"})
_NOT_SHOWN = frozenset({"token_ids", "prompt_token_ids", "logprobs", "branches"})


class JudgeTask(Task[TaskData]):
    """Made `about` a task, then `on` a rollout of it; it works in a sandbox like the solver's, and is not graded."""

    NEEDS_CONTAINER = True
    scoring_deferred = True
    _of: Task
    _record: bytes = b"{}"
    _criteria: Sequence[Criterion] = ()
    _artifacts: Mapping[str, bytes | None] = MappingProxyType({})
    _archive: bytes = NOTHING

    @classmethod
    def about(cls, task: Task, prompt: str) -> JudgeTask:
        """The judge's task for any rollout of a task, with the solver's image, working directory, bounds, network."""
        data = task.data
        made = cls(
            TaskData(
                name=task.name,
                prompt=prompt,
                image=data.image,
                workdir=data.workdir,
                resources=data.resources,
                verifier="shared",
            )
        )
        made._of = task
        return made

    def on(self, solver: Trace, criteria: Sequence[Criterion], *, hidden: bool, secrets: Secrets) -> Self:
        """A copy that shows one rollout."""
        other = copy.copy(self)
        left_out = _NOT_SHOWN if hidden else _NOT_SHOWN | _HIDDEN
        other._record = strict_json(redact(_without(solver.to_record(), left_out), secrets)).encode()
        other._criteria = criteria
        return other

    def with_artifacts(self, collected: Mapping[str, bytes | None], archive: bytes) -> Self:
        """A copy that puts what was collected at its places."""
        other = copy.copy(self)
        other._artifacts, other._archive = collected, archive
        return other

    @property
    def origin(self) -> Origin:
        """The solver's, without its services."""
        return replace(self._of.origin, compose=None, has_image=False)

    @property
    def network(self) -> Network | None:
        """The solver's."""
        return self._of.network

    @property
    def networks(self) -> Networks:
        """The solver's."""
        return replace(self._of.networks, verifier=None)

    def runtime_env(self) -> Mapping[str, str]:
        """The solver's."""
        return self._of.runtime_env()

    async def setup(self, runtime: Sandbox) -> None:
        """Put the artifacts in place, then the record; no verdict is there yet, whatever was handed in."""
        await place(runtime, self._artifacts, self._archive)
        await place(runtime, [TRACE, VERDICT], NOTHING)
        await runtime.write(TRACE, self._record)

    async def finalize(self, trace: Trace, runtime: Sandbox) -> None:
        """Read the verdict. Raises TaskError when there is none, ValueError for one that is none."""
        try:
            text = await runtime.read(VERDICT, LIMIT)
        except (OSError, NotAFile, TooLarge) as err:
            raise TaskError(f"the judge wrote no verdict to {VERDICT}; it must end by writing one ({err})") from None
        trace.info["verdict"] = text.decode("utf-8", "replace")
        trace.info["judged"] = read_verdict(text, self._criteria)


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _without(item, names) for key, item in value.items() if key not in names}
    if isinstance(value, list | tuple):
        return [_without(item, names) for item in value]
    return value
