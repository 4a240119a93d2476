"""The programs of docs/python.md that use sandboxes and disks, run as they stand."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
SECTION = PAGE[PAGE.index("## Sandboxes and disks\n") :]
PRINTED = [
    '      3 {"exit": 3}\n\n',
    "hello\n1\n2\n\nreader-of-python mounted-of-python\n",
    "['0\\n', '1\\n', '2\\n', '3\\n']\ngot one\n\n",
    "True True\n",
]


@pytest.mark.slow
def test_the_programs_of_the_page_print_what_they_should(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("disks in sandboxes need root")
    programs = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FORKYARD_", "ARCHIL_"))}
    environ["FORKYARD_HOME"] = str(tmp_path)
    for program, printed in zip(programs, PRINTED, strict=True):
        done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=280)
        assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_the_options_of_the_page_are_those_there_are() -> None:
    import forkyard

    table = SECTION[SECTION.index("| option of") : SECTION.index("An option there is none of")]
    named = [name for row in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert {*named} == {*inspect.signature(forkyard.create_sandbox).parameters} and len(named) == len({*named})


def test_the_verbs_of_the_page_are_those_there_are_and_are_called_so() -> None:
    from forkyard.client import Client, Disk, Sandbox, SandboxProcess
    from forkyard.client.files import Files
    from forkyard.client.verbs import verb

    def usages(kind: type[object], before: str = "") -> set[str]:
        verbs = [value for value in vars(kind).values() if isinstance(value, verb)]
        return {before + value.__get__(object(), kind).usage for value in verbs}

    tables = re.findall(r"(?:^\|.*\n)+", SECTION[SECTION.index("### Every verb") :], re.MULTILINE)
    named = [{*re.findall(r"^\| `(.*?\))`", table, re.MULTILINE)} for table in tables]
    made = {usage for usage in usages(Client) if usage.startswith("create_sandbox(")}
    assert named == [
        usages(Client) - made | {"create_sandbox(name=None, *, ...)"},
        usages(Sandbox) | usages(Files, "files."),
        usages(SandboxProcess),
        usages(Disk),
    ]
