import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from forkyard.errors import ModelError, TaskError
from forkyard.sandbox import NO_NETWORK, Feature, Network, Sandbox
from forkyard.task import Task, TaskData, metric, reward
from forkyard.trace import Reward, Status, Trace


class Data(TaskData):
    answer: str = ""


class Plain(Task[Data]):
    @metric
    async def length(self, trace: Trace) -> float:
        return len(trace.last_reply)

    @reward(weight=2.0)
    async def right(self, task: Data, trace: Trace) -> float:
        return float(trace.last_reply == task.answer)


def said(text: str) -> Trace:
    return Trace(messages=[{"role": "assistant", "content": text}])


async def test_score_records_metrics_and_rewards_and_settles_the_status() -> None:
    trace = said("42")
    await Plain(Data(answer="42")).score(trace)
    assert trace.rewards == {"right": Reward(1.0, 2.0)}
    assert trace.metrics == {"length": 2.0}
    assert (trace.status, trace.reason, trace.reward) == (Status.SCORED, None, 2.0)


async def test_a_status_decided_before_stands() -> None:
    trace = said("42")
    trace.settle(Status.BUDGET, "spent")
    await Plain(Data(answer="42")).score(trace)
    assert trace.status is Status.BUDGET


async def test_a_failing_reward_leaves_the_others_recorded_and_is_a_scoring_error() -> None:
    class Failing(Plain):
        @reward
        def broken(self) -> float:
            raise RuntimeError("boom")

    trace = said("")
    with pytest.raises(TaskError, match="^reward broken of task Failing: RuntimeError: boom$"):
        await Failing(Data(answer="x")).score(trace)
    assert trace.rewards == {"broken": None, "right": Reward(0.0, 2.0)}
    assert trace.metrics == {"length": 0.0}
    assert trace.reward is None
    assert (trace.status, trace.reason) == (Status.SCORING_ERROR, "reward broken of task Failing: RuntimeError: boom")


@pytest.mark.parametrize("value", ["abc", None, float("nan"), float("inf"), [1.0], {}, {"a": 1.0, "b": float("nan")}])
async def test_what_is_no_number_is_a_task_error_and_no_reward(value: Any) -> None:
    class Odd(Task[TaskData]):
        @reward
        async def odd(self) -> Any:
            return value

    trace = Trace()
    with pytest.raises(TaskError):
        await Odd(TaskData()).score(trace)
    assert trace.rewards == {"odd": None}
    assert trace.status is Status.SCORING_ERROR


async def test_a_mapping_replaces_the_name_by_its_own_keys_with_the_same_weight() -> None:
    class Many(Task[TaskData]):
        @reward(weight=0.5)
        async def parts(self) -> Mapping[str, float]:
            return {"a": 1, "b": 0.25}

        @metric
        def counts(self) -> Mapping[str, float]:
            return {"tests_passed": 3, "tests_total": 4}

    trace = Trace()
    await Many(TaskData()).score(trace)
    assert trace.rewards == {"a": Reward(1.0, 0.5), "b": Reward(0.25, 0.5)}
    assert trace.metrics == {"tests_passed": 3.0, "tests_total": 4.0}
    assert trace.reward == 0.625


async def test_a_mapping_cannot_take_the_name_of_another_reward() -> None:
    class Clash(Task[TaskData]):
        @reward
        async def a(self) -> float:
            return 0.0

        @reward
        async def b(self) -> Mapping[str, float]:
            return {"a": 1.0}

    trace = Trace()
    with pytest.raises(TaskError, match="another reward is called that"):
        await Clash(TaskData()).score(trace)
    assert trace.rewards == {"a": Reward(0.0), "b": None}


async def test_a_task_without_rewards_is_indeterminate() -> None:
    trace = Trace()
    await Task(TaskData()).score(trace)
    assert (trace.status, trace.reason) == (Status.INDETERMINATE, "the task has no rewards")


async def test_without_a_sandbox_the_rewards_that_need_one_are_skipped_and_nothing_is_claimed() -> None:
    class Needy(Plain):
        @reward
        async def files(self, runtime: Sandbox) -> float:
            return 1.0

    trace = said("42")
    await Needy(Data(answer="42")).score(trace)
    assert trace.rewards == {"right": Reward(1.0, 2.0)}
    assert trace.status is Status.INDETERMINATE
    assert trace.reason is not None and "files" in trace.reason


