"""`forkyard init`, `validate` and `replay`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forkyard.run import Replay, read_plan, replay
from tests.cli.forkyard import Forkyard
from tests.run.parts import Heard, lines, write_task

ALWAYS = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"
NEVER = "#!/bin/bash\necho 0 > /logs/verifier/reward.txt\n"

JUDGED = """
import forkyard as vf

class Write(vf.Task):
    async def setup(self, runtime: vf.Sandbox) -> None:
        await runtime.run("mkdir -p /app")

    @vf.reward
    async def right(self, runtime: vf.Sandbox) -> float:
        return float((await runtime.run("test -e /app/answer")).ok)

    @vf.reward(weight={weight})
    async def polite(self, trace: vf.Trace) -> float:
        return float("{word}" in trace.last_reply)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))

    async def validate(self):
        return {valid}

TASKS = [Write(vf.TaskData(name=name, prompt="Write it.")) for name in ("a", "b")]
"""

REMEMBERS = """
import forkyard as vf

class Seen(vf.State):
    looked: int = 0

class Look(vf.Task[vf.TaskData, Seen]):
    async def finalize(self, trace: vf.Trace) -> None:
        trace.state.looked += 1

    @vf.reward
    async def looked_up(self, trace: vf.Trace) -> float:
        return float(trace.state.looked == 1)

    @vf.reward
    async def silent(self, trace: vf.Trace) -> float:
        return float(not trace.last_reply)

