"""The Task: what an agent is asked, where it starts, and what its work is worth."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Self

from typing_extensions import TypeVar

from forkyard.errors import ForkyardError, InterceptionError, ModelError, SandboxError, TaskError, boundary
from forkyard.sandbox import Feature, Network, Sandbox
from forkyard.sandbox.promises import network_features
from forkyard.secrets import Secrets
from forkyard.task.data import TaskData
from forkyard.task.hooks import Signal, discover, invoke, required_parameters
from forkyard.trace import Status, Trace

DataT_co = TypeVar("DataT_co", bound=TaskData, covariant=True, default=TaskData)

HOOKS = ("setup", "finalize", "stage_verifier", "validate")
_NOT_THE_TASK = (SandboxError, ModelError, InterceptionError)
_log = logging.getLogger(__name__)


class Task(Generic[DataT_co]):
    """Subclass it to write a task in Python: add hooks, and methods marked `@reward` or `@metric`.

    One object may serve many rollouts at once and keeps nothing about any of them. Class definition raises TypeError
    for a hook with a parameter that no hook is given.
    """

    NEEDS_CONTAINER: ClassVar[bool] = False  # its commands must not reach the host
    _source: str | None = None  # the digest of the file that its code is from, when it was loaded from one

    def __init__(self, data: DataT_co) -> None:
        self.data = data

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in HOOKS:
            required_parameters(cls, name)
        discover(cls, "reward")
        discover(cls, "metric")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        """What people call it."""
        return self.data.name or self.data.id or type(self).__name__

    @property
    def hash(self) -> str:
        """SHA-256 of the data as JSON with sorted keys and without nulls."""
        values = self.data.model_dump(mode="json", exclude_none=True)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    @property
    def key(self) -> str:
        """What tells it from the other tasks of its set; resuming a run goes by it."""
        return self.hash

    @property
    def digest(self) -> str:
        """What tells its content from any other content; it goes on the record.

        The code counts when the task was loaded from a Python file; otherwise the data alone.
        """
        if self._source is None:
            return self.hash
        return f"sha256:{hashlib.sha256(f'{self.hash} {self._source}'.encode()).hexdigest()}"

    def of_source(self, digest: str) -> Self:
        """A copy that knows the digest of the file its code is from."""
        other = copy.copy(self)
        other._source = digest
        return other

    def with_data(self, **update: Any) -> Self:
        """A copy with other data; raises pydantic's ValidationError for values the data refuses."""
        given = {name: getattr(self.data, name) for name in self.data.model_fields_set}
        other = copy.copy(self)
        other.data = type(self.data)(**{**given, **update})
        return other

    def with_system_prompt(self, text: str) -> Self:
        """A copy with another system prompt."""
        return self.with_data(system_prompt=text)

    # What the task asks of the machine.

    @property
    def build_context(self) -> Path | None:
        """The directory holding the Dockerfile of the agent's sandbox, when the image is to be built."""
        return None

    @property
    def network(self) -> Network | None:
        """What the agent may reach; None when the task does not say, which is nothing."""
        return self.data.network

    @property
    def setup_network(self) -> Network | None:
        """What the sandbox reaches until the agent acts; None for what the agent may."""
        return None

    @property
    def verifier_network(self) -> Network | None:
        """What the sandbox that grades reaches; None for what the agent may."""
        return None

    @property
    def needs(self) -> frozenset[Feature]:
        """The features of a provider that the task cannot do without."""
        needs = set()
        if self.NEEDS_CONTAINER:
            needs.add(Feature.ISOLATED)
        if self.data.image or self.build_context:
            needs.add(Feature.IMAGES)
        if self.data.agent_user not in (None, "root", "0"):
            needs.add(Feature.USERS)
        return frozenset(needs | self._network_needs())

    def _network_needs(self) -> set[Feature]:
        asked = (self.network, self.setup_network, self.verifier_network)
        networks = {network for network in asked if network is not None}
        needs = {feature for network in networks for feature in network_features(network)}
        return needs | ({Feature.LIVE_NETWORK} if len(networks) > 1 else set())

    def where(self, field: str) -> str:
        """Where a field of the data is written, as a user finds it to change it; "" is the task itself."""
        return f"task {self.name}, {field} of its {type(self.data).__name__}" if field else f"task {self.name}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know before trusting its results, one sentence each."""
        return ()

    @property
    def build_seconds(self) -> float | None:
        """How long the build of its image may take; None leaves it to whoever builds."""
        return None

    @property
    def secrets(self) -> Secrets:
        """Values that appear on no record: whoever writes one hides them."""
        return Secrets()

    def runtime_env(self) -> Mapping[str, str]:
        """Environment variables of every process in the sandbox; live only, never put on a trace."""
        return {}

    @property
    def solution(self) -> Path | None:
        """The directory of the reference solution (solve.sh), if there is one."""
        return None

    def solution_env(self) -> Mapping[str, str]:
        """Environment variables of the reference solution, on top of `runtime_env`; never put on a trace."""
        return {}

    # Hooks. Overrides declare the parameters they want, see `hooks.invoke`.

    async def setup(self, *args: Any, **kwargs: Any) -> None:
        """Prepare the sandbox before the agent acts."""

    async def finalize(self, *args: Any, **kwargs: Any) -> None:
        """Look at the sandbox after the agent has ended."""

    async def stage_verifier(self, *args: Any, **kwargs: Any) -> None:
        """Put hidden files into the sandbox that grades, after the agent's processes and credentials are gone."""

    async def validate(self, *args: Any, **kwargs: Any) -> bool | None:
        """Check the task itself, without an agent; None when there is nothing to check."""
        return None

    async def score(self, trace: Trace, runtime: Sandbox | None = None) -> None:
        """Record every metric, then every reward, and settle the trace's status when it is undecided.

        Signals of one kind run concurrently. Without a runtime, those that need one are skipped. Raises TaskError
        when a signal fails, after the others have been recorded; errors of the machine or of a model pass through
        and leave the status to the caller. Past the task's scoring deadline what was recorded stands, and the rest
        stays missing.
        """
        try:
            async with asyncio.timeout(self.data.timeout.scoring):
                await self._score(trace, runtime)
        except TimeoutError:
            trace.is_timeout = True
            trace.verifier["timed_out"] = True
            trace.settle(Status.INDETERMINATE, f"scoring took longer than {self.data.timeout.scoring:g} s")

    async def _score(self, trace: Trace, runtime: Sandbox | None) -> None:
        metrics, no_metrics = _runnable(discover(type(self), "metric"), runtime)
        rewards, no_rewards = _runnable(discover(type(self), "reward"), runtime)
        for signal in no_metrics + no_rewards:
            _log.info("%s %s of %s is skipped: it needs a sandbox", signal.kind, signal.name, self.name)
        trace.metrics.update(dict.fromkeys(signal.name for signal in metrics))
        trace.rewards.update(dict.fromkeys(signal.name for signal in rewards))
        failures = await self._measure(metrics, trace, runtime)
        failures += await self._measure(rewards, trace, runtime)
        if failures:
            raise _settled(trace, failures)
        trace.settle(*_verdict(trace, [signal.name for signal in no_rewards]))

    async def _measure(self, signals: list[Signal], trace: Trace, runtime: Sandbox | None) -> list[Exception]:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self._deliver(signal, trace, runtime)) for signal in signals]
        return [failure for task in running if not task.cancelled() and (failure := task.result())]

    async def _deliver(self, signal: Signal, trace: Trace, runtime: Sandbox | None) -> Exception | None:
        what = f"task {type(self).__name__} scoring"
        try:
            with boundary(TaskError, what):
                value = await invoke(getattr(self, signal.name), task=self.data, trace=trace, runtime=runtime)
                _record(trace, signal, value)
        except TimeoutError as err:  # the hook's own deadline; the caller's arrives as a cancellation
            error = TaskError(f"{what}: TimeoutError: {err or 'a deadline passed'}")
            error.__cause__ = err
            return error
        except ForkyardError as err:
            return err
        return None


