"""A taskset written for the `verifiers.v1` object model runs after changing its import line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import forkyard as vf
from forkyard.task import config_type_of, invoke, judging_by, load_taskset
from forkyard.task.boundary import apply_request_hooks, stopped
from tests.task.foreign_taskset import SumConfig, SumState, SumTask, SumTaskConfig, SumTaskset

pytestmark = pytest.mark.asyncio(loop_scope="module")
FILE = Path(__file__).with_name("foreign_taskset.py")


async def polite(messages: Any, sampling: vf.Sampling, model: str | None = None) -> vf.Reply:
    return vf.Reply({"role": "assistant", "content": "yes"}, vf.Usage(5, 1))


async def test_it_is_loaded_from_its_file_with_its_config() -> None:
    tasks = list(vf.load_taskset(FILE))
    assert [task.name for task in tasks] == ["sum-0", "sum-1", "sum-2"]
    config = vf.TasksetConfig(task=vf.TaskConfig(rewards={"polite": vf.RewardFunctionConfig(weight=0.0)}))
    (task,) = vf.load_taskset(f"{FILE}:SumTaskset", config=config).take(1)
    assert [signal.weight for signal in task.signals("reward")] == [1.0, 0.0]
    assert (task.data_type().__name__, task.config.model_fields_set) == ("SumData", {"rewards"})


async def test_its_options_are_known_from_its_file() -> None:
    options = config_type_of(FILE)
    assert list(options.model_fields) == ["id", "task", "system_prompt", "repeat"]
    assert len(list(load_taskset(FILE, config=options.model_validate({"repeat": True})))) == 6
    assert config_type_of(FILE.parent) is vf.TasksetConfig


async def test_its_views_and_config_are_its_own() -> None:
    config = SumConfig(repeat=True, task=SumTaskConfig(partial_credit=0.25))
    tasks = SumTaskset(config)
    assert [task.data.idx for task in tasks.exclude(idx=["1:5"]).shuffle(1).take(2)] in ([0, 5], [5, 0])
    assert {task.config.partial_credit for task in tasks} == {0.25}
    assert (SumTaskset.task_type(), SumTaskset.config_type()) == (SumTask, SumConfig)


async def test_a_rollout_of_it_is_set_up_stopped_intercepted_and_scored(sandbox: vf.Sandbox) -> None:
    task = next(iter(SumTaskset()))
    trace: vf.Trace[Any, SumState] = vf.Trace(state=SumState())
    assert task.state_type() is SumState
    hooks: dict[str, Any] = {"task": task.data, "trace": trace, "runtime": sandbox}
    await invoke(task.setup, **hooks)
    call = vf.ToolCall(id="c1", name="add", arguments='{"a": 2, "b": 3}')
    (tools,) = task.toolsets(task.config)
    trace.messages.append(vf.UserMessage(task.data.prompt_text))
    trace.messages.append(vf.AssistantMessage(None, [call]))
    result = await tools.call(call.name, call.arguments, trace.state)
    trace.messages.append(vf.ToolMessage("c1", result))
    sent, _ = await apply_request_hooks(task, trace, vf.Request(messages=trace.messages))
    assert (result, sent.messages[-1].content, trace.state.rewrites) == ("5", "?", 1)
    trace.messages.append(vf.AssistantMessage("5"))
    trace.steps = 3
    assert await stopped(task, trace) == "too_long"
    await invoke(task.finalize, **hooks)
    with judging_by(polite):
        await task.score(trace, sandbox)
    assert trace.info["files"] == "question\n"
    assert trace.rewards == {"correct": vf.Reward(1.0), "polite": vf.Reward(1.0, 0.5)}
    assert trace.metrics == {"turns": 3.0, "calls": 1.0, "results": 1.0}
    assert (trace.status, trace.reward) == (vf.Status.SCORED, 1.5)
    assert await invoke(task.validate, runtime=sandbox) is True