async def test_rewards_run_concurrently_after_all_metrics() -> None:
    class Meeting(Task[TaskData]):
        def __init__(self, data: TaskData) -> None:
            super().__init__(data)
            self.barrier = asyncio.Barrier(2)

        @reward
        async def one(self, trace: Trace) -> float:
            await self.barrier.wait()
            return trace.metrics["seen"] or 0.0

        @reward
        async def two(self) -> float:
            await self.barrier.wait()
            return 1.0

        @metric
        async def seen(self) -> float:
            return 1.0

    trace = Trace()
    await asyncio.wait_for(Meeting(TaskData()).score(trace), 100)
    assert trace.reward == 2.0


async def test_a_deadline_inside_a_reward_is_the_tasks_error_not_the_callers_timeout() -> None:
    class Slow(Task[TaskData]):
        @reward
        async def slow(self) -> float:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
            return 1.0

    trace = Trace()
    with pytest.raises(TaskError, match="TimeoutError"):
        await Slow(TaskData()).score(trace)
    assert trace.status is Status.SCORING_ERROR


async def test_the_callers_deadline_passes_through_and_leaves_the_status_open() -> None:
    class Hanging(Plain):
        @reward
        async def hangs(self) -> float:
            await asyncio.Event().wait()
            return 1.0

    trace = said("x")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await Hanging(Data(answer="x")).score(trace)
    assert trace.rewards == {"hangs": None, "right": Reward(1.0, 2.0)}
    assert trace.status is None


async def test_of_several_failures_the_reason_names_one_and_counts_the_others() -> None:
    class Failing(Plain):
        @reward
        def broken(self) -> float:
            raise TypeError("boom")

        @reward
        def crooked(self) -> float:
            return float("nan")

    trace = said("")
    with pytest.raises(TaskError):
        await Failing(Data(name="t", answer="x")).score(trace)
    assert trace.reason == "reward broken of task t: TypeError: boom (and 1 more)"


async def test_a_failing_model_or_machine_is_left_to_the_caller_to_judge() -> None:
    class Judged(Task[TaskData]):
        @reward
        async def judge(self) -> float:
            raise ModelError("the judge's model is down")

        @reward
        async def aaa(self) -> float:
            raise RuntimeError("boom")

    trace = Trace()
    with pytest.raises(ModelError) as caught:
        await Judged(TaskData()).score(trace)
    assert trace.status is None
    assert caught.value.__notes__ == ["reward aaa of task Judged: RuntimeError: boom"]


def test_name_hash_key_and_digest() -> None:
    task = Plain(Data(id="i", answer="42"))
    assert task.name == "i"
    assert Plain(Data(name="n", id="i")).name == "n"
    assert Plain(Data()).name == "Plain"
    assert task.key == task.digest == task.hash == Plain(Data(answer="42", id="i")).hash
    assert task.hash != Plain(Data(id="i", answer="43")).hash


def test_a_task_holds_no_secrets_and_leaves_the_time_of_builds_open_unless_it_says_so() -> None:
    task = Plain(Data())
    assert task.secrets.hide("everything shows") == "everything shows" and task.origin.seconds is None


def test_with_data_makes_a_checked_copy() -> None:
    task = Plain(Data(answer="42"))
    other = task.with_data(answer="7", verifier="separate").with_system_prompt("be brief")
    assert (task.data.answer, task.data.system_prompt) == ("42", None)
    assert (other.data.answer, other.data.verifier, other.data.system_prompt) == ("7", "separate", "be brief")
    assert isinstance(other, Plain)
    with pytest.raises(ValidationError):
        task.with_data(verifier="nowhere")


def test_network_and_needs_follow_the_data() -> None:
    assert Plain(Data()).network is None
    assert Plain(Data()).needs == frozenset()
    assert Plain(Data(network_allow=())).network == NO_NETWORK
    assert Plain(Data(network_block=("*",))).needs == {Feature.NO_NETWORK}
    assert Plain(Data(network_allow=("*",))).needs == {Feature.PUBLIC_NETWORK}
    assert Plain(Data(network_allow=("a.test",))).network == Network("allowlist", ("a.test",))
    assert Plain(Data(network_allow=("a.test",))).needs == {Feature.ALLOWLIST}
    blocking = Plain(Data(network_block=("b.test",)))
    assert blocking.network == Network("public", block=("b.test",))
    assert blocking.needs == {Feature.PUBLIC_NETWORK, Feature.ALLOWLIST}
    assert Plain(Data(network_allow=("*", "10.0.0.5"))).network == Network("public", ("10.0.0.5",))
    with pytest.raises(ValidationError, match="'http://a' is no host"):
        Data(network_allow=("http://a",))
    assert Plain(Data(image="debian", agent_user="bob")).needs == {Feature.IMAGES, Feature.USERS}
