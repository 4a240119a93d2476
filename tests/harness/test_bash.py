from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from forkyard.errors import HarnessError, ModelError, SandboxError, SandboxLost
from forkyard.harness import BashHarness, ModelContext
from forkyard.model import ScriptedModel
from forkyard.sandbox import Sandbox
from forkyard.trace import AgentLimits, Trace, messages
from tests.harness.parts import PROMPT, make_task, play, play_script, results, roles
from tests.model.provider import message, playing, reply

REFUSES_TOOLS = {"status": 400, "body": {"error": {"message": "fake does not support tools"}}}


def raw(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(calls)}


def call(arguments: Any, name: str = "bash", call_id: str = "x") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_commands_run_until_a_reply_has_none(sandbox: Sandbox) -> None:
    trace = await play_script(
        BashHarness(), sandbox, {"bash": "echo out; echo err >&2; exit 3"}, {"bash": "pwd"}, {"content": "Finished."}
    )
    assert trace.messages[0] == {"role": "user", "content": PROMPT}
    assert roles(trace.messages) == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert results(trace) == ["exit 3\nout\nerr\n", "exit 0\n/app\n"]
    assert trace.messages[2]["tool_call_id"] == trace.messages[1]["tool_calls"][0]["id"]
    assert (trace.stop_condition, trace.steps, trace.last_reply) == ("agent_completed", 3, "Finished.")
    assert trace.usage.input > 0 and trace.usage.output > 0 and trace.timing.model_ms > 0


async def test_a_result_is_cut_to_its_last_2000_characters(sandbox: Sandbox) -> None:
    trace = await play_script(BashHarness(), sandbox, {"bash": "printf 'é%.0s' $(seq 5000); echo last >&2"})
    assert len(results(trace)[0]) == 2000
    assert results(trace)[0].endswith("ééé" + "last\n")
    assert "\ufffd" not in results(trace)[0]


async def test_a_command_past_its_time_is_killed_and_says_so(sandbox: Sandbox) -> None:
    trace = await play_script(
        BashHarness(command_timeout=1.5), sandbox, {"bash": "echo early; sleep 99"}, {"bash": "pwd"}
    )
    assert "early" in results(trace)[0]
    assert results(trace)[0].endswith("[timed out after 1.5 s and was killed]")
    assert results(trace)[1] == "exit 0\n/app\n"


async def test_every_command_starts_in_the_tasks_directory_as_its_user_with_its_variables(sandbox: Sandbox) -> None:
    await sandbox.run(["mkdir", "-p", "/srv/my work"])
    task = make_task(workdir="/srv/my work", agent_user="nobody")
    model = ScriptedModel([{"bash": "cd /; export X=1"}, {"bash": "pwd; id -un; echo $EVERYWHERE$X"}])
    trace = await play(BashHarness(), model, sandbox, task)
    assert results(trace)[1] == "exit 0\n/srv/my work\nnobody\nyes\n"


async def test_a_call_that_cannot_run_is_answered_under_its_id_and_the_others_run(sandbox: Sandbox) -> None:
    bad = [
        call("{]", call_id="a"),
        call("{}", call_id="b"),
        call("[1]", call_id="c"),
        call('{"command": 5}', call_id="d"),
        call("null", call_id="e"),
        call(json.dumps({"command": "echo \0"}), call_id="f"),
        call('{"command": "echo \\ud800"}', call_id="g"),
        call("[" * 100_000, call_id="h"),
        call("{}", name="submit", call_id="i"),
        {"id": "j", "type": "function"},
        {"id": "k", "function": None},
    ]
    good = call(json.dumps({"command": "echo ran"}), call_id="z")
    given_as_object = call({"command": "echo ran too"}, call_id="y")
    trace = await play_script(BashHarness(), sandbox, raw(*bad, good, given_as_object))
    answers = {message["tool_call_id"]: message["content"] for message in trace.messages if message["role"] == "tool"}
    assert list(answers) == [*"abcdefghijk", "z", "y"]
    assert all(answers[name].startswith("error: ") for name in "abcdefghijk")
    assert "not JSON (Expecting" in answers["a"]
    assert "no tool 'submit'" in answers["i"]
    assert (answers["z"], answers["y"]) == ("exit 0\nran\n", "exit 0\nran too\n")


