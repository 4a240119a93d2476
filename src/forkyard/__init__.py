"""Forkyard: fork an environment once per rollout, let an agent act, grade it where it cannot reach, keep every trace.

What a task, an env, a harness or a provider of your own is written with. Nothing inside the package imports this.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkyard.offered import *  # noqa: F403
    from forkyard.offered import __all__ as __all__

_RUNTIME = "a sandbox is described by SandboxSpec, and its provider is chosen by -e or --env.agent.runtime.type"
_HARNESS = "a harness has no config class: the options of its __init__ are set by --env.agent.harness.NAME"
_PROGRAM = "write a Harness, whose launch runs the agent's program in the sandbox"
_PLAIN = "it is plain data here, on Trace and its record"
_POOL = "one gateway serves a run; see docs/gateway.md"
_MODEL = "where a model is reached is said once for the run: -m, --base-url, OPENAI_BASE_URL, OPENAI_API_KEY"
_ELSEWHERE = {
    "ACPConfig": _PROGRAM,
    "ACPHarness": _PROGRAM,
    "ACPTurn": _PROGRAM,
    "AgentInfo": "Trace.agent is the agent's name; harness, model and sandbox_provider stand beside it",
    "ApptainerConfig": _RUNTIME,
    "ClientConfig": _MODEL,
    "DockerConfig": _RUNTIME,
    "ElasticPoolConfig": _POOL,
    "EnvInfo": "Trace.slot.env is the env's id",
    "Error": "Trace.errors holds mappings with type, message, status_code and traceback",
    "EvalClientConfig": _MODEL,
    "EvalRunInfo": _PLAIN,
    "EvalWorkInfo": _PLAIN,
    "GroupInfo": "Trace.slot says which sample of which task and run it is",
    "HarnessConfig": _HARNESS,
    "HarnessSession": "a harness with converses = True is launched again for each turn; an env uses Agent.interaction",
    "InterceptRecord": "Trace.info holds request_rewrites and response_rewrites",
    "ModalConfig": _RUNTIME,
    "PodmanConfig": _RUNTIME,
    "PolicyEvent": "what a network refused is not on the record",
    "PolicySpan": "what a network refused is not on the record",
    "PrimeConfig": _RUNTIME,
    "RuntimeConfig": _RUNTIME,
    "RuntimeInfo": "use SandboxInfo",
    "RuntimeProcess": "Sandbox.run gives output to on_output while a command runs",
    "ServeConfig": "there is no server of envs; `forkyard eval` and a Python program play them",
    "StaticPoolConfig": _POOL,
    "SubprocessConfig": _RUNTIME,
    "TimeSpan": "Trace.timing gives spans with start, end and duration",
    "TraceTask": "Trace.task is the task's name; its data is self.data or the parameter task",
    "TrainClientConfig": _MODEL,
    "TrainRunInfo": _PLAIN,
    "TrainWorkInfo": _PLAIN,
    "TunnelError": "use InterceptionError",
    "WireEpisode": "use Episode, or read lines by Trace.from_record",
    "capture_patch": "run `git diff` by Sandbox.run",
    "load_env": "make the env from its class, or name it by --env.id",
    "load_harness": "make the harness from its class, or name it by --env.agent.harness.id",
    "merge_defaults": "make a config from its class; model_copy(update=...) changes a copy",
    "resolve_head": "run `git rev-parse HEAD` by Sandbox.run",
}
"""Names of the `verifiers.v1` API that are not offered, and what does their work."""

if not TYPE_CHECKING:  # a type checker is to know that other names do not exist

    def __getattr__(name: str) -> object:
        """What `forkyard.offered` has, imported when it is asked for; refuse others, saying what to use instead."""
        if name not in ("offered", "__path__"):
            offered = import_module("forkyard.offered")
            if name == "__all__" or name in offered.__all__:
                return getattr(offered, name)
        instead = f"; instead: {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"module 'forkyard' has no attribute {name!r}{instead}", name=name)

    def __dir__() -> list[str]:
        """What there is, imported or not."""
        return [*globals(), *import_module("forkyard.offered").__all__]
