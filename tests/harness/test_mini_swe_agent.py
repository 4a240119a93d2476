from __future__ import annotations

import json
from pathlib import Path

import pytest

from forkyard.harness import MiniSweAgentHarness
from forkyard.sandbox.local import LocalProvider
from tests.harness.agents import COMMAND, act, sandbox_with
from tests.harness.parts import PROMPT, roles
from tests.support.upstream import REASONING, Turn, Upstream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SUBMIT = Turn("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


@pytest.fixture(scope="session")
def home(common_home: Path) -> Path:
    """One for all processes of the test run, so that each CLI is installed once."""
    return common_home


async def test_it_runs_commands_and_its_messages_become_ours(local: LocalProvider) -> None:
    upstream = Upstream(Turn(COMMAND), SUBMIT)
    async with sandbox_with(local, MiniSweAgentHarness()) as sandbox:
        trace = await act(MiniSweAgentHarness(), sandbox, upstream)
        assert await sandbox.read("/app/answer.txt") == b"done\n"
        kept = await sandbox.read("/logs/agent/mini-swe-agent.jsonl")
    assert trace.stop_condition == "agent_completed"
    assert roles(trace.messages) == ["user", "assistant", "tool", "assistant", "tool"]
    asked, called, answered, *_ = trace.messages
    assert asked["content"] == PROMPT
    assert called["content"] == REASONING
    call = called["tool_calls"][0]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("bash", {"command": COMMAND})
    assert answered["tool_call_id"] == call["id"]
    assert json.loads(answered["content"]) == {"returncode": 0, "output": "written\n"}
    assert trace.info["program"]["exit_code"] == 0
    assert [json.loads(line)["role"] for line in kept.splitlines()][-1] == "exit"
    assert PROMPT in upstream.asked()[0]["messages"][1]["content"]
