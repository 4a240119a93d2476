from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from forkyard.task.check import RULES
from tests.cli.forkyard import Forkyard

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
DOCKERFILE = "FROM debian:bookworm-slim\nWORKDIR /app\n"
TOML = '[task]\nname = "t/{name}"\n[environment]\nnetwork_mode = "no-network"\nworkdir = "/app"\n{more}'
SOLVE = "#!/bin/bash\necho 41728 > /app/answer.txt\n"
REWARD = "/logs/verifier/reward.txt"
CHECK = f"#!/bin/bash\nif grep -qsx 41728 /app/answer.txt; then echo 1; else echo 0; fi > {REWARD}\n"


def make(
    root: Path,
    name: str,
    *,
    check: str = CHECK,
    solve: str | None = SOLVE,
    docker: str = DOCKERFILE,
    toml: str = "",
    files: Iterable[tuple[str, str]] = (),
) -> Path:
    task = root / name
    texts = {
        "task.toml": TOML.format(name=name, more=toml),
        "instruction.md": "Write the number of words to /app/answer.txt.\n",
        "environment/Dockerfile": docker,
        "tests/test.sh": check,
        **({} if solve is None else {"solution/solve.sh": solve}),
        **dict(files),
    }
    for place, text in texts.items():
        path = task / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    return task


def rules(stdout: str) -> dict[str, set[str]]:
    """The rules of the findings that count, by task."""
    found: dict[str, set[str]] = {}
    for finding in json.loads(stdout):
        if finding["severity"] != "note":
            found.setdefault(finding["path"].split("/")[1], set()).add(finding["rule"])
    return found


def test_a_new_task_passes_its_checks(forkyard: Forkyard, tmp_path: Path) -> None:
    done = forkyard("tasks", "init", "acme/sums", "--dir", tmp_path / "set")
    assert (done.returncode, done.stderr) == (0, "")
    task = tmp_path / "set/sums"
    assert done.stdout == f"{task} is made; try: forkyard tasks check {task}\n"
    assert 'name = "acme/sums"' in (task / "task.toml").read_text()
    assert os.access(task / "tests/test.sh", os.X_OK) and os.access(task / "solution/solve.sh", os.X_OK)
    assert forkyard("tasks", "check", task, "--static").returncode == 0
    played = forkyard("tasks", "check", task, "--base", "host", "--repeat", 2, "--ignore", "root-agent")
    assert (played.returncode, played.stdout, played.stderr) == (0, "1 task: nothing found\n", "")


def test_the_commands_of_the_page_are_these(forkyard: Forkyard) -> None:
    commands = re.findall(r"^\$ forkyard (tasks .*)$", PAGE, re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["init", "check"]
    init, check = ([*command.split()] for command in commands)
    assert forkyard(*init).returncode == 0
    assert forkyard(*check, "--base", "host", "--repeat", 1).returncode == 0


def test_a_new_task_gives_partial_credit(forkyard: Forkyard, tmp_path: Path) -> None:
    forkyard("tasks", "init", "sums")
    solve = tmp_path / "sums/solution/solve.sh"
    solve.write_text("#!/bin/bash\necho 2 > /app/total.txt\n")
    done = forkyard("run", "sums", "--base", "host", "-a", "oracle", "--run", "r")
    assert "reward 0.50" in done.stdout


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "../a", "-a", ".."])
def test_a_name_that_cannot_be_a_tasks_is_refused(forkyard: Forkyard, tmp_path: Path, name: str) -> None:
    done = forkyard("tasks", "init", "--dir", tmp_path / "set", "--", name)
    assert done.returncode == 1 and "cannot be a task's name" in done.stderr
    assert not (tmp_path / "set").exists()


def test_nothing_is_overwritten(forkyard: Forkyard, tmp_path: Path) -> None:
    (tmp_path / "sums").mkdir()
    done = forkyard("tasks", "init", "sums")
    assert done.returncode == 1 and "already exists" in done.stderr and list((tmp_path / "sums").iterdir()) == []


