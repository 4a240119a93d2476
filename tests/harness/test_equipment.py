from __future__ import annotations

import subprocess
import sys

import pytest

from forkyard.errors import ConfigError, HarnessError
from forkyard.harness import HARNESSES, make_harness
from forkyard.harness.equipment import check_starts, checked, make_state, state_of
from forkyard.sandbox import Sandbox

CLIS = sorted(name for name, harness in HARNESSES.items() if harness.needs_endpoint)


@pytest.mark.parametrize("name", CLIS)
@pytest.mark.parametrize("version", ["latest", "", "../1", "1.2/3", "1 2", "1" * 65, "1;ls"])
def test_a_version_is_one_that_stays_the_same(name: str, version: str) -> None:
    with pytest.raises(ConfigError, match=f"harness '{name}': version .* is no version of a package"):
        make_harness(name, {"version": version})


@pytest.mark.parametrize("name", CLIS)
def test_another_version_is_other_equipment(name: str) -> None:
    pinned, other = make_harness(name).equipment(), make_harness(name, {"version": "9.9.9-rc.1"}).equipment()
    assert pinned is not None and other is not None
    assert pinned.key != other.key
    assert other.what == f"{name} 9.9.9-rc.1"


def test_whoever_uses_no_cli_loads_nothing_for_it() -> None:
    code = """if True:
        import sys
        import forkyard.harness
        loaded = {"forkyard.harness.npm", "forkyard.harness.pypi", "forkyard.harness.packages"} & set(sys.modules)
        assert not loaded, loaded
    """
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_command_of_an_installation_that_fails_is_told_with_its_end(sandbox: Sandbox) -> None:
    with pytest.raises(HarnessError, match=r"^it is so: sh: exit code 3: broken\\x1b$"):
        await checked(sandbox, ["sh", "-c", "printf 'broken\\033' >&2; exit 3"], "it is so")
    assert await checked(sandbox, ["pwd"], "it is so") == "/\n"


async def test_the_state_is_for_whichever_user_the_program_runs_as(sandbox: Sandbox) -> None:
    await make_state(sandbox, "tool")
    assert (await sandbox.run(["stat", "-c", "%a %u", state_of("tool")])).stdout == "1777 0\n"


async def test_an_image_without_the_tools_of_a_shell_is_told(bare_sandbox: Sandbox) -> None:
    with pytest.raises(HarnessError, match="tool needs a shell: sh: exit code 127"):
        await make_state(bare_sandbox, "tool")


async def test_seeing_whether_a_program_starts_leaves_nothing_behind(sandbox: Sandbox) -> None:
    await check_starts(sandbox, ["sh", "-c", "touch ~/left; ls ~"], "it does not start")
    assert (await sandbox.run("ls -A ~ /tmp")).stdout == "/root:\n\n/tmp:\n"
    with pytest.raises(HarnessError, match="it does not start: sh: exit code 127: .*none.* not found"):
        await check_starts(sandbox, ["/opt/none"], "it does not start")
