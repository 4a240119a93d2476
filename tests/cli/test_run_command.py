from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forkyard.env.config import AgentConfig, HarnessChoice
from forkyard.run import Plan
from forkyard.run.directory import RunDirectory
from tests.cli.forkyard import Forkyard
from tests.run.parts import SOLVE, lines, slots_of, write_task

HALF = '#!/bin/bash\necho \'{"reward": 0.5, "passed": 1, "total": 2}\' > /logs/verifier/reward.json\n'
SILENT = "#!/bin/bash\ntrue\n"
BROKEN = 'workdir = "/etc/passwd"\n'


def test_a_run_tells_each_rollout_the_total_and_the_table(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "good")
    write_task(tmp_path / "tasks", "half", check=HALF)
    write_task(tmp_path / "tasks", "silent", check=SILENT)
    done = forkyard("run", "tasks", "--base", "host", "-a", "oracle", "-k", 2, "--run", "first")
    assert (done.returncode, done.stderr) == (0, "")
    told, _, rest = done.stdout.partition("task      rollouts")
    for sample in (0, 1):
        assert f"t/good #{sample}: reward 1.00 in 0 steps\n" in told
        assert f"t/half #{sample}: reward 0.50 (1/2) in 0 steps\n" in told
        assert f"t/silent #{sample}: INDETERMINATE: " in told
    assert re.search(r"\n6 rollouts in \d+s -> runs/first/traces\.jsonl\n", told)
    assert "overall   6" in rest
    assert slots_of(tmp_path / "runs/first") == [
        (f"t/{name}", k) for name in ("good", "half", "silent") for k in (0, 1)
    ]
    shown = forkyard("report", "runs/first")
    assert shown.stdout == "task      rollouts" + rest


