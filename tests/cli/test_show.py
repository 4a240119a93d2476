"""`forkyard show` and `forkyard export` over runs that were played."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from tests.cli.forkyard import Forkyard
from tests.run.parts import lines, write_task

PAGE = (Path(__file__).parents[2] / "docs" / "record.md").read_text()
COMMANDS = re.findall(r"^\$ forkyard ((?:show|export) .*)$", PAGE, re.MULTILINE)
NEVER = "#!/bin/bash\nprintf 'no \\033[2J\\n'; echo 0 > /logs/verifier/reward.txt\n"


def samples_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_commands_of_the_page_work_and_its_fields_are_all_there_are(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    (tmp_path / "scripts.json").write_text(json.dumps({"t/a": [[{"bash": "echo done > answer.txt"}]]}))
    options = ("--base", "host", "-a", "scripted", "--ak", "script=scripts.json", "--run", "first")
    assert forkyard("run", "tasks", *options).returncode == 0
    assert len(COMMANDS) == 5
    for command in COMMANDS:
        done = forkyard(*shlex.split(command))
        assert done.returncode == 0, command
    rows = re.findall(r"^\| (`.*?) \| (messages|tokens|both) \| ", PAGE, re.MULTILINE)
    fields = [(name, fmt) for names, fmt in rows for name in re.findall(r"`(\w+)`", names)]
    (sample,) = samples_of((tmp_path / "sft.jsonl").read_text())
    assert list(sample) == [name for name, fmt in fields if fmt != "tokens"]
    assert {name for name, fmt in fields if fmt == "tokens"} == {"token_ids", "prompt_len", "loss_mask", "logprobs"}


def test_a_scripted_run_is_read_and_exported(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "good")
    write_task(tmp_path / "tasks", "never", check=NEVER)
    says = [{"content": "Now.", "bash": "printf '\\033]0;owned\\007'; echo done > answer.txt"}, {"content": "Done it."}]
    (tmp_path / "scripts.json").write_text(json.dumps({"t/good": [says], "t/never": [says]}))
    options = ("--base", "host", "-a", "scripted", "--ak", "script=scripts.json", "--run", "r")
    assert forkyard("run", "tasks", *options).returncode == 0
    good, never = sorted(lines(tmp_path / "runs/r"), key=lambda line: str(line["task"]))

    table = forkyard("show", "runs/r")
    assert (table.returncode, table.stderr) == (0, "") and table.stdout.endswith("\n2 rollouts\n")
    assert {row.split()[1] for row in table.stdout.splitlines()[1:-1]} == {good["id"][:8], never["id"][:8]}
    failed = forkyard("show", "runs/r", "--failed").stdout
    assert "t/never" in failed and "t/good" not in failed and failed.endswith("\n1 of 2 rollouts\n")

    one = forkyard("show", "runs/r", "t/never#0")
    assert (one.returncode, one.stderr) == (0, "")
    assert "SCORED, reward 0, stop agent_completed\n" in one.stdout
    assert "  calls bash (call_0_0)\n    command: printf " in one.stdout
    assert "]0;owned\\x07\n" in one.stdout and "    Done it.\n" in one.stdout
    assert "  output_tail: no \\x1b[2J\n" in one.stdout and "verifier/reward.txt" in one.stdout
    assert "\x1b" not in one.stdout and "\x07" not in one.stdout
    assert forkyard("show", "runs/r", never["id"][:8]).stdout == one.stdout
    (line,) = samples_of(forkyard("show", "runs/r", never["id"], "--json").stdout)
    assert line == never
    assert len(samples_of(forkyard("show", "runs/r", "--json").stdout)) == 2

    done = forkyard("export", "runs/r", "--to", "messages", "--min-reward", "1", "-o", "sft.jsonl")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "forkyard: 1 sample of 1 rollout\nforkyard: left out: 1 with no reward of at least 1\n"
        "forkyard: exported: 1 that call tools of which the record has no description\n"
    )
    (sample,) = samples_of((tmp_path / "sft.jsonl").read_text())
    assert (sample["messages"], sample["id"], sample["reward"]) == (good["messages"], good["id"], 1.0)
    to_pipe = forkyard("export", "runs/r", "--to", "messages", "--task", "t/good")
    assert samples_of(to_pipe.stdout) == [sample]


def test_what_cannot_be_exported_ends_in_an_exit_code(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    assert forkyard("run", "tasks", "--base", "host", "-a", "oracle", "--run", "r").returncode == 0
    none = forkyard("export", "runs/r", "--to", "messages", "-o", "none.jsonl")
    assert (none.returncode, none.stdout) == (1, "") and not (tmp_path / "none.jsonl").exists()
    assert "not exported: 1 without a reply of a model\nforkyard: there is nothing to export" in none.stderr
    (line,) = lines(tmp_path / "runs/r")
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    more = {**line, "sample": 1, "messages": talk, "steps": 1}
    both = tmp_path / "both.jsonl"
    both.write_text(f"{json.dumps(line)}\n{json.dumps(more)}\n")
    partly = forkyard("export", "both.jsonl", "--to", "messages")
    assert partly.returncode == 2 and len(samples_of(partly.stdout)) == 1
    over = forkyard("export", "both.jsonl", "--to", "messages", "-o", "./both.jsonl")
    assert over.returncode == 1 and "both.jsonl is the record itself" in over.stderr
    assert len(both.read_text().splitlines()) == 2
    assert forkyard("export", "runs/r", "--to", "atif").returncode == 1
    shown = forkyard("show", "runs/r", "1").stdout
    assert "\ninfo:\n  oracle:\n" in shown and "t/a #0, rollout 1 of run r" in shown


def test_a_killed_run_is_read_up_to_its_unfinished_line(forkyard: Forkyard, tmp_path: Path) -> None:
    record = {"run": "r", "task": "t", "sample": 0, "status": "SCORED", "reward": 1}
    torn = tmp_path / "torn.jsonl"
    torn.write_text(json.dumps(record) + "\n" + json.dumps(record)[:30])
    shown = forkyard("show", "torn.jsonl")
    assert shown.returncode == 0
    assert shown.stdout.endswith(
        "\n1 rollout\ntorn.jsonl ends in an unfinished line of 30 bytes, not counted: its run "
        "is at work or was killed\n"
    )
    of_no_run = forkyard("show", "torn.jsonl", "1")
    assert of_no_run.returncode == 1 and "torn.jsonl, rollout 1: this is no line of a rollout" in of_no_run.stderr
    assert forkyard("show", "torn.jsonl", "2").returncode == 1
    exported = forkyard("export", "torn.jsonl", "--to", "messages")
    assert exported.returncode == 1
    assert "1 too damaged to be read" in exported.stderr and "unfinished line of 30 bytes" in exported.stderr


def test_what_is_piped_may_be_cut_off(forkyard: Forkyard, tmp_path: Path) -> None:
    record = {"run": "r", "task": "t", "sample": 0, "status": "SCORED", "reward": 1, "reason": "x" * 1000}
    (tmp_path / "a.jsonl").write_text((json.dumps(record) + "\n") * 2000)
    process = forkyard.started("show", "a.jsonl", "--full")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(1) == "#"
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
