"""The page of tools: its code is that of the example, and its command plays."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tools.md").read_text()


def test_the_code_on_the_page_is_that_of_the_example() -> None:
    programs = [(ROOT / "examples" / name).read_text() for name in ("tools.py", "shelf_tools.py")]
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3 and [block for block in blocks if not any(block in text for text in programs)] == []


@pytest.mark.parametrize(
    ("number", "said"), [(0, ["five at most", "sold 3", "7"]), (1, ['["two.txt"]'])], ids=["outside", "in the sandbox"]
)
def test_the_commands_of_the_page_play(home: Path, tmp_path: Path, number: int, said: list[str]) -> None:
    command = re.findall(r"^\$ forkyard (.*)$", PAGE, re.MULTILINE)[number]
    done = subprocess.run(
        [sys.executable, "-m", "forkyard.cli", *shlex.split(command), "--out", tmp_path],
        cwd=ROOT,
        env={**os.environ, "FORKYARD_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (lines,) = tmp_path.glob("*/traces.jsonl")
    (line,) = map(json.loads, lines.read_text().splitlines())
    heard = [message["content"] for message in line["messages"] if message["role"] == "tool"]
    assert (line["status"], line["reward"], heard) == ("SCORED", 1.0, said)


def test_nothing_of_mcp_is_loaded_before_somebody_needs_it() -> None:
    code = "import sys, forkyard, forkyard.tools; assert not {'mcp', 'uvicorn', 'starlette'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_machine_without_the_package_is_told_before_the_run() -> None:
    code = """if True:
        import sys
        sys.modules["mcp"] = None
        from forkyard.harness import BashHarness, CodexHarness
        from tests.tools.parts import shop
        assert BashHarness().problems(shop()) == []
        (said,) = CodexHarness().problems(shop())
        assert said.endswith("pip install 'forkyard[mcp]'"), said
    """
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
