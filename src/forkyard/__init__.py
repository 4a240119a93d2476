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
_RUBRIC = "decorate methods of your Task by @vf.reward and @vf.metric; a judge is a RubricJudge or a Judge of your own"
_PARSER = "read the reply in a reward of your Task; parse_score, parse_judge_choice and extract_boxed_answer help"
_ENV = "write a Task and a Taskset of them; SingleAgentEnv plays any, and an Env of your own is for several agents"
_TURNS = "a harness takes the turns; write a Harness, or an Env whose run uses Agent.interaction"
_TOOLS = "decorate methods by @vf.tool, of your Task or of a Toolset"
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
    "EnvGroup": "name several sets to `forkyard run`, or give one Taskset the tasks of all",
    "EnvInfo": "Trace.slot.env is the env's id",
    "Environment": _ENV,
    "Error": "Trace.errors holds mappings with type, message, status_code and traceback",
    "EvalClientConfig": _MODEL,
    "EvalRunInfo": _PLAIN,
    "EvalWorkInfo": _PLAIN,
    "GroupInfo": "Trace.slot says which sample of which task and run it is",
    "HarnessConfig": _HARNESS,
    "HarnessSession": "a harness with converses = True is launched again for each turn; an env uses Agent.interaction",
    "InterceptRecord": "Trace.info holds request_rewrites and response_rewrites",
    "JudgeRubric": _RUBRIC,
    "MaybeThinkParser": _PARSER,
    "ModalConfig": _RUNTIME,
    "MultiTurnEnv": _TURNS,
    "Parser": _PARSER,
    "PodmanConfig": _RUNTIME,
    "PolicyEvent": "what a network refused is not on the record",
    "PolicySpan": "what a network refused is not on the record",
    "PrimeConfig": _RUNTIME,
    "PythonEnv": "the agent's sandbox has a shell: the harness bash runs commands there",
    "Rubric": _RUBRIC,
    "RubricGroup": _RUBRIC,
    "RuntimeConfig": _RUNTIME,
    "RuntimeInfo": "use SandboxInfo",
    "RuntimeProcess": "Sandbox.run gives output to on_output while a command runs",
    "ServeConfig": "there is no server of envs; `forkyard eval` and a Python program play them",
    "SingleTurnEnv": "write a Task and a Taskset of them, and play it with --env.agent.harness null",
    "StatefulToolEnv": f"{_TOOLS}; trace.state is the rollout's own",
    "StaticPoolConfig": _POOL,
    "SubprocessConfig": _RUNTIME,
    "ThinkParser": _PARSER,
    "TimeSpan": "Trace.timing gives spans with start, end and duration",
    "ToolEnv": _TOOLS,
    "TraceTask": "Trace.task is the task's name; its data is self.data or the parameter task",
    "TrainClientConfig": _MODEL,
    "TrainRunInfo": _PLAIN,
    "TrainWorkInfo": _PLAIN,
    "TunnelError": "use InterceptionError",
    "WireEpisode": "use Episode, or read lines by Trace.from_record",
    "XMLParser": _PARSER,
    "capture_patch": "run `git diff` by Sandbox.run",
    "load_env": "make the env from its class, or name it by --env.id",
    "load_environment": "`forkyard eval MODULE` plays the Taskset that a module offers; load_taskset loads a file's",
    "load_harness": "make the harness from its class, or name it by --env.agent.harness.id",
    "merge_defaults": "make a config from its class; model_copy(update=...) changes a copy",
    "resolve_head": "run `git rev-parse HEAD` by Sandbox.run",
}
"""Names of the `verifiers.v1` API, and of the one before it, that are not offered, and what does their work."""

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
