"""The harness `mini-swe-agent`: that Python program inside the sandbox, speaking the chat completions dialect."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from forkyard.harness.base import Harness, ModelContext
from forkyard.harness.equipment import Equipment, check_starts, check_version, make_state, place_of, state_of
from forkyard.harness.narration import Narration, text_in
from forkyard.harness.program import Program, endpoint_of, instruction, run_program
from forkyard.sandbox import Sandbox
from forkyard.task import Task
from forkyard.trace import Trace, messages

VERSION = "2.4.6"
_NAME = "mini-swe-agent"
_LIBRARY = f"{place_of(_NAME)}/lib"
_STARTER = f"{place_of(_NAME)}/start.py"
_STARTED = """\
# Runs mini-swe-agent's own command line. What is added: each message goes to standard output as a line of JSON,
# everything else to standard error; the task comes by standard input; a request that is refused is not tried again.
import json, os, sys

sys.path.insert(0, LIBRARY)
told = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
os.dup2(2, 1)

import litellm
from minisweagent.agents.interactive import InteractiveAgent
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.run import mini

LitellmModel.abort_exceptions = [*LitellmModel.abort_exceptions, litellm.exceptions.BadRequestError]
KEPT = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id")


def tell(message):
    extra = message.get("extra") or {}
    if extra.get("interrupt_type") == "FormatError" and isinstance(extra.get("response"), dict):
        tell(extra["response"]["choices"][0]["message"])
    event = {key: message[key] for key in KEPT if message.get(key)}
    if message.get("role") == "exit":
        event["exit_status"] = extra.get("exit_status")
    print(json.dumps(event, default=str), file=told, flush=True)


class Telling(InteractiveAgent):
    def add_messages(self, *messages):
        for message in messages:
            tell(message)
        return super().add_messages(*messages)


if sys.argv[1:] != ["--check"]:
    sys.argv += ["--agent-class", "__main__.Telling", "--task", sys.stdin.read()]
    mini.app.pretty_exceptions_enable = False  # it takes seconds to draw one
    mini.app()
""".replace("LIBRARY", repr(_LIBRARY))
_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # the table of prices is not fetched
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_GLOBAL_CONFIG_DIR": state_of(_NAME),
    "MSWEA_SILENT_STARTUP": "1",
}


class MiniSweAgentHarness(Harness):
    """Runs `mini` on the task's instruction. `version` is that of the package mini-swe-agent on PyPI.

    The image needs Python 3.10 or newer; nothing is installed into it.
    """

    name: ClassVar[str] = _NAME
    needs_endpoint: ClassVar[bool] = True
    converses: ClassVar[bool] = False

    def __init__(self, *, version: str = VERSION) -> None:
        self.version = check_version(version)

    def equipment(self) -> Equipment:
        """The program with the libraries it needs, apart from those of the image, and its state's directory."""
        return Equipment(f"mini-swe-agent {self.version}", partial(_install, self.version))

    async def launch(self, ctx: ModelContext, task: Task, trace: Trace, runtime: Sandbox) -> None:
        """Act until done."""
        at = endpoint_of(self.name, ctx)
        told = instruction(self.name, task, trace)
        argv = [_STARTER, "--yolo", "--exit-immediately", "--cost-limit", "0", "--output", "/dev/null"]
        argv += ["--model-class", "litellm", "--model", f"openai/{at.model}"]
        env = {**_QUIET, "OPENAI_API_BASE": f"{at.base_url}/v1", "OPENAI_API_KEY": at.key}
        program = Program(self.name, argv, told, env)
        await run_program(program, MiniNarrator(trace), task, trace, runtime)


async def _install(version: str, sandbox: Sandbox) -> None:
    from forkyard.harness.pypi import push_program  # pip and archives, for those who need them

    await make_state(sandbox, _NAME)
    # `datasets` is for its benchmarks only, and larger than everything else together.
    python = await push_program(sandbox, _NAME, version, _LIBRARY, without=("datasets",))
    # With the Python it was installed for, whatever PATH a task sets.
    await sandbox.write(_STARTER, f"#!{python.executable}\n{_STARTED}".encode(), 0o755)
    words = ["env", *(f"{key}={value}" for key, value in _QUIET.items()), _STARTER, "--check"]
    # It also leaves the compiled modules, which the agent's user could not write.
    await check_starts(sandbox, words, f"mini-swe-agent {version} does not start in this image")


class MiniNarrator:
    """Understands the messages that the starter passes on: they are those of chat completions."""

    def __init__(self, trace: Trace) -> None:
        self.finished = False
        self.failed: str | None = None
        self._trace = trace
        self._narration = Narration(trace)
        self._heard = 0

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        role = event["role"]
        self._heard += 1
        if role == "assistant":
            self._assistant(event)
        elif role == "tool":
            self._narration.answer(str(event["tool_call_id"]), text_in(event.get("content")))
        elif role == "exit":
            self.finished = True
            if event.get("exit_status") != "Submitted":
                self.failed = f"{event.get('exit_status')}: {text_in(event.get('content'))}"
        elif self._heard > 2:  # the first two are the instruction in its own words
            self._narration.close()
            self._trace.messages.append(messages.user(text_in(event["content"])))

    def _assistant(self, event: Mapping[str, Any]) -> None:
        self._narration.close()
        self._narration.think(text_in(event.get("reasoning_content")))
        self._narration.say(text_in(event.get("content")))
        for call in event.get("tool_calls") or ():
            function = call["function"]
            self._narration.call(str(call["id"]), str(function["name"]), function["arguments"])
