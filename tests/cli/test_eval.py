"""`forkyard eval`: what it is told, what it plays, how it ends, and how it goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from forkyard.run import read_plan
from tests.cli.forkyard import Forkyard
from tests.run.parts import SOLVE, lines, slots_of, write_task

TASKS = """
import forkyard as vf

class Word(vf.TaskData):
    word: str = "done"

class Write(vf.Task[Word]):
    async def setup(self, runtime: vf.Sandbox) -> None:
        await runtime.run("mkdir -p /app")

    @vf.reward
    async def right(self, runtime: vf.Sandbox) -> float:
        return float((await runtime.run(f"test $(cat /app/answer) = {self.data.word}")).ok)

    @vf.reward(weight=0.0)
    async def talked(self, trace: vf.Trace) -> float:
        return float(len(trace.messages))

class Words(vf.Taskset):
    name = "words"

    def load(self):
        for word in ("a", "b", "c"):
            artifacts = (vf.Artifact(source="/app/answer", required=False),)
            yield Write(Word(name=word, prompt="Write it.", word=word, artifacts=artifacts), self.config.task)
"""
PACKAGE = '''
from {name}.tasks import Words
import forkyard as vf

class Says(vf.Harness):
    """Writes the name of the task."""
    needs_model = False

    def __init__(self, *, suffix: str = "", times: int = 1) -> None:
        self.suffix, self.times = suffix, times

    async def launch(self, ctx, task, trace, runtime) -> None:
        await runtime.run(f"echo {{task.name}}{{self.suffix}} > /app/answer")

class TwiceConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(max_turns=7)
    tries: int = 2

class Twice(vf.Env[TwiceConfig]):
    id = "twice"

    async def run(self, task, agents):
        for _ in range(self.config.tries):
            await agents.agent.run(task)

__all__ = {exports}
'''


def package(cwd: Path, name: str = "words_pkg", exports: str = '["Words", "Says", "Twice"]') -> Path:
    """A taskset's package. Each test takes a name of its own: a module is imported once."""
    where = cwd / name
    where.mkdir()
    (where / "__init__.py").write_text(PACKAGE.format(name=name, exports=exports))
    (where / "tasks.py").write_text(TASKS)
    return where


@pytest.fixture
def words(tmp_path: Path) -> str:
    (tmp_path / "words.py").write_text(TASKS)
    return "words.py"


def scripts(cwd: Path, **answers: str) -> str:
    """A file of scripts: what each task's agent writes."""
    said = {
        name: [[{"bash": f"echo {answer} > /app/answer"}, {"content": "Done."}]] for name, answer in answers.items()
    }
    (cwd / "scripts.json").write_text(json.dumps(said))
    return "scripts.json"


def only(path: Path) -> Path:
    (found,) = path.iterdir()
    return found


SCRIPTED = ("--env.agent.harness", "scripted", "--env.agent.harness.script", "scripts.json")


def test_without_arguments_and_with_h_it_explains_itself(forkyard: Forkyard) -> None:
    for arguments in ((), ("-h",), ("--help",)):
        done = forkyard("eval", *arguments)
        assert done.returncode == 0 and done.stdout.startswith("Usage: forkyard eval TASKSET")
        assert "-n, --select.limit N" in done.stdout and "--env.agent.max-turns N" in done.stdout
        assert "--env.judge.max-turns" not in done.stdout


def test_the_help_shows_the_flags_of_what_is_chosen_and_no_others(forkyard: Forkyard, words: str) -> None:
    done = forkyard("eval", words, "--env.id", "isolated-verifier", "--env.agent.harness", "scripted", "-h")
    assert "--env.agent.harness.script PATH" in done.stdout and "required" in done.stdout
    assert "--env.verifier.runtime.image TEXT" in done.stdout and "[isolated-verifier]" in done.stdout
    assert "--env.agent.harness.tool-mode" not in done.stdout.replace("scripted", "")
    judged = forkyard("eval", "--env.id", "agentic-judge", "-h")
    assert "--env.judge.model TEXT" in judged.stdout and "--env.score.task-weight X" in judged.stdout


