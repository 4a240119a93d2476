"""Tasks with steps: what each stage takes over, what it says itself, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.sandbox import NO_NETWORK, PUBLIC, Network
from forkyard.task import load_task
from forkyard.task.directory import DirectoryTask
from forkyard.task.directory.stages import Stage
from tests.task.conftest import MakeTask

SCRIPT = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"
FILES: dict[str, str | None] = {
    "instruction.md": None,
    "steps/one/instruction.md": "First.\n",
    "steps/two/instruction.md": "# canary 1\n\nSecond.\n",
}
STEPS = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'


def load(make_task: MakeTask, text: str, files: dict[str, str | None] | None = None, **host: str) -> DirectoryTask:
    return load_task(make_task({"task.toml": text, **FILES, **(files or {})}), host)


def refused(make_task: MakeTask, text: str, files: dict[str, str | None] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(make_task, text, files)
    return caught.value.problems


def test_a_task_without_steps_has_one_stage_with_all_it_says(make_task: MakeTask) -> None:
    text = 'artifacts = ["/app/x"]\n[agent]\nuser = "bob"\n[verifier]\ntimeout_sec = 30\n'
    files = {"solution/solve.sh": "x"}
    (stage,) = load_task(make_task({"task.toml": text, **files}), {}).stages
    assert (stage.name, stage.directory, stage.instruction) == ("", "", "Write done to /app/answer.txt.\n")
    assert (stage.agent.user, stage.agent_seconds, stage.verifier.timeout_sec) == ("bob", 3600, 30)
    assert (stage.tests, stage.script, stage.solution) == (("tests",), "tests/test.sh", "solution")
    assert (stage.workdir, stage.setup, stage.so_far) == (None, None, ())
    assert (stage.healthcheck, stage.min_reward, stage.passes(None)) == (None, {}, True)
    assert [entry.source for entry in stage.artifacts] == ["/logs/artifacts", "/app/x"]
    assert (stage.agent_network, stage.verifier_network) == (None, None)


def test_p2_s1_stages_come_in_the_order_of_the_file_with_their_files(make_task: MakeTask) -> None:
    files: dict[str, str | None] = {
        "tests/helper.py": "x",
        "steps/two/tests/test.sh": SCRIPT,
        "steps/two/solution/solve.sh": "x",
        "steps/two/workdir/setup.sh": "x",
        "solution/solve.sh": "y",
    }
    one, two = load(make_task, STEPS, files).stages
    assert (one.name, one.directory, one.instruction) == ("one", "steps/one", "First.\n")
    assert (one.tests, one.script, one.solution) == (("tests",), "tests/test.sh", "solution")
    assert (one.workdir, one.setup, one.so_far) == (None, None, ())
    assert (two.instruction, two.tests) == ("Second.\n", ("tests", "steps/two/tests"))
    assert (two.script, two.solution) == ("steps/two/tests/test.sh", "steps/two/solution")
    assert (two.workdir, two.setup) == ("steps/two/workdir", "steps/two/workdir/setup.sh")


def test_the_first_stage_is_what_the_task_asks(make_task: MakeTask) -> None:
    assert load(make_task, STEPS).data.prompt == "First.\n"


def test_a_step_needs_no_shared_tests_when_it_has_its_own(make_task: MakeTask) -> None:
    own: dict[str, str | None] = {f"steps/{name}/tests/test.sh": SCRIPT for name in ("one", "two")}
    stages = load(make_task, STEPS, {"tests/test.sh": None, **own}).stages
    assert [stage.tests for stage in stages] == [("steps/one/tests",), ("steps/two/tests",)]


WHOLE = """
artifacts = ["/app/shared"]
[agent]
timeout_sec = 50
user = "bob"
[verifier]
timeout_sec = 30
user = "root"
env = {A = "task", B = "task"}
[[verifier.collect]]
command = "collect"
[environment]
network_mode = "no-network"
[environment.healthcheck]
command = "up"
"""
OWN = """
[[steps]]
name = "one"
min_reward = 0.5
artifacts = ["/app/one", {source = "/logs/artifacts", exclude = ["*.o"]}]
[steps.agent]
timeout_sec = 5
network_mode = "public"
[steps.verifier]
user = 1000
env = {B = "step", C = "${HOST_C}"}
network_mode = "allowlist"
allowed_hosts = ["a.test"]
[steps.healthcheck]
command = "ready"
[[steps]]
name = "two"
min_reward = {reward = 1, speed = 0.25}
[steps.verifier]
timeout_sec = 7
collect = []
"""


def test_s10_s11_a_step_overrides_what_it_says_and_takes_over_the_rest(make_task: MakeTask) -> None:
    task = load(make_task, WHOLE + OWN, HOST_C="from the host")
    one, two = task.stages
    assert (one.agent.user, one.agent_seconds, one.agent_network) == ("bob", 5, PUBLIC)
    assert (one.verifier.user, one.verifier.timeout_sec) == ("1000", 30)
    assert one.verifier_network == Network("allowlist", ("a.test",))
    assert [hook.command for hook in one.verifier.collect] == ["collect"]
    assert one.healthcheck is not None and one.healthcheck.command == "ready"
    assert [entry.source for entry in one.artifacts] == ["/app/shared", "/app/one", "/logs/artifacts"]
    assert (two.agent.user, two.agent_seconds, two.agent_network) == ("bob", 50, NO_NETWORK)
    assert (two.verifier.user, two.verifier.timeout_sec, two.verifier.collect) == ("root", 7, ())
    assert (two.healthcheck, two.verifier_network) == (None, NO_NETWORK)
    assert [entry.source for entry in two.artifacts] == ["/logs/artifacts", "/app/shared"]


def test_variables_of_a_step_are_filled_in_over_those_of_the_task(make_task: MakeTask) -> None:
    task = load(make_task, WHOLE + OWN, HOST_C="from the host")
    first, second = task._variables.of_verifier(0), task._variables.of_verifier(1)
    assert first == {"A": "task", "B": "step", "C": "from the host"}
    assert second == {"A": "task", "B": "task"}
    assert task.secrets.hide("from the host") == "[redacted]"
    (told,) = refused(make_task, WHOLE + OWN)
    assert "steps[0].verifier.env.C needs the host's variable HOST_C" in told and "line 26" in told


def stage_with(make_task: MakeTask, gate: str) -> Stage:
    text = f'[[steps]]\nname = "one"\nmin_reward = {gate}\n'
    return load(make_task, text).stages[0]


@pytest.mark.parametrize(
    ("gate", "rewards", "goes_on"),
    [
        ("0.5", {"reward": 0.5}, True),
        ("0.5", {"reward": 0.49}, False),
        ("0.5", {"other": 1.0}, False),
        ("0.5", None, False),
        ("0", {}, False),
        ("{a = 0.5, b = 1}", {"a": 0.5, "b": 1.0}, True),
        ("{a = 0.5, b = 1}", {"a": 0.5, "b": 0.9}, False),
        ("{a = 0.5, b = 1}", {"a": 0.5}, False),
    ],
)  # fmt: skip
def test_r8_r9_a_gate_is_passed_by_rewards_of_its_least(
    gate: str, rewards: dict[str, float] | None, goes_on: bool, make_task: MakeTask
) -> None:
    assert stage_with(make_task, gate).passes(rewards) is goes_on


NAMES = ["a/b", "..", ".", "CON", "con.txt", "Lpt1", "a.", "a ", "a:b", "a*", "a\\\\b", "a\\u0007", "x" * 256, ""]


@pytest.mark.parametrize("name", NAMES)
def test_t20_a_name_that_cannot_be_a_directory_is_refused(name: str, make_task: MakeTask) -> None:
    (told,) = refused(make_task, f'[[steps]]\nname = "{name}"\n')
    assert "task.toml, line 2: steps[0].name = " in told


@pytest.mark.parametrize("name", ["a b", "é", " a", "x" * 255, "console", "a.con", "COM"])
def test_t20_a_name_that_is_only_unusual_is_fine(name: str, make_task: MakeTask) -> None:
    files: dict[str, str | None] = {f"steps/{name}/instruction.md": "Do it."}
    assert [s.name for s in load(make_task, f'[[steps]]\nname = "{name}"\n', files).stages] == [name]


@pytest.mark.parametrize("other", ["one", "ONE", "OnE"])
def test_t20_two_steps_of_one_name_are_refused(other: str, make_task: MakeTask) -> None:
    text = f'[[steps]]\nname = "one"\n[[steps]]\nname = "{other}"\n'
    (told,) = refused(make_task, text, {f"steps/{other}/instruction.md": "x"})
    assert "line 4: steps[1].name" in told and "an earlier one being 'one'" in told


def test_t20_names_that_differ_in_unicode_form_only_are_refused(make_task: MakeTask) -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    text = f'[[steps]]\nname = "{composed}"\n[[steps]]\nname = "{decomposed}"\n'
    files: dict[str, str | None] = {f"steps/{name}/instruction.md": "x" for name in (composed, decomposed)}
    assert "steps[1].name" in refused(make_task, text, files)[0]


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ('"high"', 'steps[0].min_reward = "high" is neither a number nor a table of numbers'),
        ("true", "steps[0].min_reward = true is neither"),
        ("nan", "steps[0].min_reward = nan is neither"),
        ('{a = "x"}', "steps[0].min_reward.a"),
        ("{a = inf}", "steps[0].min_reward.a = inf is not a finite number"),
    ],
)
def test_t21_a_gate_is_a_number_or_a_table_of_them(gate: str, said: str, make_task: MakeTask) -> None:
    (told,) = refused(make_task, f'[[steps]]\nname = "one"\nmin_reward = {gate}\n')
    assert said in told and ", line 3: " in told


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"steps/two/instruction.md": None}, ["/steps/two is missing; the step 'two' has its instruction.md there"]),
        ({"steps/two/instruction.md": None, "steps/two/x": "x"}, ["/steps/two/instruction.md is missing"]),
        ({"steps/two/instruction.md": "\n"}, ["/steps/two/instruction.md is empty"]),
        ({"tests/test.sh": ""}, ["/tests/test.sh is empty"]),
        ({"steps/one/tests/test.sh": ""}, ["/steps/one/tests/test.sh is empty"]),
        (
            {"tests/test.sh": None, "steps/one/tests/test.sh": SCRIPT},
            ["holds neither steps/two/tests/test.sh nor tests/test.sh"],
        ),
        (
            {".harborignore": "*.sh\n!solve.sh\n", "steps/one/tests/test.sh": SCRIPT},
            [".harborignore excludes steps/one/tests/test.sh", ".harborignore excludes tests/test.sh"],
        ),
    ],
)
def test_what_a_step_lacks_is_said(files: dict[str, str | None], said: list[str], make_task: MakeTask) -> None:
    told = list(dict.fromkeys(refused(make_task, STEPS, files)))
    assert len(told) == len(said)
    assert all(part in sentence for part, sentence in zip(said, told, strict=True))


def test_a_mistake_in_a_step_makes_nobody_look_for_a_task_without_steps(make_task: MakeTask) -> None:
    told = refused(make_task, STEPS + "timeout = 3\n[agent]\ntimeout_sec = -1\n")
    assert len(told) == 2
    assert "line 2: " not in told[0] and "agent.timeout_sec" in told[0]
    assert "line 5: steps[1].timeout is not a key of the task format" in told[1]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[verifier]\nenvironment_mode = "separate"\n' + STEPS, "line 2: verifier.environment_mode"),
        ("[verifier.environment]\ncpus = 1\n" + STEPS, "line 1: verifier.environment"),
        (STEPS + '[steps.verifier]\nenvironment_mode = "separate"\n', "line 6: steps[1].verifier.environment_mode"),
        (STEPS + "[steps.verifier.environment]\ncpus = 1\n", "line 5: steps[1].verifier.environment"),
    ],
)
def test_m4_a_step_that_would_be_graded_apart_is_refused_by_its_key(text: str, place: str, make_task: MakeTask) -> None:
    (told,) = refused(make_task, text)
    assert f"{place}: separate_not_available_for_steps: " in told


def test_m4_a_step_that_says_shared_is_shared(make_task: MakeTask) -> None:
    text = '[verifier]\nenvironment_mode = "separate"\n[[steps]]\nname = "one"\n[steps.verifier]\n'
    task = load(make_task, text + 'environment_mode = "shared"\n')
    assert [stage.verifier.mode for stage in task.stages] == ["shared"]


def test_a_sidecar_of_a_step_needs_a_sidecar(make_task: MakeTask) -> None:
    text = (
        '[[steps]]\nname = "one"\nartifacts = [{source = "/x", service = "api"}]\n'
        '[[steps.verifier.collect]]\ncommand = "x"\nservice = "api"\nuser = "bob"\n'
    )
    told = refused(make_task, text)
    keys = ("steps[0].artifacts[0]", "steps[0].verifier.collect[0].service", "steps[0].verifier.collect[0].user")
    assert all(key in sentence for key, sentence in zip(keys, told, strict=True))
    assert "collect_user_not_supported" in told[2] and ", line 7: " in told[2]
    with_sidecar = load(make_task, text, {"environment/docker-compose.yaml": "services: {api: {image: x}}"})
    assert with_sidecar.stages[0].verifier.collect[0].user == "bob"


@pytest.mark.parametrize(
    ("system", "files", "script"),
    [
        ("linux", {"tests/test.bat": "x"}, "tests/test.sh"),
        ("windows", {"tests/test.bat": "x"}, "tests/test.bat"),
        ("windows", {"tests/test.bat": "x", "tests/test.sh": None}, "tests/test.bat"),
    ],
)
def test_p1_the_script_is_that_of_the_system_inside(
    system: str, files: dict[str, Any], script: str, make_task: MakeTask
) -> None:
    task = load_task(make_task({"task.toml": f'[environment]\nos = "{system}"\n', **files}), {})
    assert (task.stages[0].script, task.stages[0].flaw) == (script, None)


def test_p1_another_systems_script_is_none(make_task: MakeTask) -> None:
    with pytest.raises(ConfigError, match=r"tests/test\.bat is missing"):
        load_task(make_task({"task.toml": '[environment]\nos = "windows"\n'}), {})
    with pytest.raises(ConfigError, match=r"tests/test\.sh is missing"):
        load_task(make_task({"tests/test.sh": None, "tests/test.bat": "x"}, name="linux"), {})


def test_a_link_between_steps_is_refused(make_task: MakeTask, tmp_path: Path) -> None:
    root = make_task({"task.toml": STEPS, **FILES, "steps/one/tests/data/x": "1"})
    (root / "steps/two/tests").mkdir()
    (root / "steps/two/tests/data").symlink_to("../../one/tests/data")
    with pytest.raises(ConfigError, match="which a sandbox does not get together with it"):
        load_task(root, {})
