"""What a user can plug into a task, and what classes stand in its brackets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import forkyard as vf
from forkyard.task import TaskConfig
from forkyard.task.boundary import stopped

PLUGGED = "tests.task.plugged"


class Data(vf.TaskData):
    answer: str = ""


class Counter(vf.State):
    seen: int = 0


class Config(vf.TaskConfig):
    strict: bool = False


class Words(vf.Task[Data, Counter, Config]):
    @vf.reward
    async def lcs(self, trace: vf.Trace) -> float:
        return 1.0

    @vf.reward(weight=0.0, priority=3)
    def fmt(self) -> float:
        return 1.0

    @vf.stop
    def enough(self, trace: vf.Trace) -> bool:
        return False


def config(**tables: Any) -> Config:
    return Config(**tables)


async def scored(task: vf.Task[Any, Any, Any]) -> vf.Trace:
    trace = vf.Trace(messages=[vf.AssistantMessage("yes!")])
    await task.score(trace)
    return trace


async def test_a_plugged_function_replaces_the_method_of_its_name_and_others_join() -> None:
    task = Words(
        Data(),
        config(
            rewards={
                "lcs": {"fn": f"{PLUGGED}.lcs", "weight": 2.0},
                "exact_match": {"fn": f"{PLUGGED}:exact_match", "weight": 0.5},
                "fmt": {"weight": 1},
            },
            metrics={"reply_length": {"fn": str(Path(__file__).with_name("plugged.py")) + ":reply_length"}},
        ),
    )
    trace = await scored(task)
    assert trace.rewards == {
        "fmt": vf.Reward(1.0, 1.0),
        "exact_match": vf.Reward(1.0, 0.5),
        "lcs": vf.Reward(0.125, 2.0),
    }
    assert trace.metrics == {"reply_length": 3.0}
    assert (await scored(Words(Data()))).rewards == {"fmt": vf.Reward(1.0, 0.0), "lcs": vf.Reward(1.0)}


async def test_a_plugged_stop_replaces_the_decorated_one() -> None:
    assert await stopped(Words(Data()), vf.Trace()) is None
    assert await stopped(Words(Data(), config(stops={"enough": {"fn": f"{PLUGGED}.enough"}})), vf.Trace()) == "enough"


def test_an_entry_can_move_a_method_in_the_order() -> None:
    task = Words(Data(), config(rewards={"lcs": {"priority": 9}}))
    assert [signal.name for signal in task.signals("reward")] == ["lcs", "fmt"]
    assert [signal.name for signal in Words(Data()).signals("reward")] == ["fmt", "lcs"]
    assert [hook() for hook in task.hooks("reward")[1:]] == [1.0]


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"rewards": {"missing": {"weight": 1}}}, "no @vf.reward method named 'missing'"),
        ({"metrics": {"lcs": {}}}, "no @vf.metric method named 'lcs'"),
        ({"rewards": {"x": {"fn": f"{PLUGGED}.missing"}}}, "cannot be loaded"),
        ({"rewards": {"x": {"fn": "no_such_module.f"}}}, "cannot be loaded"),
        ({"rewards": {"x": {"fn": "nowhere.py:f"}}}, "cannot be loaded"),
        ({"rewards": {"x": {"fn": "bare"}}}, "is no function: write pkg.module.function"),
        ({"rewards": {"x": {"fn": f"{PLUGGED}.NUMBER"}}}, "is no function, but int"),
        ({"rewards": {"x": {"fn": f"{PLUGGED}.wrong"}}}, "has the parameter 'sandbox', which no hook is given"),
        ({"stops": {"x": {"fn": f"{PLUGGED}.wrong"}}}, "is to be annotated as exactly one of"),
    ],
)
def test_what_cannot_be_plugged_is_refused_when_the_task_is_made(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Words(Data(), config(**tables))


def test_a_weight_is_finite_and_keys_are_known() -> None:
    with pytest.raises(ValidationError):
        config(rewards={"lcs": {"weight": float("nan")}})
    with pytest.raises(ValidationError):
        config(rewards={"lcs": {"wait": 1}})


def test_the_classes_in_the_brackets_are_found_also_through_bases() -> None:
    class Deeper(Words):
        pass

    class Half(vf.Task[Data]):
        pass

    assert (Deeper.data_type(), Deeper.state_type(), Deeper.config_type()) == (Data, Counter, Config)
    assert (Half.data_type(), Half.state_type(), Half.config_type()) == (Data, vf.State, TaskConfig)
    assert (vf.Task.data_type(), Deeper(Data()).config.strict) == (vf.TaskData, False)


def test_a_config_of_the_base_class_becomes_one_of_the_tasks_own() -> None:
    task = Words(Data(), Config(strict=True)).with_config(TaskConfig(rewards={"lcs": {"weight": 3}}))
    assert isinstance(task.config, Config)
    assert [signal.weight for signal in task.signals("reward")] == [0.0, 3.0]
    with pytest.raises(ValueError, match="no @vf.reward method"):
        task.with_config(TaskConfig(rewards={"missing": {}}))


async def test_scoring_can_be_deferred_without_a_trace_of_it_on_the_task() -> None:
    task = Words(Data())
    later = task.defer_scoring()
    trace = await scored(later)
    assert (trace.rewards, trace.status) == ({}, None)
    assert (later.scoring_deferred, task.scoring_deferred) == (True, False)
    assert later.data == task.data and later is not task


async def test_every_expected_reward_is_on_the_record_before_the_first_is_taken() -> None:
    class Looking(vf.Task):
        @vf.metric
        def early(self, trace: vf.Trace) -> float:
            assert trace.rewards == {"late": None}
            return 1.0

        @vf.reward
        def late(self) -> float:
            return 1.0

    assert (await scored(Looking(vf.TaskData()))).rewards == {"late": vf.Reward(1.0)}


def test_data_of_any_task_is_read_with_its_own_fields() -> None:
    data = vf.WireTaskData.model_validate(Data(name="n", answer="4").model_dump(mode="json"))
    assert (data.name, data.model_extra) == ("n", {"answer": "4"})


def test_prompts_of_several_messages_are_text() -> None:
    data = vf.TaskData(prompt=[vf.UserMessage("a"), {"role": "user", "content": [{"type": "text", "text": "b"}]}])
    assert data.prompt_text == "a\n\nb"
    assert vf.TaskData().prompt_text == ""
