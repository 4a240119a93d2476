"""The code that docs/tasksets.md shows, run from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import forkyard as vf
from forkyard.task import judging_by
from forkyard.task.boundary import apply_request_hooks
from forkyard.task.judges import judge_class

PAGE = (Path(__file__).parents[2] / "docs" / "tasksets.md").read_text()


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the page defines."""
    defined: dict[str, Any] = {"__name__": "page"}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code, defined)
    return defined


class Judge:
    """Says yes to whoever asks for a word, and 9 of 10 to whoever asks for points."""

    async def __call__(self, messages: Any, sampling: vf.Sampling, model: str | None = None) -> vf.Reply:
        points = "SCORE" in messages[-1]["content"]
        return vf.Reply({"role": "assistant", "content": "SCORE: 9/10" if points else "yes"}, vf.Usage(1, 1))


async def test_the_sets_of_the_page_are_drawn_and_scored(names: dict[str, Any]) -> None:
    tasks = list(names["few"])
    assert len(tasks) == 3 and {task.data.idx for task in tasks} <= set(range(50))
    (task,) = names["Sums"]().include(names=["sum-2"])
    trace = vf.Trace(messages=[vf.AssistantMessage(" 4\n")])
    await task.score(trace)
    assert (trace.reward, trace.metrics) == (1.0, {"turns": 0.0})


async def test_the_interceptor_of_the_page_hides_the_answer(names: dict[str, Any]) -> None:
    task = names["Guarded"](names["Sum"](answer="4"))
    trace: vf.Trace[Any, Any] = vf.Trace(state=task.state_type()())
    request = vf.Request(messages=[vf.UserMessage("x"), vf.ToolMessage("c", "it is 4")])
    sent, _ = await apply_request_hooks(task, trace, request)
    assert (sent.messages[-1].content, trace.state.hidden) == ("(hidden)", 1)


async def test_the_judges_of_the_page_judge(names: dict[str, Any]) -> None:
    polite = names["PoliteTask"](names["Sum"](answer="2"))
    trace, other = (vf.Trace(messages=[vf.AssistantMessage("2")]) for _ in range(2))
    with judging_by(Judge()):
        await names["judged"].score(trace)
        await polite.score(other)
    assert trace.rewards == {"right": vf.Reward(1.0), "reference": vf.Reward(1.0, 0.5), "style": vf.Reward(0.9)}
    assert other.rewards == {"right": vf.Reward(1.0), "polite": vf.Reward(1.0, 0.2)}


async def test_the_tools_of_the_page_are_called(names: dict[str, Any]) -> None:
    (tools,) = names["WithTools"].toolsets(None)
    assert [spec["function"]["name"] for spec in tools.specs()] == ["calculator_add"]
    assert await tools.call("calculator_add", '{"a": 1, "b": 2}') == "3"


def test_every_judge_and_each_of_its_options_is_explained() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", PAGE, re.MULTILINE))
    del rows["id"]  # the header
    assert list(rows) == ["reference", "rubric", "decision", "score"]
    for name, options in rows.items():
        own = set(judge_class(name).config_type().model_fields) - set(vf.JudgeConfig.model_fields)
        assert set(re.findall(r"`(\w+)`", options)) == own
