"""The case tasks: each a small task directory with the outcome it must have when its solution (or cheat) is played."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TASKS = Path(__file__).parent / "tasks"
# What only Docker plays (tests/docker/test_played.py); elsewhere it is refused by what it needs before anything starts.
REFUSED = {"compose-sidecar": "several containers"}
APART = ["collect-hook-fails", "hack-path-separate", "separate-declared-only", "separate-odd-names", "separate-overlap"]
PLAYED = sorted(path.name for path in TASKS.iterdir() if path.name not in REFUSED and path.name not in APART)


def forkyard(*arguments: str, home: Path, timeout: float = 280, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "forkyard.cli", *arguments]
    environment = {**os.environ, "FORKYARD_HOME": str(home)}
    return subprocess.run(command, env=environment, capture_output=True, timeout=timeout, **options)


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the image the cases name, made of Debian's packages."""
    if shutil.which("mmdebstrap") is None and (shutil.which("debootstrap") is None or os.getuid() != 0):
        pytest.skip("neither mmdebstrap is installed, nor debootstrap for root (apt-get install mmdebstrap)")
    home = tmp_path_factory.mktemp("home")
    done = forkyard("image", "bootstrap", "debian:bookworm-slim", home=home, timeout=900)
    assert done.returncode == 0, done.stderr
    return home


@pytest.mark.slow
def test_a_debian_made_of_packages_is_one_without_its_manuals(debian: Path) -> None:
    assert forkyard("sandbox", "create", "box", "--image", "debian:bookworm-slim", home=debian).returncode == 0
    script = (
        "cat /etc/debian_version; ls /usr/share/doc /usr/share/man /var/cache/apt/archives/*.deb | wc -w; apt-get -v"
    )
    done = forkyard("sandbox", "run", "box", "--", "sh", "-c", script, home=debian)
    version, leftovers, apt = done.stdout.decode().split("\n")[:3]
    assert version.startswith("12.") and apt.startswith("apt 2."), done
    assert int(leftovers) < 10, done


@pytest.fixture(
    scope="module",
    params=[("shared", "host"), ("forked", "host"), pytest.param(("forked", "debian"), marks=pytest.mark.slow)],
    ids=["shared", "forked", "forked on debian"],
)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every case played once in one run, with a runner whose own standard input is an open pipe that holds data."""
    mode, base = request.param
    out = tmp_path_factory.mktemp("runs")
    home = request.getfixturevalue("debian") if base == "debian" else tmp_path_factory.mktemp("home")
    arguments = ["run", *(str(TASKS / name) for name in PLAYED), "-a", "oracle", "-n", "6"]
    arguments += ["--out", str(out), "--run", "cases", "--verifier", mode]
    if base == "host":
        arguments += ["--base", "host"]
    read, write = os.pipe()
    os.write(write, b"SECRET\n")
    try:
        done = forkyard(*arguments, home=home, stdin=read)
        assert os.read(read, 100) == b"SECRET\n"
    finally:
        os.close(read)
        os.close(write)
    traces = out / "cases" / "traces.jsonl"
    assert traces.exists(), done.stderr.decode()
    raw = traces.read_bytes()
    records = [json.loads(line, parse_constant=pytest.fail) for line in raw.split(b"\n") if line]
    by_task = {record["task"].removeprefix("cases/"): record for record in records}
    return {"mode": mode, "done": done, "raw": raw, "out": out, "records": by_task}


@pytest.mark.parametrize("name", PLAYED)
def test_a_case_has_its_outcome(played: dict[str, Any], name: str) -> None:
    if name == "agent-service-survives" and played["mode"] == "forked":
        pytest.skip("a service the agent left running is what mode forked ends")
    expected = json.loads((TASKS / name / "expected.json").read_text())
    record, outcomes = played["records"][name], [expected["oracle"], *expected.get("also_ok", [])]
    allowed = [{"status": each["status"], "reward": each["reward"]} for each in outcomes]
    assert {"status": record["status"], "reward": record["reward"]} in allowed, record["reason"]
    wall = (record["agent_ms"] or 0) + (record["grade_ms"] or 0)
    assert wall / 1000 <= expected.get("limits", {}).get("max_wall_sec", 60)


def test_a_gate_that_is_shut_is_told_stage_by_stage(played: dict[str, Any]) -> None:
    stages = played["records"]["multi-step-gate"]["verifier"]["stages"]
    expected = json.loads((TASKS / "multi-step-gate" / "expected.json").read_text())["oracle"]["steps"]
    assert {stage["name"]: {"status": stage["status"], "reward": stage["reward"]} for stage in stages} == expected


def test_every_case_leaves_one_line(played: dict[str, Any]) -> None:
    assert sorted(played["records"]) == PLAYED
    assert played["raw"].count(b"\n") == len(PLAYED)
    assert played["done"].returncode in (0, 2)


def test_no_terminal_escape_reaches_the_summary(played: dict[str, Any]) -> None:
    shown = played["done"].stdout + played["done"].stderr
    assert b"\x1b" not in shown
    assert b"\0" not in shown


def test_a_child_that_keeps_stdout_open_is_no_timeout(played: dict[str, Any]) -> None:
    assert played["records"]["child-keeps-stdout-agent"]["stop"] == "agent_completed"


def test_a_verifier_timeout_is_on_the_record(played: dict[str, Any]) -> None:
    assert played["records"]["verifier-timeout"]["verifier"]["timed_out"] is True


def test_a_broken_sandbox_is_blamed_on_the_sandbox(played: dict[str, Any]) -> None:
    record = played["records"]["sandbox-broken"]
    assert "sandbox" in str(record["reason"]).lower() or "not" in str(record["reason"])


def test_no_line_of_the_hosts_passwd_is_in_a_record(played: dict[str, Any]) -> None:
    files = [path.read_bytes() for path in played["out"].rglob("*") if path.is_file()]
    hosts = {line for line in Path("/etc/passwd").read_bytes().splitlines() if b"/home/" in line or b"sshd" in line}
    assert not [line for line in hosts for text in files if line in text]


def test_the_instruction_has_no_byte_order_mark(played: dict[str, Any]) -> None:
    assert b"\\ufeff" not in played["raw"]


def test_a_case_with_a_verifier_of_its_own_has_its_outcome(tmp_path: Path) -> None:
    arguments = ["run", *(str(TASKS / name) for name in APART), "-a", "oracle", "-n", "4", "--base", "host"]
    done = forkyard(*arguments, "--out", str(tmp_path), "--run", "apart", home=tmp_path / "home")
    lines = (tmp_path / "apart" / "traces.jsonl").read_text().splitlines()
    records = {record["task"].removeprefix("cases/"): record for record in map(json.loads, lines)}
    assert sorted(records) == APART, done.stderr
    for name, record in records.items():
        expected = json.loads((TASKS / name / "expected.json").read_text())["oracle"]
        assert {"status": record["status"], "reward": record["reward"]} == expected, (name, record["reason"])
        assert record["verifier"]["mode"] == "separate"
    failed = records["collect-hook-fails"]["verifier"]["failed_hooks"]
    assert [(hook["command"], hook["timed_out"]) for hook in failed] == [
        ("echo broken >&2; exit 7", False),
        ("sleep 120", True),
    ]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_run_here_is_refused_by_name_before_anything_starts(name: str, tmp_path: Path) -> None:
    arguments = ["run", str(TASKS / name), "-a", "oracle", "--base", "host", "--out", str(tmp_path / "runs")]
    done = forkyard(*arguments, home=tmp_path / "home", stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    assert REFUSED[name] in done.stderr.decode()
    assert not (tmp_path / "runs").exists()