async def test_a_command_too_long_for_an_argument_runs_all_the_same(sandbox: Sandbox) -> None:
    text = "é" * 150_000
    command = f"cat > big.txt <<'EOF'\n{text}\nEOF\nwc -m < big.txt; cat | wc -c; exit 4"
    trace = await play_script(BashHarness(), sandbox, {"bash": command})
    assert results(trace) == ["exit 4\n150001\n0\n"]


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        ({"max_turns": 1}, "max_turns"),
        ({"max_input_tokens": 1}, "max_input_tokens"),
        ({"max_output_tokens": 1}, "max_output_tokens"),
        ({"max_total_tokens": 1}, "max_total_tokens"),
    ],
)
async def test_a_limit_allows_no_further_call_but_the_last_turns_commands_run(
    sandbox: Sandbox, limits: dict[str, int], stop: str
) -> None:
    trace = await play_script(BashHarness(), sandbox, {"bash": "echo a"}, {"bash": "echo b"}, **limits)
    assert (trace.stop_condition, trace.steps, results(trace)) == (stop, 1, ["exit 0\na\n"])


async def test_a_reply_without_commands_completes_even_at_the_limit(sandbox: Sandbox) -> None:
    trace = await play_script(BashHarness(), sandbox, {"content": "Done."}, max_turns=1, max_total_tokens=1)
    assert (trace.stop_condition, trace.steps) == ("agent_completed", 1)


async def test_turns_end_somewhere_without_a_limit(sandbox: Sandbox) -> None:
    turns = [{"bash": ":"}] * 5
    assert (await play_script(BashHarness(max_turns=3), sandbox, *turns)).stop_condition == "max_turns"
    assert (await play_script(BashHarness(max_turns=3), sandbox, *turns, max_turns=9)).steps == 6


async def test_an_empty_reply_completes(sandbox: Sandbox) -> None:
    trace = await play_script(BashHarness(), sandbox, {"role": "assistant"})
    assert (trace.stop_condition, trace.steps) == ("agent_completed", 1)


async def test_system_prompt_and_a_prompt_of_messages_open_the_conversation(sandbox: Sandbox) -> None:
    prompt = [messages.user("first"), {"role": "assistant", "content": "yes?"}, messages.user("second")]
    task = make_task(prompt=prompt, system_prompt="Be brief.")
    trace = await play(BashHarness(), ScriptedModel([]), sandbox, task)
    assert [message["content"] for message in trace.messages] == ["Be brief.", "first", "yes?", "second", "Done."]


async def test_a_conversation_somebody_else_opened_is_taken_up(sandbox: Sandbox) -> None:
    trace = Trace(messages=[messages.user("hi")])
    harness, ctx = BashHarness(), ModelContext(ScriptedModel([{"content": "hello"}, {"content": "bye"}]))
    task = make_task(prompt=None, system_prompt="Be brief.")
    await harness.launch(ctx, task, trace, sandbox)
    trace.messages.append(messages.user("go away"))
    await harness.launch(ctx, task, trace, sandbox)
    assert [message["content"] for message in trace.messages] == ["Be brief.", "hi", "hello", "go away", "bye"]
    with pytest.raises(HarnessError, match="write has no prompt"):
        await harness.launch(ctx, task, trace, sandbox)


async def test_without_a_model_it_says_what_is_missing(sandbox: Sandbox) -> None:
    with pytest.raises(HarnessError, match="'bash' needs a model"):
        await play(BashHarness(), None, sandbox)


async def test_what_happened_before_a_deadline_is_on_the_record(sandbox: Sandbox) -> None:
    trace = Trace()
    ctx = ModelContext(ScriptedModel([{"bash": "echo first"}, {"bash": "touch /app/started; sleep 99"}]))
    running = asyncio.create_task(BashHarness().launch(ctx, make_task(), trace, sandbox))
    while (await sandbox.run(["test", "-e", "/app/started"])).exit_code:
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert results(trace) == ["exit 0\nfirst\n"]
    assert roles(trace.messages)[-1] == "assistant"
    assert trace.stop_condition is None


async def test_a_lost_sandbox_is_the_machines_failure(sandbox: Sandbox) -> None:
    await sandbox.close()
    with pytest.raises(SandboxError):
        await play_script(BashHarness(), sandbox, {"bash": "ls"})


async def test_a_missing_command_is_no_missing_shell(sandbox: Sandbox) -> None:
    trace = await play_script(BashHarness(), sandbox, {"bash": "no-such-command"}, {"bash": "echo ${BASH:+bash}"})
    assert results(trace)[0].startswith("exit 127\n")
    assert results(trace)[1] == "exit 0\nbash\n"


