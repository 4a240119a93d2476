"""Tasks that go on with a conversation: the conformance rows J1 to J8, and what an agent is told of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.harness.program import instruction
from forkyard.task import DirectoryTask, load_task
from forkyard.trace import Trace
from tests.task.conftest import MakeTask

Document = dict[str, Any]


def document() -> Document:
    """A whole conversation, of every kind of step."""
    call = {"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls"}}
    return {
        "schema_version": "ATIF-v1.8",
        "agent": {"name": "bash", "version": "1"},
        "session_id": "s",
        "steps": [
            {"step_id": 1, "source": "system", "message": "You are an agent."},
            {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "What is here?"}]},
            {
                "step_id": 3,
                "source": "agent",
                "message": "I look.",
                "model_name": "m",
                "reasoning_content": "hm",
                "tool_calls": [call, {**call, "tool_call_id": "c2"}],
                "metrics": {"prompt_tokens": 3, "cost_usd": 0.5},
                "observation": {"results": [{"source_call_id": "c1", "content": "a.txt"}, {"content": "a notice"}]},
                "llm_call_count": 1,
            },
            {"step_id": 4, "source": "agent", "message": "There is a.txt.", "is_copied_context": True},
        ],
        "final_metrics": {"total_steps": 4},
    }


def load(make_task: MakeTask, said: Any, place: str = "trajectory.json", **more: str) -> DirectoryTask:
    text = said if isinstance(said, str) else json.dumps(said)
    return load_task(make_task({place: text, **more}), {})


def test_the_conversation_comes_before_the_instruction(make_task: MakeTask) -> None:
    prompt = load(make_task, document()).data.prompt
    assert isinstance(prompt, list)
    function = {"name": "bash", "arguments": '{"command": "ls"}'}
    assert prompt == [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "What is here?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": name, "type": "function", "function": function} for name in ("c1", "c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "tool", "tool_call_id": "c2", "content": ""},  # every call has an answer, which models insist on
        {"role": "user", "content": "a notice"},
        {"role": "assistant", "content": "There is a.txt."},
        {"role": "user", "content": "Write done to /app/answer.txt.\n"},
    ]


def test_a_program_is_told_of_it_in_one_text(make_task: MakeTask) -> None:
    told = instruction("claude-code", load(make_task, document()), Trace())
    assert told.startswith(
        "This is what was said and done so far:\n\n[system]\nYou are an agent.\n\n[user]\nWhat is here?"
    )
    assert '[assistant]\nI look.\nbash({"command": "ls"})\nbash({"command": "ls"})\n\n[tool]\na.txt\n\n' in told
    assert told.endswith("[assistant]\nThere is a.txt.\n\nGo on from there. Write done to /app/answer.txt.\n")


def test_the_first_step_goes_on_with_the_tasks_or_its_own_and_another_with_its_own_alone(make_task: MakeTask) -> None:
    toml = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
    steps = {f"steps/{name}/instruction.md": f"{name}\n" for name in ("one", "two")}
    of_task, of_one = document(), document()
    of_one["steps"] = [{"step_id": 1, "source": "user", "message": "of one"}]
    task = load(make_task, of_task, "trajectory.json", **{"task.toml": toml, **steps})
    assert [len(stage.so_far) for stage in task.stages] == [7, 0]
    task = load(make_task, of_one, "steps/one/trajectory.json", **{"task.toml": toml, **steps})
    assert [len(stage.so_far) for stage in task.stages] == [1, 0]
    assert task.data.prompt == [{"role": "user", "content": "of one"}, {"role": "user", "content": "one\n"}]
    staging = task.in_stages()
    assert staging is not None
    assert [part.data.prompt for _, part in staging.tasks] == [task.data.prompt, "two\n"]


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "1.7", "1.8"])
def test_every_version_of_the_format_is_read(version: str, make_task: MakeTask) -> None:
    said = {**document(), "schema_version": f"ATIF-v{version}"}
    assert len(load(make_task, said).stages[0].so_far) == 7


def at(*path: str | int, value: Any) -> Callable[[Document], None]:
    """Puts a value at a place of a document."""

    def change(said: Document) -> None:
        there: Any = said
        for key in path[:-1]:
            there = there[key]
        there[path[-1]] = value

    return change


REFERENCE = ("steps", 2, "observation", "results", 0, "subagent_trajectory_ref")
BELOW = {key: value for key, value in document().items() if key != "session_id"}
WRONG: dict[str, tuple[Callable[[Document], None], str]] = {
    "J1 a gap": (at("steps", 3, "step_id", value=5), "step_id 5 stands where 4 is due"),
    "J1 from 0": (at("steps", 0, "step_id", value=0), "step_id 0 stands where 1 is due"),
    "J2 a user's model": (at("steps", 1, "model_name", value="m"), "only a step of an agent has model_name"),
    "J2 a system's calls": (at("steps", 0, "tool_calls", value=[]), "only a step of an agent has tool_calls"),
    "J3 another call": (
        at("steps", 2, "observation", "results", 0, "source_call_id", value="c9"),
        "source_call_id 'c9' is no tool call of the same step",
    ),
    "J4 no id": (at("subagent_trajectories", value=[BELOW]), "needs a trajectory_id"),
    "J4 one id twice": (
        at("subagent_trajectories", value=[{**BELOW, "trajectory_id": "t"}] * 2),
        "have the same trajectory_id",
    ),
    "J5 a session alone": (at(*REFERENCE, value=[{"session_id": "s"}]), "needs its trajectory_id or"),
    "J6 below 0": (at("steps", 2, "llm_call_count", value=-1), "greater than or equal to 0"),
    "J6 no whole number": (at("steps", 2, "llm_call_count", value=1.5), "valid integer"),
    "J6 none called": (at("steps", 2, "llm_call_count", value=0), "has no metrics and no reasoning"),
    "J7 both": (
        at("steps", 1, "message", value=[{"type": "text", "text": "x", "source": {"media_type": "a", "path": "b"}}]),
        "a part has a text, or",
    ),
    "J7 neither": (at("steps", 1, "message", value=[{"type": "text"}]), "a part has a text, or"),
    "J8 in a step": (at("steps", 1, "colour", value="red"), "steps.1.colour: Extra inputs are not permitted"),
    "J8 at the top": (at("colour", value="red"), "colour: Extra inputs are not permitted"),
    "no steps": (at("steps", value=[]), "steps: List should have at least 1 item"),
    "a later version": (at("schema_version", value="ATIF-v2.0"), "schema_version"),
    "a picture": (
        at("steps", 1, "message", value=[{"type": "image", "source": {"media_type": "image/png", "path": "x.png"}}]),
        "step 2 holds an image, and only text is handed on to an agent",
    ),
}


@pytest.mark.parametrize(("change", "expected"), WRONG.values(), ids=WRONG.keys())
def test_j1_to_j8_what_is_wrong_is_told_before_anything_starts(
    change: Callable[[Document], None], expected: str, make_task: MakeTask
) -> None:
    said = document()
    change(said)
    with pytest.raises(ConfigError) as caught:
        load(make_task, said)
    (problem,) = caught.value.problems
    assert "trajectory.json" in problem
    assert expected in problem


@pytest.mark.parametrize(
    "change",
    [
        at("subagent_trajectories", value=[{**BELOW, "trajectory_id": name, "session_id": "s"} for name in "ab"]),
        at("subagent_trajectories", value=[{**BELOW, "trajectory_id": "t"}]),
        at(*REFERENCE, value=[{"trajectory_id": "t"}]),
        at(*REFERENCE, value=[{"trajectory_path": "x.json", "session_id": "s"}]),
        at("steps", 3, "llm_call_count", value=0),
    ],
    ids=["J4 one session", "J4 no session", "J5 an id", "J5 a path", "J6 none called"],
)
def test_j4_to_j6_what_is_right(change: Callable[[Document], None], make_task: MakeTask) -> None:
    said = document()
    change(said)
    assert load(make_task, said).stages[0].so_far


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "Expecting property name"),
        ('{"agent": 1, "agent": 2}', "holds a key twice"),
        ('{"agent": NaN}', "NaN is no JSON"),
        ("[" * 100_000, "recursion"),
        ("\ud800", None),
    ],
    ids=["broken", "a key twice", "no number", "deep", "no text"],
)
def test_what_is_no_json_is_told(text: str, expected: str | None, make_task: MakeTask, tmp_path: Path) -> None:
    root = make_task()
    (root / "trajectory.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError) as caught:
        load_task(root, {})
    (problem,) = caught.value.problems
    assert "is no trajectory that can be gone on with" in problem
    assert expected is None or expected in problem