def test_json_is_all_there_is_on_standard_output(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    done = forkyard("run", "tasks/a", "--base", "host", "-a", "oracle", "--json", "--run", "r")
    report = json.loads(done.stdout)
    assert report["groups"][0]["overall"]["mean_reward"] == 1
    assert "t/a #0: reward 1.00" in done.stderr
    again = forkyard("resume", "runs/r", "--json")
    assert json.loads(again.stdout) == report and again.returncode == 0


def test_run_plays_any_env(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    done = forkyard("run", "tasks", "--base", "host", "-a", "oracle", "--env", "best-of-n", "--run", "r")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.count("t/a #0 agent") == 4
    assert all(f"t/a #0 agent{number}: reward 1.00" in done.stdout for number in ("", " 2", " 3", " 4"))
    assert "4 rollouts in" in done.stdout
    again = forkyard("resume", "runs/r")
    assert again.returncode == 0 and "all 1 episodes of runs/r are done" in again.stdout


def test_quiet_says_nothing(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    done = forkyard("run", "tasks", "--base", "host", "-a", "oracle", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_exit_codes_tell_a_missed_threshold_from_infrastructure(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "half", check=HALF)
    common = ("--base", "host", "-a", "oracle", "-q", "-r", 0, "--run")
    assert forkyard("run", "tasks", *common, "met", "--fail-under", "0.5").returncode == 0
    missed = forkyard("run", "tasks", *common, "missed", "--fail-under", "0.51")
    assert missed.returncode == 3 and "below --fail-under 0.51: 0.5" in missed.stderr
    write_task(tmp_path / "tasks", "broken", toml=BROKEN)
    assert forkyard("run", "tasks", *common, "broken", "--fail-under", "0.9").returncode == 2
    again = forkyard("run", "--resume", "runs/broken", "-q")
    assert again.returncode == 2 and len(lines(tmp_path / "runs/broken", "superseded.jsonl")) == 1


def test_resume_says_what_it_does_and_when_there_is_nothing_to_do(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    write_task(tmp_path / "tasks", "broken", toml=BROKEN)
    forkyard("run", "tasks", "--base", "host", "-a", "oracle", "-q", "-r", 0, "--run", "r")
    again = forkyard("resume", "runs/r")
    assert "note: r: 1 rollout done, 1 INFRASTRUCTURE_ERROR to be played again, 0 not yet played\n" in again.stdout
    assert "t/broken #0: INFRASTRUCTURE_ERROR: " in again.stdout and again.returncode == 2
    forkyard("run", "tasks/a", "--base", "host", "-a", "oracle", "-q", "--run", "whole")
    again = forkyard("resume", "runs/whole")
    assert again.stdout.startswith("nothing to do: all 1 rollouts of runs/whole are done\n") and again.returncode == 0


def test_options_that_resume_would_ignore_are_refused(forkyard: Forkyard, tmp_path: Path) -> None:
    for given in (["tasks"], ["-k", "2"], ["--ak", "x=1"], ["-m", "x"]):
        done = forkyard("run", "--resume", "runs/r", *given)
        assert done.returncode == 1 and "the run goes on as it was planned" in done.stderr


def test_every_option_can_be_a_variable(forkyard: Forkyard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path / "tasks", "a")
    for name, value in {"AGENT": "oracle", "BASE": "host", "SAMPLES": "2"}.items():
        monkeypatch.setenv(f"FORKYARD_RUN_{name}", value)
    done = forkyard("run", "tasks")
    assert "2 rollouts in" in done.stdout


def test_hostile_texts_of_tasks_reach_no_terminal(forkyard: Forkyard, tmp_path: Path) -> None:
    task = write_task(
        tmp_path / "tasks", "a", check="#!/bin/bash\nprintf '\\e]0;x\\a\\e[2J' > /logs/verifier/reward.txt\n"
    )
    (task / "task.toml").write_text('[metadata]\nnote = "x"\n')
    task.rename(tmp_path / "tasks" / "a\x1b]0;x\x07\x1b[2J")
    done = forkyard("run", "tasks", "--base", "host", "-a", "oracle")
    assert done.returncode == 2 and "nothing was scored (1 rollout); the reasons are in runs/" in done.stderr
    assert "\\x1b]0;x\\x07\\x1b[2J #0: " in done.stdout
    assert "\x1b" not in done.stdout + done.stderr and "\x07" not in done.stdout + done.stderr


def test_a_run_that_scores_nothing_does_not_end_well(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "silent", check=SILENT)
    for more in ((), ("--fail-under", "0")):
        done = forkyard("run", "tasks", "--base", "host", "-a", "oracle", "-q", "--run", f"r{len(more)}", *more)
        assert done.returncode == 2 and "nothing was scored (1 rollout)" in done.stderr
    again = forkyard("resume", "runs/r0")
    assert again.returncode == 2 and "nothing to do" in again.stdout and "nothing was scored" in again.stderr


def test_a_run_that_was_meant_is_named(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    forkyard("run", "tasks", "--base", "host", "-a", "oracle", "-q", "--run", "r")
    for arguments, said in {
        ("resume", "runs"): "runs is no run: it holds 1 run; name one of them, as runs/r\n",
        ("resume", "r"): "r is no run: did you mean runs/r?\n",
        ("resume", "tasks"): "tasks is no run: it holds no plan.json\n",
        ("report", "runs"): "runs is no run: name those in it, as runs/*\n",
        ("report", "r"): "r does not exist: did you mean runs/r? ",
    }.items():
        done = forkyard(*arguments)
        assert done.returncode == 1 and said in done.stderr


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "5", "-0.1", "1.0001", "half"])
def test_a_threshold_is_a_number_from_0_to_1(forkyard: Forkyard, tmp_path: Path, value: str) -> None:
    write_task(tmp_path / "tasks", "a")
    for command in (("run", "tasks", "--base", "host", "-a", "oracle"), ("resume", "runs/r")):
        done = forkyard(*command, "--fail-under", value)
        assert done.returncode == 1 and "--fail-under" in done.stderr and done.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_a_python_file_is_played_by_the_same_command(forkyard: Forkyard, tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "run/python_tasks.py"
    (tmp_path / "questions.py").write_bytes(source.read_bytes())
    done = forkyard("run", "questions.py:Questions", "-a", "tests.run.python_tasks:Calculator", "--run", "r")
    assert done.returncode == 0, done.stderr
    assert "product #0: reward 1.00" in done.stdout and "overall  2" in done.stdout
    assert forkyard("run", "questions.py", "-a", "nop", "-q", "--fail-under", "0.5").returncode == 3
    wrong = forkyard("run", "questions.py:Question", "-a", "nop")
    assert wrong.returncode == 1 and "Question is neither a Taskset nor a list of Tasks" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Usage: forkyard"),
        (("rum",), "No such command 'rum'"),
        (("run",), "name a task directory"),
        (("run", "tasks"), "nobody is there to play the tasks"),
        (("run", "tasks", "-a", "orcle"), "did you mean 'oracle'?"),
        (("run", "tasks", "-a", "oracle", "--samples", "0"), "--samples"),
        (("run", "tasks", "-a", "oracle", "--agent-timeout", "inf"), "--agent-timeout': inf is not a number above 0"),
        (("run", "tasks", "-a", "oracle", "--ak", "nonsense"), "'nonsense' is not KEY=VALUE"),
        (("run", "tasks", "-a", "oracle", "--verifier", "elsewhere"), "--verifier"),
        (("run", "tasks", "-a", "oracle", "--env", "best-of-m"), "did you mean 'best-of-n'?"),
        (("run", "tasks", "-a", "oracle", "-e", "locl"), "did you mean 'local'?"),
        (("run", "tasks", "-a", "oracle", "--run", "a/b"), "'a/b' cannot be a run's name"),
        (("run", "tasks", "-a", "oracle"), "there is no image 'debian:bookworm-slim'"),
        (("run", "nowhere", "-a", "oracle"), "nowhere does not exist"),
        (("run", "tasks", "-m", "gpt"), "no upstream is known"),
        (("resume", "nowhere"), "nowhere is no run"),
        (("report", "nowhere"), "nowhere does not exist"),
    ],
)
def test_what_cannot_be_done_is_one_message_and_exit_code_1(
    forkyard: Forkyard, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    write_task(tmp_path / "tasks", "a", solve=SOLVE)
    done = forkyard(*arguments)
    assert done.returncode == 1 and said in done.stderr and done.stdout == ""
    assert "Traceback" not in done.stderr and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--run", "taken"), "runs/taken already contains results"),
        (("--run", "full"), "runs/full is not empty"),
        (("-o", "/proc/none"), "cannot be made"),
        (("--prices", "none.toml"), "nobody asks a model: leave --prices out"),
        (("--upstreams", "none.toml"), "nobody asks a model: leave --upstreams out"),
    ],
)
def test_a_dry_run_refuses_what_the_run_itself_would(
    forkyard: Forkyard, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    write_task(tmp_path / "tasks", "a")
    RunDirectory.create(
        Plan(run="taken", paths=(tmp_path,), agent=AgentConfig(harness=HarnessChoice(id="nop")))
    ).close()
    (tmp_path / "runs/full").mkdir()
    (tmp_path / "runs/full/mine").write_text("")
    before = sorted(tmp_path.rglob("*"))
    for more in ((), ("--dry-run",)):
        done = forkyard("run", "tasks", "--base", "host", "-a", "nop", *options, *more)
        assert done.returncode == 1 and said in done.stderr and done.stdout == ""
        assert sorted(tmp_path.rglob("*")) == before


def test_how_the_model_samples_is_said_by_dotted_flags(
    forkyard: Forkyard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "a")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    told = ("--sampling.temperature", "-0.5", "--sampling.max-tokens=5", "--sampling", '{"seed": 3}')
    more = ("--sampling.return-token-ids", "true", "--base-url", "http://127.0.0.1:9/v1")
    common = ("run", "--base", "host", "--dry-run", "--json", "-m", "m")
    done = forkyard(*common, *told, *more, "tasks")
    assert done.returncode == 0, done.stderr
    said = {key: value for key, value in json.loads(done.stdout)["agent"]["sampling"].items() if value}
    assert said == {"temperature": -0.5, "max_tokens": 5, "seed": 3, "return_token_ids": True}
    for words, problem in (
        (("--sampling.temprature", "0.3"), "--sampling.temprature: there is no such option; did you mean"),
        (("--sampling.max-tokens", "x"), "--sampling.max-tokens: input should be a valid integer"),
        (("--sampling.seed",), "--sampling.seed: a value is missing"),
        (("--resume", "runs/r", "--sampling.seed", "3"), "leave --sampling out: the run goes on as it was planned"),
        (("--", "--sampling.seed"), "--sampling.seed"),
    ):
        failed = forkyard("run", "tasks", "-a", "nop", "--base", "host", *words)
        assert failed.returncode == 1 and problem in failed.stderr and failed.stdout == ""


def test_a_dry_run_says_which_tasks_could_not_be_graded_again(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    write_task(tmp_path / "tasks", "b", toml='[verifier]\nenvironment_mode = "separate"\n')
    common = ("run", "tasks", "--base", "host", "-a", "nop", "--dry-run")
    said = "note: what comes out cannot be graded again (`forkyard regrade`): it is graded in the agent's own sandbox"
    shared = forkyard(*common)
    assert shared.returncode == 0, shared.stderr
    (note,) = [line for line in shared.stdout.splitlines() if line.startswith(said)]
    assert note.endswith("; played with --verifier forked it can (task t/a)")
    assert said not in forkyard(*common, "--verifier", "forked").stdout


def test_a_pattern_that_names_no_task_is_told_once(
    forkyard: Forkyard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_task(tmp_path / "tasks", "a")
    common = ("run", "tasks", "--base", "host", "-a", "nop", "--dry-run", "-i", "zzz")
    some = forkyard.apart(*common, "-i", "t/a")
    assert (some.returncode, some.stderr) == (
        0,
        "forkyard: names 'zzz' matched no task of taskset tasks (DirectoryTaskset)\n",
    )
    none = forkyard(*common)
    assert none.returncode == 1 and none.stderr.count("zzz") == 1 and caplog.records == []


def test_a_value_that_is_none_of_an_options_is_told_in_words(forkyard: Forkyard) -> None:
    told = "'apart' is not one of 'shared', 'forked', 'separate' (see `forkyard run --help`)\n"
    assert forkyard("run", "x", "--verifier", "apart").stderr == f"forkyard: Invalid value for '--verifier': {told}"
    for value in ("0", "nan", "inf", "-1"):
        done = forkyard("resume", "runs/r", "--budget-usd", value)
        assert done.returncode == 1 and f"{float(value):g} is not a number above 0" in done.stderr


def test_debug_shows_the_traceback_wherever_it_stands(forkyard: Forkyard) -> None:
    for arguments in (("--debug", "resume", "nowhere"), ("resume", "nowhere", "--debug")):
        done = forkyard(*arguments)
        assert done.returncode == 1 and "Traceback" in done.stderr and "nowhere is no run" in done.stderr


def test_the_program_tells_its_version(forkyard: Forkyard) -> None:
    done = forkyard.apart("--version")
    assert done.returncode == 0 and re.fullmatch(r"forkyard \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.slow
def test_a_model_that_cannot_be_reached_is_an_infrastructure_failure(
    forkyard: Forkyard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "a")
    key = "zq-1234567890"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    done = forkyard("run", "tasks", "--base", "host", "-m", "x", "-r", 0, "--base-url", "http://127.0.0.1:9/v1")
    assert done.returncode == 2 and "INFRASTRUCTURE_ERROR: http://127.0.0.1:9" in done.stdout
    assert key not in done.stdout + done.stderr
    assert all(key not in path.read_text() for path in (tmp_path / "runs").rglob("*") if path.is_file())


def test_a_refused_key_stops_the_run_with_one_message(forkyard: Forkyard, tmp_path: Path) -> None:
    for name in "abcdef":
        write_task(tmp_path / "tasks", name)
    with refusing() as url:
        done = forkyard("run", "tasks", "--base", "host", "-m", "x", "-n", 1, "--base-url", url, "--run", "r")
    assert done.returncode == 2 and len(lines(tmp_path / "runs/r")) == 1
    assert done.stderr.count("stopped early") == 1 and "1 of 6 rollouts are on record, 5 are not" in done.stderr
    assert "forkyard resume runs/r" in done.stderr and "401" in done.stderr


@contextmanager
def refusing() -> Iterator[str]:
    """A model's endpoint that refuses every key."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(401)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()
