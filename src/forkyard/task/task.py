"""The Task: what an agent is asked, where it starts, and what its work is worth."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, cast

from typing_extensions import TypeVar

from forkyard.errors import ConfigError
from forkyard.sandbox import Feature, Network, Sandbox
from forkyard.sandbox.promises import network_features
from forkyard.secrets import Secrets
from forkyard.task.config import ConfigT_co, TaskConfig, said, with_plugged
from forkyard.task.data import Artifact, TaskData
from forkyard.task.generics import type_argument
from forkyard.task.hooks import KINDS, Kind, Signal, plugged, required_parameters, signals_of
from forkyard.task.judges.judge import Judge
from forkyard.task.machine import Networks, Origin
from forkyard.task.scoring import measure, runnable, seed, set_apart, settled, verdict
from forkyard.task.staging import Staging
from forkyard.task.state import State, StateT_co
from forkyard.trace import Status, Trace

if TYPE_CHECKING:
    from forkyard.task.toolset import ToolServer, Toolset

DataT_co = TypeVar("DataT_co", bound=TaskData, covariant=True, default=TaskData)

HOOKS = ("setup", "finalize", "stage_verifier", "validate")
_FROM_AN_IMAGE = Origin()
_log = logging.getLogger(__name__)


class Task(Generic[DataT_co, StateT_co, ConfigT_co]):
    """Subclass it to write a task in Python: add hooks, and methods marked `@reward`, `@metric`, `@stop`, `@intercept`.

    One object may serve many rollouts at once and keeps nothing about any of them. Class definition raises TypeError
    for a hook with a parameter that no hook is given.
    """

    NEEDS_CONTAINER: ClassVar[bool] = False  # its commands must not reach the host
    scoring_deferred: bool = False  # `score` does nothing
    collects_what_it_can: ClassVar[bool] = False  # an artifact that cannot be had is for its verifier to miss
    hidden_places: ClassVar[tuple[str, ...]] = ()  # directories that a verifier beside an agent's processes has alone
    _source: str | None = None  # the digest of the file that its code is from, when it was loaded from one
    _shared: Sequence[Toolset[Any, Any]] = ()

    def __init__(self, data: DataT_co, config: ConfigT_co | None = None) -> None:
        self.data = data
        self.config = config if config is not None else cast(ConfigT_co, _plain_config(self.config_type()))
        self._check_config()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in HOOKS:
            required_parameters(cls, name)
        for kind in KINDS:
            signals_of(cls, kind)

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

    def with_config(self, config: TaskConfig) -> Self:
        """A copy with another config, of the task's own class: what was said in `config`, and the rest by default.

        Raises pydantic's ValidationError, and ValueError for what does not fit the task.
        """
        other = copy.copy(self)
        other.config = cast(ConfigT_co, self.config_type().model_validate(said(config)))
        other._check_config()
        return other

    def with_system_prompt(self, text: str) -> Self:
        """A copy with another system prompt."""
        return self.with_data(system_prompt=text)

    # What the task asks of the machine.

    @property
    def origin(self) -> Origin:
        """What its sandbox is made from, when that is more than an image by name."""
        return _FROM_AN_IMAGE

    @property
    def services(self) -> Mapping[str, Sequence[Artifact]]:
        """The services beside the agent's from which there is evidence to be had, and what leaves each."""
        return {}

    @property
    def network(self) -> Network | None:
        """What the agent may reach; None when the task does not say, which is nothing."""
        return self.data.network

    @property
    def networks(self) -> Networks:
        """What its sandbox reaches from phase to phase."""
        return Networks(self.network)

    def in_stages(self) -> Staging | None:
        """What it consists of when it is played in stages, in one sandbox; None for a task that is played at once."""
        return None

    def for_verifier(self) -> Task[Any, Any, Any]:
        """The task as a separate verifier's sandbox is made from it: itself, unless it says another image for that."""
        return self

    @property
    def needs(self) -> frozenset[Feature]:
        """The features of a provider that the task cannot do without."""
        networks = self.networks.asked
        needs = {feature for network in networks for feature in network_features(network)}
        if len(networks) > 1:
            needs.add(Feature.LIVE_NETWORK)
        if self.NEEDS_CONTAINER:
            needs.add(Feature.ISOLATED)
        if self.data.image or self.origin.build:
            needs.add(Feature.IMAGES)
        if self.data.agent_user not in (None, "root", "0"):
            needs.add(Feature.USERS)
        return frozenset(needs)

    @property
    def unplayable(self) -> tuple[str, ...]:
        """Why it cannot be played, whatever the provider, one sentence each; asked before a run starts."""
        return ()

    @property
    def models_asked(self) -> Mapping[str, Sequence[str]]:
        """How a program that grades it asks a model: the variable it asks for one by, and the dialects it speaks."""
        return {}

    def with_verifier_env(self, env: Mapping[str, str]) -> Self:
        """A copy whose verifier gets more environment variables. Raises ConfigError for what it takes none of."""
        if not env:
            return self
        raise ConfigError(f"task {self.name} is graded by no program, so nothing can be said to it by --ve")

    def where(self, field: str) -> str:
        """Where a field of the data is written, as a user finds it to change it; "" is the task itself."""
        return f"task {self.name}, {field} of its {type(self.data).__name__}" if field else f"task {self.name}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know before trusting its results, one sentence each."""
        return ()

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

    async def finalize_service(self, *args: Any, **kwargs: Any) -> None:
        """Look at the sandbox of a service, after the agent's. Also given: `service`, its name."""

    async def stage_verifier(self, *args: Any, **kwargs: Any) -> None:
        """Put hidden files into the sandbox that grades, after the agent's processes and credentials are gone."""

    async def validate(self, *args: Any, **kwargs: Any) -> bool | None:
        """Check the task itself, without an agent; None when there is nothing to check."""
        return None

    def defer_scoring(self) -> Self:
        """A copy of its own whose `score` does nothing: somebody else grades later, in another sandbox."""
        other = copy.deepcopy(self)
        other.scoring_deferred = True
        return other

    async def score(self, trace: Trace, runtime: Sandbox | None = None) -> None:
        """Record every metric, then every reward, then every judge's, and settle the trace's status when it is open.

        Signals of one kind run concurrently. Without a runtime, those that need one are skipped; after a failure no
        judge is asked. Judges ask as the caller says, see `judging_by`. Raises TaskError when a signal fails, after
        the others have been recorded; errors of the machine or of a model pass through and leave the status to the
        caller. Past the task's scoring deadline what was recorded stands, and the rest stays missing.
        """
        if self.scoring_deferred:
            return
        try:
            async with asyncio.timeout(self.data.timeout.scoring_seconds):
                await self._score(trace, runtime)
        except TimeoutError:
            trace.is_timeout = True
            trace.verifier["timed_out"] = True
            trace.settle(Status.INDETERMINATE, f"scoring took longer than {self.data.timeout.scoring_seconds:g} s")

    async def _score(self, trace: Trace, runtime: Sandbox | None) -> None:
        judges = [_of_judge(judge) for judge in self.plugged_judges()]
        groups = [runnable(signals, runtime) for signals in (self.signals("metric"), self.signals("reward"), judges)]
        skipped = [signal for _, left_out in groups for signal in left_out]
        for signal in skipped:
            _log.info("%s %s of %s is skipped: it needs a sandbox", signal.kind, signal.name, self.name)
        (metrics, _), (rewards, _), (asked, _) = groups
        seed(trace, (*metrics, *rewards, *asked))
        failures = await measure(self, self.data, metrics, trace, runtime)
        failures += await measure(self, self.data, rewards, trace, runtime)
        if not set_apart(trace, failures)[0]:
            failures += await measure(self, self.data, asked, trace, runtime)
        failures, unread = set_apart(trace, failures)
        if failures:
            raise settled(trace, failures)
        trace.settle(*verdict(trace, *([each for each in some if each.kind == "reward"] for some in (skipped, unread))))

    # What its config and its class say.

    @classmethod
    def data_type(cls) -> type[TaskData]:
        """The class of its data, as its generic base names it."""
        return type_argument(cls, TaskData)

    @classmethod
    def state_type(cls) -> type[State]:
        """The class of what a rollout keeps on `trace.state`."""
        return type_argument(cls, State)

    @classmethod
    def config_type(cls) -> type[TaskConfig]:
        """The class of its config."""
        return type_argument(cls, TaskConfig)

    @classmethod
    def toolsets(cls, config: Any) -> Sequence[Toolset[Any, Any]]:
        """The servers of tools that each rollout has for itself."""
        return ()

    @property
    def shared_toolsets(self) -> Sequence[Toolset[Any, Any]]:
        """The servers of tools that it shares with the other tasks of its set."""
        return self._shared

    def sharing(self, toolsets: Sequence[Toolset[Any, Any]]) -> Self:
        """A copy that shares toolsets with other tasks."""
        other = copy.copy(self)
        other._shared = toolsets
        return other

    @property
    def tool_servers(self) -> Mapping[str, ToolServer]:
        """Servers of tools that programs in the sandbox reach by themselves, by name."""
        return {}

    def signals(self, kind: Kind) -> tuple[Signal, ...]:
        """Its marked methods of a kind, with what its config puts in their place, in order."""
        return with_plugged(kind, signals_of(type(self), kind), self.config)

    def hooks(self, kind: Kind) -> list[Callable[..., Any]]:
        """The same as functions to call."""
        return [signal.bound(self) for signal in self.signals(kind)]

    @property
    def graded_by_record(self) -> bool:
        """Whether grading looks at the trace alone: no hidden files enter, and nothing that scores takes a sandbox."""
        own = type(self)
        if own.stage_verifier is not Task.stage_verifier or own.score is not Task.score:
            return False
        return not any(signal.takes_runtime for signal in (*self.signals("metric"), *self.signals("reward")))

    def plugged_judges(self) -> list[Judge[Any, Any]]:
        """The judges its config names."""
        return list(self.config.made_judges)

    def _check_config(self) -> None:
        config = self.config
        if not (config.judges or config.stops or config.metrics or config.rewards):
            return
        names = {signal.name for kind in ("stop", "metric", "reward") for signal in self.signals(kind)}
        for judge in self.plugged_judges():
            if judge.reward_name in names:
                raise ValueError(f"judge {judge.reward_name!r} is called like a signal of {type(self).__name__}")
            try:
                judge.check(self.data)
            except (ValueError, OSError) as err:
                raise ValueError(f"task {self.name}, judge {judge.reward_name!r}: {err}") from err


@cache
def _plain_config(cls: type[TaskConfig]) -> TaskConfig:
    """The config of tasks that were given none; frozen, so that all may have the same."""
    return cls()


def _of_judge(judge: Judge[Any, Any]) -> Signal:
    return plugged(Signal("reward", judge.reward_name, judge.config.weight), judge.score)