def test_files_are_read_without_playing(forkyard: Forkyard, tmp_path: Path) -> None:
    make(tmp_path / "set", "good")
    make(tmp_path / "set", "bad", check=f"#!/bin/bash\necho 1 > {REWARD}\n", docker="FROM debian\n")
    done = forkyard("tasks", "check", "set", "--static")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    image = "environment/Dockerfile:1:1"
    assert (
        f"set/bad/{image}: warning unpinned-image: FROM debian names no fixed version; add a tag or a digest" in lines
    )
    assert any(line.startswith("set/bad/tests/test.sh:2:1: error unconditional-reward: ") for line in lines)
    assert lines[-1] == "2 tasks: 1 error, 1 warning, 4 notes"
    assert forkyard("tasks", "check", "set/good", "--static").returncode == 0


def test_how_a_verifier_asks_a_model_is_said_as_for_a_run(forkyard: Forkyard, tmp_path: Path) -> None:
    make(tmp_path / "set", "judged", toml='[verifier.env]\nOPENAI_API_KEY = "${OPENAI_API_KEY}"\n')
    flags = ("set/judged", "--base", "host", "--base-url", "http://127.0.0.1:9/v1", "--api-key-env", "NOBODYS_KEY")
    done = forkyard("tasks", "check", *flags)
    assert done.returncode == 2 and "NOBODYS_KEY is not set, and it is to hold the model's key" in done.stderr
    done = forkyard("tasks", "check", *flags[:3], "--prices", "none.toml")
    assert done.returncode == 2 and "none.toml: cannot be read" in done.stderr
    done = forkyard("run", *flags, "-a", "oracle", "--dry-run")
    assert done.returncode == 1 and "NOBODYS_KEY is not set" in done.stderr


def test_findings_as_json_are_a_list(forkyard: Forkyard, tmp_path: Path) -> None:
    make(tmp_path / "set", "bad", check=f"#!/bin/bash\necho 1 > {REWARD}\n")
    done = forkyard(
        "tasks", "check", "set/bad", "--static", "--json", "--select", "unconditional-reward,unpinned-image"
    )
    (finding,) = json.loads(done.stdout)
    message = finding.pop("message")
    assert finding == {
        "rule": "unconditional-reward",
        "severity": "error",
        "path": "set/bad/tests/test.sh",
        "line": 2,
        "column": 1,
        "output": "",
    }
    assert "whatever the agent did" in message and done.returncode == 1
    left = forkyard(
        "tasks",
        "check",
        "set/bad",
        "--static",
        "--json",
        "--ignore",
        "unconditional-reward",
        "--select",
        "unconditional-reward",
    )
    assert (left.returncode, json.loads(left.stdout)) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["empty"], "empty holds no task"),
        (["set", "--select", "unpined-image"], "did you mean unpinned-image?"),
    ],
)
def test_what_cannot_be_checked_is_said(forkyard: Forkyard, tmp_path: Path, arguments: list[str], said: str) -> None:
    make(tmp_path / "set", "good")
    (tmp_path / "empty").mkdir()
    done = forkyard("tasks", "check", "--static", *arguments)
    assert done.returncode == 2 and said in done.stderr and done.stdout == ""


def test_an_image_that_cannot_be_had_cannot_be_checked(forkyard: Forkyard, tmp_path: Path) -> None:
    make(tmp_path / "set", "good")
    done = forkyard("tasks", "check", "set/good")
    assert done.returncode == 2 and "debian:bookworm-slim" in done.stderr


def test_a_task_that_does_not_load_is_not_played(forkyard: Forkyard, tmp_path: Path) -> None:
    make(tmp_path / "set", "broken", toml="[verifier]\ntimeout_sec = -1\n")
    done = forkyard("tasks", "check", "set", "--base", "host")
    assert (done.returncode, done.stderr) == (1, "") and "error invalid-task-config" in done.stdout