async def test_an_agent_that_removes_its_working_directory_works_on_from_the_root(sandbox: Sandbox) -> None:
    trace = await play_script(BashHarness(), sandbox, {"bash": "cd /; rm -rf /app"}, {"bash": "pwd"}, {"bash": "pwd"})
    assert results(trace)[1:] == ["exit 0\n/\n"] * 2


async def test_a_working_directory_that_never_was_is_an_error(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError):
        await play(BashHarness(), ScriptedModel([{"bash": "pwd"}]), sandbox, make_task(workdir="/none"))


async def test_without_bash_commands_run_in_sh(bare_sandbox: Sandbox) -> None:
    trace = await play_script(BashHarness(), bare_sandbox, {"bash": "echo ${BASH:-not bash}"}, {"bash": "echo on"})
    assert results(trace) == ["exit 0\nnot bash\n", "exit 0\non\n"]


async def test_when_no_shell_is_left_the_sandbox_is_lost(bare_sandbox: Sandbox) -> None:
    with pytest.raises(SandboxLost, match="neither bash nor sh"):
        await play_script(BashHarness(), bare_sandbox, {"bash": "rm /bin/sh"}, {"bash": "ls"})


async def test_fenced_blocks_run_and_their_results_come_back_as_user_messages(sandbox: Sandbox) -> None:
    trace = await play_script(
        BashHarness(tool_mode="fenced"),
        sandbox,
        {"content": "First\n```bash\necho one\n```\nor rather\n```sh\necho two\n```"},
        {"content": "```python\nprint(1)\n```\n```bash\necho cut"},
    )
    assert roles(trace.messages) == ["system", "user", "assistant", "user", "assistant"]
    assert "```bash" in trace.messages[0]["content"]
    assert trace.messages[3]["content"] == "exit 0\ntwo\n"
    assert (trace.stop_condition, trace.info["tool_mode"]) == ("agent_completed", "fenced")


async def test_fenced_mode_keeps_the_tasks_system_prompt_and_explains_itself_once(sandbox: Sandbox) -> None:
    trace = Trace()
    ctx = ModelContext(ScriptedModel([]))
    for _ in range(2):
        task = make_task(system_prompt="Be brief.")
        await BashHarness(tool_mode="fenced").launch(ctx, task, trace, sandbox)
    assert roles(trace.messages) == ["system", "user", "assistant", "user", "assistant"]
    assert trace.messages[0]["content"].startswith("Be brief.\n\n")
    assert trace.messages[0]["content"].count("Example") == 1


async def test_a_provider_that_takes_no_tools_is_asked_for_fenced_blocks(sandbox: Sandbox) -> None:
    says = [reply("```bash\necho done > answer.txt\n```"), reply("Finished.")]
    async with playing(REFUSES_TOOLS, *says) as provider:
        model = provider.model()
        trace = await play(BashHarness(), model, sandbox)
        await model.close()
    assert [("tools" in asked.body) for asked in provider.asked] == [True, False, False]
    assert (await sandbox.read("/app/answer.txt")) == b"done\n"
    assert (trace.stop_condition, trace.steps, trace.info["tool_mode"]) == ("agent_completed", 2, "fenced")


async def test_native_mode_never_changes_over(sandbox: Sandbox) -> None:
    async with playing(REFUSES_TOOLS) as provider:
        model = provider.model()
        with pytest.raises(ModelError, match="does not support tools"):
            await play(BashHarness(tool_mode="native"), model, sandbox)
        await model.close()


async def test_once_tools_have_worked_a_refusal_is_an_error(sandbox: Sandbox) -> None:
    async with playing(reply(message(None, ["echo a"]), "tool_calls"), REFUSES_TOOLS) as provider:
        model = provider.model()
        with pytest.raises(ModelError, match="does not support tools"):
            await play(BashHarness(), model, sandbox)
        await model.close()


async def test_one_harness_serves_many_rollouts_at_once(sandbox: Sandbox) -> None:
    harness = BashHarness()

    async def rollout(number: int) -> list[str]:
        script = ScriptedModel([{"bash": f"echo {number}"}, {"bash": f"echo {number} again"}])
        trace = Trace()
        await harness.launch(ModelContext(script, limits=AgentLimits()), make_task(), trace, sandbox)
        return results(trace)

    got = await asyncio.gather(*(rollout(number) for number in range(10)))
    assert got == [[f"exit 0\n{number}\n", f"exit 0\n{number} again\n"] for number in range(10)]
