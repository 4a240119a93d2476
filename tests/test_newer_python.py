"""The newest Python on this machine, with packages of its own, does the main job as the one that runs the tests."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.trixie import KEPT, had

CHECKOUT = Path(__file__).parents[1]
LOCK = CHECKOUT / "requirements.lock"
NEWER = tuple(f"3.{minor}" for minor in (14, 13, 12) if minor > sys.version_info.minor)
# What a Python may change: how processes are started and read, files and archives, sockets. None waits for deadlines.
TOPICS = ("commands", "files", "forks", "hostile_archives", "isolation", "network", "processes", "terminals")
CONTRACT = """
import asyncio, json, os, sys
from pathlib import Path
from forkyard.sandbox.contract import checks, run_check
from forkyard.sandbox.remote import RemoteProvider
from tests.support.serving import served

async def main(url):
    async with RemoteProvider(url, "KEY_OF_THE_SERVER") as provider:
        for check in checks():
            if check.topic in sys.argv[2:]:
                result = await run_check(check, provider)
                print(json.dumps([result.name, result.outcome, result.message]))

with served(Path(sys.argv[1])) as place:
    os.environ["KEY_OF_THE_SERVER"] = place.key
    asyncio.run(main(place.url))
"""


def newest() -> tuple[str, str]:
    """The newest Python here that is newer than this one, and its version; skips the test where there is none."""
    for version in NEWER:
        name = f"python{version}"
        pyenvs = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}"))
        for program in (*map(str, pyenvs), shutil.which(name)):
            if program and _is(program, version):
                return program, version
    pytest.skip(f"no Python newer than {sys.version_info.major}.{sys.version_info.minor} in PATH or ~/.pyenv/versions")


def _is(program: str, version: str) -> bool:
    """Whether a program is the Python it is called after: in PATH there may be a stand-in for one that is missing."""
    said = subprocess.run([program, "-VV"], capture_output=True, text=True, check=False)
    return said.returncode == 0 and said.stdout.startswith(f"Python {version}.") and "free-threading" not in said.stdout


def packages_for(version: str) -> Path:
    """What the lock names, made for that Python and kept for later test runs; skips the test where it cannot be had."""
    machine = platform.machine()
    lock = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    kept = KEPT / f"packages-{version}-{machine}-{lock}"
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT, prefix="packages-") as directory:
            whole = Path(directory) / "whole"
            platforms = [f"--platform=manylinux{made}_{machine}" for made in ("2014", "_2_17", "_2_28")]
            options = ["--only-binary=:all:", f"--python-version={version}", *platforms, f"--target={whole}"]
            options += ["--quiet", "--no-compile", "--no-deps", "--require-hashes", f"--requirement={LOCK}"]
            had([sys.executable, "-m", "pip", "install", *options], f"Python {version}'s packages cannot be had")
            try:
                whole.rename(kept)
            except OSError:  # another run was faster
                if not kept.exists():
                    raise
    return kept


@pytest.mark.slow
def test_a_newer_python_plays_grades_reports_and_serves(tmp_path: Path) -> None:
    program, version = newest()
    path = (packages_for(version), CHECKOUT / "src", CHECKOUT)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FORKYARD_HOME", "PYTHON"))}
    environ |= {"FORKYARD_HOME": str(tmp_path / "home"), "PYTHONPATH": ":".join(map(str, path))}
    environ |= {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode"), "PYTHONWARNINGS": "error"}

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [program, "-s", *arguments], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=250
        )
        assert done.returncode == 0 and "Exception ignored" not in done.stderr, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    play = ("-m", "forkyard.cli", "run", str(CHECKOUT / "examples/tasks/dice-range"), "-a", "oracle")
    said(*play, "--base", "host", "--unbounded", "--run", "one", "--quiet")
    record = json.loads((tmp_path / "runs/one/traces.jsonl").read_text())
    assert (record["status"], record["reward"]) == ("SCORED", 1.0)
    assert "dice-range" in said("-m", "forkyard.cli", "report", "runs/one")

    results = [json.loads(line) for line in said("-c", CONTRACT, str(tmp_path / "home"), *TOPICS).splitlines()]
    assert [result for result in results if result[1] == "broken"] == []
    assert sum(result[1] == "kept" for result in results) > 70
