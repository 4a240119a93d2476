from __future__ import annotations

import json
from pathlib import Path

import pytest

from forkyard.harness import ClaudeCodeHarness
from forkyard.sandbox.local import LocalProvider
from tests.harness.agents import COMMAND, act, sandbox_with
from tests.harness.parts import PROMPT, make_task, roles
from tests.support.upstream import REASONING, Turn, Upstream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def home(common_home: Path) -> Path:
    """One for all processes of the test run, so that each CLI is installed once."""
    return common_home


async def test_it_runs_commands_and_its_events_become_messages(local: LocalProvider) -> None:
    upstream = Upstream(Turn(COMMAND), Turn())
    async with sandbox_with(local, ClaudeCodeHarness()) as sandbox:
        trace = await act(ClaudeCodeHarness(), sandbox, upstream)
        assert await sandbox.read("/app/answer.txt") == b"done\n"
        kept = await sandbox.read("/logs/agent/claude-code.jsonl")
    assert trace.stop_condition == "agent_completed"
    assert roles(trace.messages) == ["user", "assistant", "tool", "assistant"]
    asked, called, answered, said = trace.messages
    assert asked["content"] == PROMPT
    assert called["content"] == REASONING
    call = called["tool_calls"][0]
    assert call["function"]["name"] == "Bash"
    assert json.loads(call["function"]["arguments"])["command"] == COMMAND
    assert (answered["tool_call_id"], answered["content"]) == (call["id"], "written")
    assert said["content"] == trace.last_reply == "All done."
    assert trace.info["program"]["exit_code"] == 0
    assert [json.loads(line)["type"] for line in kept.splitlines()][-1] == "result"
    assert all(body["model"] == "test-model" and body["stream"] for body in upstream.asked())
    assert upstream.heard[-1][2]["x-api-key"] == "a-key-that-opens-nothing"


async def test_an_instruction_that_looks_like_a_command_reaches_the_model(local: LocalProvider) -> None:
    upstream = Upstream(Turn())
    async with sandbox_with(local, ClaudeCodeHarness()) as sandbox:
        trace = await act(ClaudeCodeHarness(), sandbox, upstream, task=make_task(prompt="/help me out"))
    assert roles(trace.messages) == ["user", "assistant"]
    assert "/help me out" in json.dumps(upstream.asked()[0]["messages"])