def _runnable(signals: tuple[Signal, ...], runtime: Sandbox | None) -> tuple[list[Signal], list[Signal]]:
    skipped = [signal for signal in signals if runtime is None and signal.needs_runtime]
    return [signal for signal in signals if signal not in skipped], skipped


def _record(trace: Trace, signal: Signal, value: Any) -> None:
    """Record a number under the signal's name, or each number of a mapping under its own key instead."""
    record: dict[str, Any] = trace.metrics if signal.kind == "metric" else trace.rewards
    values = value if isinstance(value, Mapping) else {signal.name: value}
    numbers = {str(key): float(number) for key, number in values.items()}
    if signal.kind == "reward" and not numbers:
        raise ValueError(f"{signal.name} returned an empty mapping, so there is no reward")
    for key, number in numbers.items():
        if not math.isfinite(number):
            raise ValueError(f"{key!r} is {number}, not a finite number")
        if key != signal.name and key in record:
            raise ValueError(f"{signal.name} returned {key!r}, but another {signal.kind} is called that")
    if signal.name not in numbers:
        del record[signal.name]
    for key, number in numbers.items():
        if signal.kind == "metric":
            trace.record_metric(key, number)
        else:
            trace.record_reward(key, number, signal.weight)


def _verdict(trace: Trace, skipped: list[str]) -> tuple[Status, str | None]:
    missing = [name for name, reward in trace.rewards.items() if reward is None]
    if missing:
        return Status.SCORING_ERROR, f"no reward was delivered by {', '.join(missing)}"
    if skipped:
        return Status.INDETERMINATE, f"graded without a sandbox, which {', '.join(skipped)} needs"
    if not trace.rewards:
        return Status.INDETERMINATE, "the task has no rewards"
    return Status.SCORED, None


def _settled(trace: Trace, failures: list[Exception]) -> Exception:
    """The failure to raise, the others as its notes. A status is settled only when no machine or model failed."""
    first, *others = sorted(failures, key=lambda failure: not isinstance(failure, _NOT_THE_TASK))
    for other in others:
        first.add_note(str(other))
    if not isinstance(first, _NOT_THE_TASK):
        trace.settle(Status.SCORING_ERROR, str(first))
    return first
