"""The commands and programs of docs/server.md, run in their order as they stand, in one shell."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "server.md").read_text()


def script() -> str:
    """Every block of the page: commands as they are typed, programs as they are given to Python."""
    lines = ["set -eu"]
    for kind, block in re.findall(r"```(console|python)\n(.*?)```", PAGE, re.DOTALL):
        if kind == "console":
            lines += [line.removeprefix("$ ") for line in block.splitlines()]
        else:
            lines += ["python - <<'END'", block, "END"]
    return "\n".join(lines)


@pytest.mark.slow
async def test_the_commands_of_the_page_work_in_their_order(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed (apt-get install curl)")
    for package in ("archil", "boto3"):
        pytest.importorskip(package)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "FORKYARD_HOME": str(tmp_path / "home"),
        "FORKYARD_MIRRORS": os.environ["FORKYARD_MIRRORS"],
        "FORKYARD_SERVE_PORT": "0",  # the page has the usual port, which may be in use here
    }
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:  # files: the server outlives a shell that fails
        shell = await asyncio.create_subprocess_exec(
            "bash", "-c", script() + "\nkill %1\nwait %1\n", cwd=tmp_path, env=environment, start_new_session=True,
            stdout=stdout, stderr=stderr,
        )  # fmt: skip
    try:
        await shell.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, err.read_text()
    assert "['laptop', 'from-python']" in out.read_text()
    assert "revoked ci" in out.read_text() and (tmp_path / "ci.sh").read_text().count("export ") == 3