def test_the_command_line_of_the_env_api_works(forkyard: Forkyard, tmp_path: Path) -> None:
    package(tmp_path, "seed_task", '["Words", "Says"]')
    done = forkyard("eval", "seed-task", "--env.id", "isolated-verifier", "--env.agent.runtime.type", "local")
    assert (done.returncode, done.stderr) == (0, "")
    run = only(tmp_path / "runs")
    assert run.name.startswith("isolated-verifier+seed-task--seed_task-Says--")
    found = lines(run)
    assert {(line["task"], line["env"], line["reward"]) for line in found} == {
        (word, "isolated-verifier", 1.0) for word in "abc"
    }


def test_a_task_directory_is_played_by_every_env(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "one")
    (tmp_path / "e.toml").write_text('base = "host"\n[env.agent]\nharness = "oracle"\n')
    for env in ("single-agent", "best-of-n"):
        done = forkyard("eval", "tasks", "--env.id", env, "@", "e.toml", "--run.name", env)
        assert (done.returncode, done.stderr) == (0, "")
    assert [line["reward"] for line in lines(tmp_path / "runs/single-agent")] == [1.0]
    best = lines(tmp_path / "runs/best-of-n")
    assert len(best) == 4 and len({line["episode"] for line in best}) == 1
    assert [line["metrics"]["pass_at_n"] for line in best] == [1.0] * 4


def test_task_directories_beside_an_init_file_are_task_directories(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "one")
    (tmp_path / "tasks/__init__.py").write_text("")
    done = forkyard("eval", "tasks", "--base", "host", "--env.agent.harness", "oracle")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_package_offers_its_env_and_harness_and_flags_go_before(forkyard: Forkyard, tmp_path: Path) -> None:
    package(tmp_path, "offers_both")
    done = forkyard("eval", "offers-both", "--run.name", "own", "--env.agent.harness.suffix", "x", "-n", 1)
    assert done.returncode == 0, done.stderr
    assert len(lines(tmp_path / "runs/own")) == 2 and {line["reward"] for line in lines(tmp_path / "runs/own")} == {0.0}
    plan = read_plan(tmp_path / "runs/own")
    assert plan.env == "offers_both:Twice" and plan.harness.id == "offers_both:Says"
    assert plan.env_config["agent"]["harness"] == {"id": "offers_both:Says", "suffix": "x"}
    done = forkyard("eval", "offers-both", "--env.id", "single-agent", "--env.agent.harness", "nop", "--run.name", "x")
    assert [line["harness"] for line in lines(tmp_path / "runs/x")] == ["nop"] * 3
    asked = forkyard("eval", "offers-both", "-h").stdout
    assert "--env.tries N" in asked and "--env.agent.harness.times N" in asked
    assert "--env.agent.max-turns N" in asked and "[7]" in asked


def test_what_an_env_gives_its_agents_stays_when_one_key_is_set(forkyard: Forkyard, tmp_path: Path) -> None:
    package(tmp_path, "keeps_defaults")
    forkyard("eval", "keeps-defaults", "--env.agent.timeout.rollout", "50", "--run.name", "r")
    assert read_plan(tmp_path / "runs/r").env_config["agent"] == {
        "max_turns": 7,
        "timeout": {"rollout": 50.0},
    }


@pytest.mark.parametrize(
    ("name", "exports", "said"),
    [
        ("exports_none", "[]", "names no class derived from Taskset in its __all__"),
        ("exports_two", '["Words", "More"]\nclass More(Words): pass', "is to name one class derived from Taskset"),
        ("exports_lost", '["Words", "Lost"]', "has no 'Lost', which its __all__ names"),
    ],
)
def test_a_package_exports_one_taskset(forkyard: Forkyard, tmp_path: Path, name: str, exports: str, said: str) -> None:
    package(tmp_path, name, exports)
    done = forkyard("eval", name)
    assert done.returncode == 1 and said in done.stderr and done.stdout == ""


