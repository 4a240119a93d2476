from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from forkyard.errors import ConfigError
from forkyard.harness import (
    BashHarness,
    Harness,
    ModelContext,
    NopHarness,
    OracleHarness,
    ScriptedHarness,
    make_harness,
    tool_callers,
)
from forkyard.sandbox import Sandbox
from forkyard.task import Task
from forkyard.trace import Slot, Trace
from tests.harness.parts import make_task, results

HERE = __name__


class OwnHarness(Harness):
    """A harness as a user writes it."""

    name: ClassVar[str] = "own"

    def __init__(
        self,
        words: str,
        *,
        loud: bool = False,
        times: int | None = None,
        speed: Literal["slow", "fast"] = "slow",
        where: Path = Path(),
        odd: list[str] | None = None,
        **rest: Any,
    ) -> None:
        self.given = (words, loud, times, speed, where)

    async def launch(self, ctx: ModelContext, task: Task[Any], trace: Trace, runtime: Sandbox) -> None:
        """Act."""


class Unfinished(Harness):
    """A harness without launch."""


class Nameless(NopHarness):
    """A harness that says nothing of itself."""


NOT_A_HARNESS = 5


def write_scripts(tmp_path: Path) -> str:
    path = tmp_path / "scripts.json"
    path.write_text(json.dumps({"write": [[{"bash": "echo a"}], [{"bash": "echo b"}, {"content": "B."}]]}))
    return str(path)


def test_names_make_harnesses(tmp_path: Path) -> None:
    made = {name: type(make_harness(name)) for name in ("bash", "nop", "oracle")}
    assert made == {"bash": BashHarness, "nop": NopHarness, "oracle": OracleHarness}
    scripted = make_harness("scripted", {"script": write_scripts(tmp_path)})
    assert isinstance(scripted, ScriptedHarness) and not scripted.needs_model


def test_options_take_the_types_of_the_constructor() -> None:
    harness = make_harness("bash", {"max_turns": "7", "command_timeout": "2.5", "tool_mode": "fenced"})
    assert isinstance(harness, BashHarness)
    assert (harness.max_turns, harness.command_timeout, harness.tool_mode) == (7, 2.5, "fenced")


def test_a_class_of_ones_own_is_named_by_module_and_class() -> None:
    options = {"words": "a b", "loud": "Yes", "times": "3", "speed": "fast", "where": "x/y"}
    harness = make_harness(f"{HERE}:OwnHarness", options)
    assert isinstance(harness, OwnHarness)
    assert harness.given == ("a b", True, 3, "fast", Path("x/y"))


def test_a_harness_that_has_no_name_goes_by_its_class() -> None:
    assert make_harness(f"{HERE}:Nameless").name == "nameless"
    assert make_harness(f"{HERE}:OwnHarness", {"words": "w"}).name == "own"


def test_a_harness_says_which_tasks_it_cannot_play(tmp_path: Path) -> None:
    task = make_task()
    scripted = make_harness("scripted", {"script": write_scripts(tmp_path)})
    assert scripted.problems(task) == [] and NopHarness().problems(task) == []
    (said,) = scripted.problems(task.with_data(name="wriet"))
    assert "no script for task 'wriet'" in said
    assert OracleHarness().problems(task) == ["there is no solution/solve.sh for the oracle to run"]


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("orcle", {}, "no harness 'orcle': did you mean 'oracle'"),
        ("zzz", {}, "known are bash, claude-code, codex, mini-swe-agent, nop, null, oracle, scripted"),
        ("", {}, "no harness ''"),
        ("bash", {"max_turn": "5"}, "no option 'max_turn'; it takes max_turns, output_chars"),
        ("nop", {"zzz": "5"}, "no option 'zzz'; it takes none"),
        ("bash", {"max_turns": "many"}, "option 'max_turns' = 'many': Input should be a valid integer"),
        ("bash", {"command_timeout": "x"}, "should be a valid number"),
        ("bash", {"tool_mode": "magic"}, "should be 'auto', 'native' or 'fenced'"),
        ("bash", {"max_turns": "0"}, "greater than 0"),
        ("bash", {"command_timeout": "nan"}, "greater than 0"),
        ("oracle", {"output_chars": "0"}, "greater than 0"),
        ("scripted", {}, "needs the option 'script'"),
        ("scripted", {"script": "/none.json"}, "cannot be read"),
        (":X", {}, "no harness ':X'"),
        ("no.such.module:X", {}, "cannot be loaded from .*: No module named"),
        (f"{HERE}:Missing", {}, "cannot be loaded"),
        (f"{HERE}:NOT_A_HARNESS", {}, "is not a class"),
        (f"{HERE}:write_scripts", {}, "not a class derived from"),
        (f"{HERE}:Unfinished", {}, "does not define launch"),
        (f"{HERE}:OwnHarness", {"words": "w", "loud": "perhaps"}, "should be a valid boolean"),
        (f"{HERE}:OwnHarness", {"words": "w", "odd": "x"}, "should be a valid list"),
        (f"{HERE}:OwnHarness", {"words": "w", "rest": "x"}, "no option 'rest'"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(name: str, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_harness(name, options)


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_harness(f"{HERE}:OwnHarness", {"times": "x", "zzz": "1"})
    assert len(caught.value.problems) == 3


async def test_scripted_plays_the_script_of_its_task_and_sample(tmp_path: Path, sandbox: Sandbox) -> None:
    harness = ScriptedHarness(script=Path(write_scripts(tmp_path)))
    told = []
    for sample in range(3):
        trace = Trace(task="write", slot=Slot(sample=sample))
        await harness.launch(ModelContext(), make_task(), trace, sandbox)
        told.append((results(trace), trace.last_reply))
        assert (trace.model, trace.stop_condition) == ("scripted", "agent_completed")
    assert told == [(["exit 0\na\n"], "Done."), (["exit 0\nb\n"], "B."), (["exit 0\na\n"], "Done.")]


async def test_scripted_names_a_task_it_has_no_script_for(tmp_path: Path, sandbox: Sandbox) -> None:
    harness = ScriptedHarness(script=Path(write_scripts(tmp_path)))
    with pytest.raises(ConfigError, match="no script for task 'wriet'; did you mean 'write'"):
        await harness.launch(ModelContext(), make_task(), Trace(task="wriet"), sandbox)


def test_who_can_call_tools_is_said_by_the_harnesses_themselves() -> None:
    assert tool_callers("mcp") == "claude-code or codex"
    assert tool_callers() == "bash, claude-code, codex, null or scripted"