DRAWN = f"""#!/bin/bash
number=$((16#$(head -c 8 /proc/sys/kernel/random/uuid)))
awk -v n="$number" 'BEGIN {{ printf "%.12f", n / 4294967296 }}' > {REWARD}
"""
SERVED = f"#!/bin/bash\nif pgrep -f 'sleep 86399' > /dev/null; then echo 1; else echo 0; fi > {REWARD}\n"
PLAYED = {
    "easy": ({"check": f"#!/bin/bash\nif [ -d /app ]; then echo 1; else echo 0; fi > {REWARD}\n"}, {"nop-earns-one"}),
    "wrong": ({"solve": "#!/bin/bash\ncd /nope || exit 3\n"}, {"oracle-below-one"}),
    "drawn": ({"check": DRAWN}, {"flaky-verifier", "oracle-below-one"}),
    "silent": ({"check": f"#!/bin/bash\nuname /app > {REWARD}x\n: {REWARD}\n"}, {"no-reward-left"}),
    "odd": ({"check": f"#!/bin/bash\nwc -c /etc/passwd > {REWARD}\n"}, {"invalid-reward-left"}),
    "late": (
        {"toml": "[verifier]\ntimeout_sec = 1\n", "check": f"#!/bin/bash\ntail -f /dev/null\ncat > {REWARD}\n"},
        {"verifier-timed-out"},
    ),
    "slow": (
        {"toml": "[agent]\ntimeout_sec = 1\n", "solve": "#!/bin/bash\ntail -f /dev/null\n"},
        {"solution-timed-out", "oracle-below-one"},
    ),
    "leaky": (
        {"docker": DOCKERFILE + "COPY some.sh /opt/x\n", "files": [("environment/some.sh", CHECK)]},
        {"hidden-files-visible"},
    ),
    "unbuilt": ({"docker": DOCKERFILE + "RUN false\n"}, {"image-build-failed"}),
    "good": ({}, set()),
}


@pytest.mark.slow
def test_playing_shows_what_reading_cannot(forkyard: Forkyard, tmp_path: Path) -> None:
    for name, (changes, _) in PLAYED.items():
        make(tmp_path / "set", name, **changes)  # type: ignore[arg-type]
    chosen = ",".join(name for name, rule in RULES.items() if rule.look is None)
    done = forkyard("tasks", "check", "set", "--base", "host", "--repeat", 2, "--json", "--select", chosen)
    assert done.returncode == 1 and done.stderr == ""
    assert rules(done.stdout) == {name: expected for name, (_, expected) in PLAYED.items() if expected}
    wrong = [finding for finding in json.loads(done.stdout) if "/wrong/" in finding["path"]]
    outputs = {finding["rule"]: finding["output"] for finding in wrong}
    assert "solve.sh ended with exit code 3" in outputs["oracle-below-one"]
    assert "cd: /nope: No such file or directory" in outputs["oracle-below-one"]
    messages = {finding["rule"]: finding["message"] for finding in json.loads(done.stdout)}
    assert "as /opt/x" in messages["hidden-files-visible"]


def test_a_reward_that_misses_one_by_rounding_is_the_full_one(forkyard: Forkyard, tmp_path: Path) -> None:
    almost = "0.9999999999"
    make(tmp_path / "set", "solved", check=CHECK.replace("echo 1", f"echo {almost}"))
    make(tmp_path / "set", "easy", check=f"#!/bin/bash\nif [ -d /app ]; then echo {almost}; fi > {REWARD}\n")
    chosen = ("--select", "oracle-below-one,nop-earns-one")
    done = forkyard("tasks", "check", "set", "--base", "host", "--repeat", 1, "--json", *chosen)
    assert rules(done.stdout) == {"easy": {"nop-earns-one"}}, done.stderr


def test_a_verdict_that_depends_on_where_it_is_graded_is_noted(forkyard: Forkyard, tmp_path: Path) -> None:
    solve = "#!/bin/bash\nsleep 86399 > /dev/null 2>&1 &\n"
    make(tmp_path / "set", "served", check=SERVED, solve=solve)
    done = forkyard(
        "tasks", "check", "set/served", "--base", "host", "--repeat", 1, "--select", "verdict-depends-on-mode"
    )
    assert done.returncode == 0
    assert "1 in the agent's sandbox and 0 in a fork of it" in done.stdout


def test_nothing_is_left_of_a_check(forkyard: Forkyard, tmp_path: Path) -> None:
    make(tmp_path / "set", "good", solve=None)
    before = set(tmp_path.iterdir())
    done = forkyard("tasks", "check", "set", "--base", "host", "--repeat", 1)
    assert "warning missing-solution" in done.stdout and done.returncode == 1
    assert set(tmp_path.iterdir()) == before
