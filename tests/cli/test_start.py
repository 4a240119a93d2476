"""What a command imports before it does anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = """if True:
    import sys
    from forkyard.cli.app import run_command_line
    run_command_line(sys.argv[1:])
    print("loaded", *sorted({name.split(".")[1] for name in sys.modules if name.startswith("forkyard.")}))
    print("commands", *sorted(name for name in sys.modules if name.startswith("forkyard.cli.")))
"""


def loaded(*arguments: str) -> tuple[set[str], set[str]]:
    """The rooms, and the modules of commands, that a command has imported."""
    done = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=True)
    rooms, commands = done.stdout.splitlines()[-2:]
    return set(rooms.split()[1:]), {name.removeprefix("forkyard.cli.") for name in commands.split()[1:]}


@pytest.mark.parametrize("arguments", [("--version",), ("sandbox", "-h"), ("image", "-h"), ("key", "-h")])
def test_a_command_imports_itself_and_not_the_others(arguments: tuple[str, ...]) -> None:
    rooms, commands = loaded(*arguments)
    assert rooms.isdisjoint({"run", "env", "harness", "gateway", "task", "offered"})
    known = {"run", "eval", "doctor", "sandbox", "image", "image_build", "key", "serve", "gateway", "validate"}
    assert commands & known <= {arguments[0], f"{arguments[0]}_build"}