def test_a_package_that_cannot_be_imported_is_told(forkyard: Forkyard, tmp_path: Path) -> None:
    where = package(tmp_path, "breaks_inside")
    (where / "tasks.py").write_text("1 / 0\n")
    done = forkyard("eval", "breaks-inside")
    assert done.returncode == 1 and "cannot be imported: ZeroDivisionError" in done.stderr
    package(tmp_path, "json")
    done = forkyard("eval", "./json")
    assert done.returncode == 1 and "the name 'json' is that of" in done.stderr
    package(tmp_path, "with-dash")
    assert "'with-dash' is no name of a package" in forkyard("eval", "with-dash").stderr


def test_a_package_without_all_and_one_that_is_nowhere_are_told(forkyard: Forkyard, tmp_path: Path) -> None:
    package(tmp_path, "says_nothing", "None\ndel __all__")
    assert "has no __all__" in forkyard("eval", "says-nothing").stderr
    done = forkyard("eval", "owner/no-such-tasks@1.2")
    assert done.returncode == 1
    assert "'owner/no-such-tasks@1.2' not found (tried to import 'no_such_tasks')" in done.stderr
    assert "must already be installed" in done.stderr


def test_every_mistake_is_told_at_once_and_nothing_is_made(forkyard: Forkyard, tmp_path: Path, words: str) -> None:
    (tmp_path / "e.toml").write_text("num_rollouts = 0\n\n[env.agent]\nmax_turn = 2\n")
    flags = ("--env.agent.runtime.typ", "local", "--max-turns", "3", "--env.agent.harness.tool-mod", "native")
    done = forkyard("eval", words, *flags, "@", "e.toml")
    assert done.returncode == 1 and not (tmp_path / "runs").exists()
    assert done.stderr.splitlines() == [
        "forkyard: e.toml, line 4: env.agent.max_turn: there is no such option; did you mean --env.agent.max-turns?",
        "forkyard: --env.agent.runtime.typ: there is no such option; did you mean --env.agent.runtime.type?",
        "forkyard: --max-turns: there is no such option; did you mean --env.agent.max-turns or "
        "--env.agent.harness.max-turns?",
        "forkyard: --env.agent.harness.tool-mod: there is no such option; did you mean --env.agent.harness.tool-mode?",
        "forkyard: e.toml, line 1: num_rollouts: input should be greater than or equal to 1, not 0",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--num-rollouts", "2"), "name a taskset"),
        (("words.py", "other"), "one TASKSET at a time"),
        (("words.py",), "needs a model: name one with -m"),
        (("words.py", "--env.id", "best-of-m"), "did you mean 'best-of-n'?"),
        (("words.py", "--env.agent.harness", "bahs"), "did you mean 'bash'?"),
        (("words.py", "--env.agent.harness", "scripted"), "harness.script: field required"),
        (("words.py", "--env.agent.runtime.type", "locl"), "did you mean 'local'?"),
        (("words.py", "--env.agent.harness", "nop", "-m", "gpt"), "asks no model: leave gpt out"),
        (("words.py", "--env.agent.harness", "nop", "--run.name", "a/b"), "'a/b' cannot be a run's name"),
        (
            ("words.py", "--env.agent.harness", "nop", "--select.include.names", '["z"]'),
            "no task is left to play of 3 tasks (a, b, c): none matches names 'z'. Change -i (of eval: --select.inc",
        ),
        (("words.py", "--env.agent.harness", "nop", "--select.skip", "9"), "--select.skip 9 leaves all of them out"),
        (("words.py", "-m", "gpt"), "no upstream is known for model 'gpt'"),
        (("words.py", "--env.agent.harness", "null"), "the harness 'null' needs a model"),
        (("nowhere/at/all",), "not found"),
        (("./nowhere",), "nowhere does not exist"),
        (("words.py", "@", "none.toml"), "none.toml cannot be read"),
    ],
)
def test_what_cannot_be_done_is_told_with_exit_code_1(
    forkyard: Forkyard, tmp_path: Path, words: str, arguments: tuple[str, ...], said: str
) -> None:
    done = forkyard("eval", *arguments)
    assert done.returncode == 1 and said in done.stderr and done.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_selection_samples_and_the_run_are_what_the_flags_say(forkyard: Forkyard, tmp_path: Path, words: str) -> None:
    flags = (
        "--select.exclude.names",
        '["b"]',
        "-r",
        "2",
        "-c",
        "null",
        "-o",
        "out",
        "--run.dir",
        "d",
        "--run.name",
        "n",
    )
    done = forkyard("eval", words, "--env.agent.harness", "nop", *flags, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["groups"][0]["overall"]["rollouts"] == 4
    assert slots_of(tmp_path / "out/d") == [("a", 0), ("a", 1), ("c", 0), ("c", 1)]
    assert {line["run"] for line in lines(tmp_path / "out/d")} == {"n"}
    first = ["eval", words, "--env.agent.harness", "nop", "-n", "1", "-s", "--run.name"]
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        assert forkyard(*first, name, "--select.seed", seed).returncode == 0
    one, two, three = ([line["task"] for line in lines(tmp_path / "runs" / name)] for name in ("one", "two", "three"))
    assert one == two and len({*one, *three}) == 2


def test_a_taskset_without_an_end_needs_a_limit(forkyard: Forkyard, tmp_path: Path) -> None:
    endless = TASKS.replace('name = "words"', 'name = "words"\n    INFINITE = True')
    endless = endless.replace('("a", "b", "c")', "map(str, __import__('itertools').count())")
    (tmp_path / "endless.py").write_text(endless)
    flags = ("endless.py", "--env.agent.harness", "nop")
    assert "endless.py has no end" in forkyard("eval", *flags).stderr
    assert forkyard("eval", *flags, "-n", 2, "--select.skip", 3, "--run.name", "r").returncode == 0
    assert slots_of(tmp_path / "runs/r") == [("3", 0), ("4", 0)]
    assert "is infinite and cannot be shuffled" in forkyard("eval", *flags, "-s", "-n", 2).stderr


def test_a_dry_run_checks_and_prints_the_plan_and_writes_nothing(
    forkyard: Forkyard, tmp_path: Path, words: str
) -> None:
    done = forkyard("eval", words, "--env.agent.harness", "nop", "--dry-run", "--json")
    assert done.returncode == 0 and list(json.loads(done.stdout)["tasks"]) == ["a", "b", "c"]
    told = forkyard("eval", words, "--env.agent.harness", "nop", "--dry-run", "--num-rollouts", "2").stdout
    assert (
        "tasks      3: a, b, c\n" in told
        and "6 rollouts, 2 of each task, 6 at once" in told
        and "agent      nop on local\n" in told
    )
    assert not (tmp_path / "runs").exists()
    assert forkyard("eval", words, "--dry-run").returncode == 1


def test_a_dry_run_foretells_what_would_become_of_a_run_that_is_there(
    forkyard: Forkyard, tmp_path: Path, words: str
) -> None:
    same = ("eval", words, "--env.agent.harness", "nop", "--run.dir", "d", "-q")
    assert forkyard(*same).returncode == 0
    before = (tmp_path / "runs/d/traces.jsonl").read_bytes()
    assert "already contains results" in forkyard(*same, "--dry-run").stderr
    for how in ("--resume", "--clean"):
        done = forkyard(*same, how, "--dry-run")
        assert (done.returncode, done.stderr) == (0, "") and "nothing is wrong" in done.stdout
    assert "differs in num_rollouts" in forkyard(*same, "--resume", "-r", 2, "--dry-run").stderr
    assert forkyard(*same, "--clean", "--base", "none").returncode == 1
    assert (tmp_path / "runs/d/traces.jsonl").read_bytes() == before


def test_exit_codes_tell_infrastructure_from_thresholds(forkyard: Forkyard, tmp_path: Path, words: str) -> None:
    scripts(tmp_path, a="a", b="b", c="x")
    common = ("eval", words, *SCRIPTED, "-q", "--run.name")
    assert forkyard(*common, "met", "--fail-under", "0.6").returncode == 0
    missed = forkyard(*common, "missed", "--fail-under", "0.7")
    assert missed.returncode == 3 and "below --fail-under 0.7" in missed.stderr
    write_task(tmp_path / "tasks", "broken", toml='workdir = "/etc/passwd"\n')
    flags = ("--base", "host", "--env.agent.harness", "oracle", "--retries", "0", "-q")
    assert forkyard("eval", "tasks", *flags).returncode == 2
    write_task(tmp_path / "silent", "silent", check="#!/bin/bash\ntrue\n", solve=SOLVE)
    silent = forkyard("eval", "silent", *flags)
    assert silent.returncode == 2 and "nothing was scored" in silent.stderr


class TestGoingOn:
    """A run that has lines is gone on with, refused or removed."""

    @pytest.fixture
    def begun(self, forkyard: Forkyard, tmp_path: Path, words: str) -> Path:
        """A run with a good line, a failed one, and a torn one."""
        scripts(tmp_path, a="a", b="b", c="c")
        assert forkyard("eval", words, *SCRIPTED, "--run.dir", "d", "-q").returncode == 0
        run = tmp_path / "runs/d"
        kept, failed, torn = (run / "traces.jsonl").read_text().splitlines()
        broken: dict[str, Any] = {**json.loads(failed), "status": "INFRASTRUCTURE_ERROR", "reward": None}
        (run / "traces.jsonl").write_text(f"{kept}\n{json.dumps(broken)}\n{torn[:100]}")
        return run

    def test_a_run_that_is_there_is_not_played_over(self, forkyard: Forkyard, words: str, begun: Path) -> None:
        before = (begun / "traces.jsonl").read_bytes()
        done = forkyard("eval", words, *SCRIPTED, "--run.dir", "d")
        assert done.returncode == 1 and (begun / "traces.jsonl").read_bytes() == before
        assert "already contains results" in done.stderr and "--resume, and --clean" in done.stderr

    @pytest.mark.parametrize("how", ["the same words and --resume", "--resume alone", "forkyard resume"])
    def test_what_failed_or_is_torn_is_played_again_and_nothing_else(
        self, forkyard: Forkyard, words: str, begun: Path, how: str
    ) -> None:
        kept, failed, _ = (begun / "traces.jsonl").read_text().splitlines()
        if how == "forkyard resume":
            done = forkyard("resume", begun)
        else:
            named = ("--run.dir", "d") if how.startswith("the same") else ()
            done = forkyard("eval", words, *SCRIPTED, *named, "--resume")
        assert done.returncode == 0, done.stderr
        after = lines(begun)
        assert json.dumps(after[0]) == json.dumps(json.loads(kept))
        assert slots_of(begun) == [("a", 0), ("b", 0), ("c", 0)] and {line["reward"] for line in after} == {1.0}
        assert json.loads(failed)["id"] not in {line["id"] for line in after}
        assert [line["status"] for line in lines(begun, "superseded.jsonl")] == ["INFRASTRUCTURE_ERROR"]
        again = forkyard("eval", words, *SCRIPTED, "--run.dir", "d", "--resume")
        assert again.returncode == 0 and "nothing to do" in again.stdout and lines(begun) == after

    def test_a_run_whose_plan_cannot_be_read_is_passed_over_and_told(
        self, forkyard: Forkyard, words: str, begun: Path
    ) -> None:
        (begun.parent / "broken").mkdir()
        (begun.parent / "broken/plan.json").write_text("{")
        done = forkyard("eval", words, *SCRIPTED, "--resume")
        assert done.returncode == 0 and len(lines(begun)) == 3
        assert "note: passed over: runs/broken/plan.json is no plan of a run: Invalid JSON" in done.stdout

    def test_other_flags_are_named(self, forkyard: Forkyard, words: str, begun: Path) -> None:
        done = forkyard("eval", words, *SCRIPTED, "--run.dir", "d", "--resume", "-r", 2, "--env.agent.max-turns", 3)
        assert done.returncode == 1 and "differs in env_config, num_rollouts" in done.stderr
        done = forkyard("eval", words, *SCRIPTED, "-r", 2, "--resume")
        assert done.returncode == 1 and "no run in runs was planned like this" in done.stderr

    def test_clean_removes_the_run_and_resume_may_begin_one(
        self, forkyard: Forkyard, tmp_path: Path, words: str, begun: Path
    ) -> None:
        done = forkyard("eval", words, *SCRIPTED, "--run.dir", "d", "--clean")
        assert done.returncode == 0 and len(lines(begun)) == 3 and not (begun / "superseded.jsonl").exists()
        done = forkyard("eval", words, *SCRIPTED, "--run.dir", "new", "--resume")
        assert done.returncode == 0 and len(lines(tmp_path / "runs/new")) == 3

    @pytest.mark.parametrize("place", ["../elsewhere", ".", "../runs/d"])
    def test_only_a_run_in_the_output_directory_is_removed(
        self, forkyard: Forkyard, tmp_path: Path, words: str, begun: Path, place: str
    ) -> None:
        begun.rename(tmp_path / "elsewhere")
        done = forkyard("eval", words, *SCRIPTED, "--run.dir", place, "--run.name", "n", "--clean")
        assert done.returncode == 1 and "cannot be a run's name" in done.stderr
        assert (tmp_path / "elsewhere/traces.jsonl").exists()

    def test_it_goes_on_from_any_directory(
        self, forkyard: Forkyard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: Path
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert forkyard("resume", begun).returncode == 0


def test_a_taskset_is_told_by_flags_too(forkyard: Forkyard, tmp_path: Path, words: str) -> None:
    scripts(tmp_path, a="a", b="b", c="c")
    flags = ("--env.taskset.task.rewards.talked.weight", "0.25", "--run.name", "r")
    done = forkyard("eval", words, *SCRIPTED, *flags)
    assert done.returncode == 0, done.stderr
    assert {line["rewards"]["talked"]["weight"] for line in lines(tmp_path / "runs/r")} == {0.25}
    wrong = forkyard("eval", words, *SCRIPTED, "--env.taskset.task.rewards.talkd.weight", "1")
    assert wrong.returncode == 1 and "no @vf.reward method named 'talkd'" in wrong.stderr


def test_judges_are_told_by_flag_and_by_file(forkyard: Forkyard, tmp_path: Path, words: str) -> None:
    (tmp_path / "judges.toml").write_text(
        '[[env.taskset.task.judges]]\nid = "reference"\nmodel = "m"\nweight = 0.5\nanswer_field = "word"\n'
    )
    flag = ("--env.taskset.task.judges", '[{"id": "reference", "model": "m", "weight": 0.5, "answer_field": "word"}]')
    for said in (flag, ("@", "judges.toml")):
        done = forkyard(
            "eval",
            words,
            *said,
            "--env.agent.harness",
            "nop",
            "--client.base-url",
            "http://127.0.0.1:9",
            "--dry-run",
            "--json",
        )
        assert "needs an `id`" not in done.stderr
        assert done.returncode == 0, done.stderr
        judges = json.loads(done.stdout)["taskset_config"]["task"]["judges"]
        assert judges == [{"id": "reference", "model": "m", "weight": 0.5, "answer_field": "word"}]


def test_an_env_beside_the_user_is_found_as_a_harness_is(
    forkyard: Forkyard, tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != ""])
    code = "import forkyard as vf\n\nclass Mine(vf.Env):\n    async def run(self, task, agents): ...\n"
    (tmp_path / "env_beside_me.py").write_text(code)
    done = forkyard("eval", words, "--env.id", "env_beside_me:Mine", "--env.agent.harness", "nop", "--dry-run")
    assert done.returncode == 0, done.stderr