TASKS = [Look(vf.TaskData(name="a", prompt="Look."))]
"""


class TestInit:
    """What it writes works as it stands."""

    def test_the_new_package_is_valid_and_is_played(self, forkyard: Forkyard, tmp_path: Path) -> None:
        done = forkyard("init", "new-tasks")
        assert done.returncode == 0 and "try: forkyard validate new-tasks" in done.stdout
        checked = forkyard("validate", "new-tasks")
        told = checked.stdout.splitlines()
        assert checked.returncode == 0 and told[-1] == "2 tasks: 2 valid"
        assert sorted(told[:-1]) == ["valid      sum-2-3", "valid      sum-6-7"]
        script = ("--env.agent.harness", "scripted", "--env.agent.harness.script", "new_tasks/scripts.json")
        for env, name in (("single-agent", "s"), ("isolated-verifier", "v")):
            done = forkyard("eval", "new-tasks", *script, "--env.id", env, "--run.name", name)
            assert (done.returncode, done.stderr) == (0, "")
            assert [line["reward"] for line in lines(tmp_path / "runs" / name)] == [1.0, 1.0]
        assert forkyard("eval", "new-tasks", "--env.agent.harness", "nop", "--run.name", "n").returncode == 0
        assert [line["reward"] for line in lines(tmp_path / "runs/n")] == [0.0, 0.0]

    def test_nothing_is_overwritten_and_names_are_checked(self, forkyard: Forkyard, tmp_path: Path) -> None:
        (tmp_path / "taken").mkdir()
        done = forkyard("init", "taken")
        assert done.returncode == 1 and "already exists" in done.stderr and not any((tmp_path / "taken").iterdir())
        assert "cannot be a taskset's name: use letters" in forkyard("init", "9 lives").stderr
        assert "would be called by a keyword of Python" in forkyard("init", "class").stderr
        assert forkyard("init", "other", "-p", "deep/er").returncode == 0
        assert (tmp_path / "deep/er/other/taskset.py").is_file()


class TestValidate:
    """A task is sound when its solution earns and idleness does not."""

    def test_solutions_must_earn_and_idleness_must_not(self, forkyard: Forkyard, tmp_path: Path) -> None:
        write_task(tmp_path / "tasks", "good")
        write_task(tmp_path / "tasks", "given", check=ALWAYS)
        write_task(tmp_path / "tasks", "hopeless", check=NEVER)
        write_task(tmp_path / "tasks", "unsolved", solve=None)
        write_task(tmp_path / "tasks", "silent", check="#!/bin/bash\ntrue\n")
        done = forkyard("validate", "tasks", "--base", "host", "-o", "checked")
        assert done.returncode == 2 and done.stdout.endswith("5 tasks: 2 valid, 2 invalid, 1 error\n")
        rows = {row["name"]: row for row in lines(tmp_path / "checked", "results.jsonl")}
        assert {name: row["reason"] for name, row in rows.items()} == {
            "t/good": "valid",
            "t/given": "invalid",
            "t/hopeless": "invalid",
            "t/unsolved": "valid",
            "t/silent": "error",
        }
        assert rows["t/given"]["error"] == "doing nothing earns the full reward"
        assert rows["t/given"]["noop"]["rewards"] == {"reward": 1.0} and rows["t/given"]["gold"]["valid"] is True
        assert rows["t/hopeless"]["error"] == "the solution does not earn the full reward"
        assert rows["t/unsolved"]["gold"]["reason"] == "unchecked" and rows["t/unsolved"]["gold"]["valid"] is None
        assert list(rows["t/good"]) == [
            *("index", "name", "mode", "valid", "reason", "elapsed", "error", "error_type", "gold", "noop"),
            *("task_position", "task_key"),
        ]
        summary = json.loads((tmp_path / "checked/summary.json").read_text())
        assert summary["total"] == 5 and summary["outcomes"] == {"valid": 2, "invalid": 2, "error": 1}
        assert summary["checks"]["noop"] == {"valid": 3, "invalid": 1, "error": 1} and summary["valid_rate"] == 0.4
        again = forkyard("validate", "tasks", "--base", "host", "-o", "checked")
        assert again.returncode == 1 and "is not empty" in again.stderr

    def test_one_task_is_one_task(self, forkyard: Forkyard, tmp_path: Path) -> None:
        write_task(tmp_path / "tasks", "a")
        done = forkyard("validate", "tasks", "--base", "host", "--only-setup")
        assert done.stdout.endswith("1 task: 1 valid\n")

    @pytest.mark.parametrize(
        ("flags", "mode", "checks", "code"),
        [
            (("--only-setup",), "setup", {"setup": {"valid": 2}}, 0),
            (("--only-noop",), "noop", {"noop": {"valid": 1, "invalid": 1}}, 2),
            (("--only-gold", "-n", "1"), "gold", {"gold": {"valid": 1}}, 0),
            (("--select.include.names", '["t/b"]'), "full", {"gold": {"valid": 1}, "noop": {"valid": 1}}, 0),
        ],
    )
    def test_modes(
        self,
        forkyard: Forkyard,
        tmp_path: Path,
        flags: tuple[str, ...],
        mode: str,
        checks: dict[str, dict[str, int]],
        code: int,
    ) -> None:
        write_task(tmp_path / "tasks", "a", check=ALWAYS)
        write_task(tmp_path / "tasks", "b")
        done = forkyard("validate", "tasks", "--base", "host", "--json", *flags)
        assert done.returncode == code
        found = json.loads(done.stdout)
        assert (found["mode"], found["checks"]) == (mode, checks)

    @pytest.mark.parametrize(("valid", "reason", "code"), [("True", "valid", 0), ("False", "invalid", 2)])
    def test_a_python_task_says_so_itself(
        self, forkyard: Forkyard, tmp_path: Path, valid: str, reason: str, code: int
    ) -> None:
        (tmp_path / "tasks.py").write_text(JUDGED.format(weight=1, word="x", valid=valid))
        done = forkyard("validate", "tasks.py", "--only-gold")
        assert done.returncode == code and f"2 tasks: 2 {reason}" in done.stdout

    def test_no_answer_is_no_mistake_and_an_exception_is(self, forkyard: Forkyard, tmp_path: Path) -> None:
        (tmp_path / "tasks.py").write_text(JUDGED.format(weight=1, word="x", valid="None"))
        assert "2 tasks: 2 unchecked" in forkyard("validate", "tasks.py", "--only-gold").stdout
        (tmp_path / "tasks.py").write_text(JUDGED.format(weight=1, word="x", valid="1 / 0"))
        done = forkyard("validate", "tasks.py", "--only-gold")
        assert done.returncode == 2 and "ZeroDivisionError" in done.stdout

    def test_a_check_has_its_time(self, forkyard: Forkyard, tmp_path: Path) -> None:
        write_task(tmp_path / "tasks", "slow", solve="#!/bin/bash\nsleep 60\n")
        done = forkyard("validate", "tasks", "--base", "host", "--only-gold", "--timeout.total", "1")
        assert done.returncode == 2 and "timeout    t/slow: took longer than 1 s" in done.stdout

    def test_wrong_usage_is_told(self, forkyard: Forkyard, tmp_path: Path) -> None:
        write_task(tmp_path / "tasks", "a")
        assert forkyard("validate").stdout.startswith("Usage: forkyard validate")
        assert (
            "choose one of --only-gold, --only-noop"
            in forkyard("validate", "tasks", "--only-gold", "--only-noop").stderr
        )
        assert "did you mean --only-noop?" in forkyard("validate", "tasks", "--only-nop").stderr
        assert "did you mean 'local'" in forkyard("validate", "tasks", "--runtime.type", "locl").stderr


class TestReplay:
    """A run is scored again without sandboxes."""

    @pytest.fixture
    def played(self, forkyard: Forkyard, tmp_path: Path) -> Path:
        (tmp_path / "tasks.py").write_text(JUDGED.format(weight=1, word="please", valid="True"))
        said = {"a": [[{"bash": "touch /app/answer"}, {"content": "there, please"}]], "b": [[{"content": "no"}]]}
        (tmp_path / "s.json").write_text(json.dumps(said))
        flags = ("--env.agent.harness", "scripted", "--env.agent.harness.script", "s.json", "--run.name", "r", "-c", 1)
        assert forkyard("eval", "tasks.py", *flags).returncode == 0
        assert {line["task"]: line["reward"] for line in lines(tmp_path / "runs/r")} == {"a": 2.0, "b": 0.0}
        return tmp_path / "runs/r"

    def test_what_needs_no_sandbox_is_scored_as_it_is_now(
        self, forkyard: Forkyard, tmp_path: Path, played: Path
    ) -> None:
        before = {path: path.read_bytes() for path in played.iterdir() if path.is_file()}
        (tmp_path / "tasks.py").write_text(JUDGED.format(weight=0.5, word="no", valid="True"))
        done = forkyard("replay", played, "--name", "again")
        assert done.returncode == 0, done.stderr
        assert "note: changed since run r: 2 tasks: a, b" in done.stdout
        new = {line["task"]: line for line in lines(tmp_path / "runs/again")}
        assert {name: line["reward"] for name, line in new.items()} == {"a": 1.0, "b": 0.5}
        assert new["a"]["rewards"] == {
            "right": {"score": 1.0, "weight": 1.0},
            "polite": {"score": 0.0, "weight": 0.5},
        }
        old = {line["task"]: line for line in lines(played)}
        for name, line in new.items():
            assert line["info"]["replay"] == {"run": "r", "id": old[name]["id"], "scored": True}
            assert line["run"] == "again" and line["id"] != old[name]["id"]
            assert line["messages"] == old[name]["messages"] and line["status"] == "SCORED"
        assert read_plan(tmp_path / "runs/again").source == played
        assert {path: path.read_bytes() for path in played.iterdir() if path.is_file()} == before
        assert forkyard("report", "runs/again").returncode == 0
        assert "holds scores of" in forkyard("resume", "runs/again").stderr

    async def test_it_is_headed_by_who_played(self, tmp_path: Path, played: Path) -> None:
        heard = Heard()
        await replay(Replay(source=played, out=tmp_path / "runs", run="again"), heard)
        assert read_plan(played).harness.id == "bash" and heard.headline is not None
        assert heard.headline.harness == lines(played)[0]["harness"] == "scripted"

    def test_twice_gives_the_same(self, forkyard: Forkyard, tmp_path: Path, played: Path) -> None:
        for name in ("one", "two"):
            assert forkyard("replay", played, "--name", name).returncode == 0
        one, two = (
            [(line["task"], line["rewards"], line["metrics"]) for line in lines(tmp_path / "runs" / name)]
            for name in ("one", "two")
        )
        assert one == two == [(line["task"], line["rewards"], line["metrics"]) for line in lines(played)]

    def test_what_tasks_are_scored_by_can_be_told(self, forkyard: Forkyard, tmp_path: Path, played: Path) -> None:
        (tmp_path / "mine.py").write_text("def loud(trace):\n    return float(trace.last_reply.isupper())\n")
        flags = ("--taskset.task.rewards.polite.fn", f"{tmp_path}/mine.py:loud", "--name", "again")
        assert forkyard("replay", played, *flags).returncode == 0
        assert {line["rewards"]["polite"]["score"] for line in lines(tmp_path / "runs/again")} == {0.0}

    def test_what_reads_the_state_keeps_its_value_and_is_named(self, forkyard: Forkyard, tmp_path: Path) -> None:
        (tmp_path / "tasks.py").write_text(REMEMBERS)
        flags = ("--env.agent.harness", "nop", "--run.name", "r")
        assert forkyard("eval", "tasks.py", *flags).returncode == 0
        (before,) = lines(tmp_path / "runs/r")
        done = forkyard("replay", "runs/r", "--name", "again")
        assert done.returncode == 0, done.stderr
        assert "which they read, is on no line: looked_up" in done.stdout
        (line,) = lines(tmp_path / "runs/again")
        assert (line["status"], line["rewards"]) == ("SCORED", before["rewards"])
        assert before["rewards"]["looked_up"] == {"score": 1.0, "weight": 1.0}
        assert line["verifier"]["unrecorded_state"] == ["looked_up"] and "looked_up kept" in line["reason"]
        assert "keeps what it knows in Seen" in forkyard("regrade", "runs/r").stderr

    def test_what_a_mistake_in_the_code_of_a_reward_broke_is_scored_once_that_is_mended(
        self, forkyard: Forkyard, tmp_path: Path
    ) -> None:
        flags = ("--env.agent.harness", "nop", "--run.name")
        broken = JUDGED.format(weight=1, word="please", valid="True").replace("float(len(", "float({}['x'] + len(")
        (tmp_path / "tasks.py").write_text(broken)
        forkyard("eval", "tasks.py", *flags, "r")
        (tmp_path / "tasks.py").write_text(broken.replace("{}['x'] + ", ""))
        done = forkyard("replay", "runs/r", "--name", "again")
        assert done.returncode == 0, done.stderr
        for before, line in zip(lines(tmp_path / "runs/r"), lines(tmp_path / "runs/again"), strict=True):
            assert before["status"] == "SCORING_ERROR" and "KeyError: 'x'" in before["errors"][0]["message"]
            assert (line["status"], line["reward"], line["errors"], line["reason"]) == ("SCORED", 0.0, [], None)
            assert line["metrics"] == {"length": 0.0} and line["info"]["replay"]["scored"]

    def test_what_broke_at_what_needs_a_sandbox_goes_over_as_it_is(self, forkyard: Forkyard, tmp_path: Path) -> None:
        whole = JUDGED.format(weight=1, word="please", valid="True")
        (tmp_path / "tasks.py").write_text(whole.replace('test -e /app/answer")', 'test -e /app/answer")).missing(('))
        forkyard("eval", "tasks.py", "--env.agent.harness", "nop", "--run.name", "r")
        (tmp_path / "tasks.py").write_text(whole)
        forkyard("replay", "runs/r", "--name", "again")
        for before, line in zip(lines(tmp_path / "runs/r"), lines(tmp_path / "runs/again"), strict=True):
            assert "missing" in before["reason"] and not line["info"]["replay"]["scored"]
            assert (line["status"], line["reason"]) == ("SCORING_ERROR", before["reason"])

    def test_failed_rollouts_go_over_as_they_are(self, forkyard: Forkyard, tmp_path: Path, played: Path) -> None:
        first, second = lines(played)
        second |= {"status": "INFRASTRUCTURE_ERROR", "reward": None, "rewards": {}, "reason": "lost"}
        (played / "traces.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
        assert forkyard("replay", played, "--name", "again").returncode == 0
        kept = lines(tmp_path / "runs/again")[1]
        assert (kept["status"], kept["info"]["replay"]["scored"], kept["id"]) == (
            "INFRASTRUCTURE_ERROR",
            False,
            second["id"],
        )

    def test_a_run_with_nothing_to_score_again_is_refused(self, forkyard: Forkyard, tmp_path: Path) -> None:
        write_task(tmp_path / "tasks", "a")
        flags = ("--base", "host", "--env.agent.harness", "oracle", "--run.name")
        assert forkyard("eval", "tasks", *flags, "r").returncode == 0
        done = forkyard("replay", "runs/r")
        assert done.returncode == 1 and "all rewards of its tasks need a sandbox" in done.stderr
        assert forkyard("eval", "tasks", *flags, "n", "--env.id", "best-of-n").returncode == 0
        assert "can be replayed" in forkyard("replay", "runs/n").stderr
        assert "is no run" in forkyard("replay", "nowhere").stderr
        assert [path.name for path in sorted((tmp_path / "runs").iterdir())] == ["n", "r"]
