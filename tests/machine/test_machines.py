"""The engine on machines that this one is not: other control groups, and another kind of processor.

Each is a virtual machine that is really booted, with Debian's kernel; what is tried is in `inside`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine.boot import boot, emulator
from tests.machine.packages import Parts, parts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]
SECONDS = 900  # of which it uses a processor for less than one minute


@pytest.fixture
def prepared(request: pytest.FixtureRequest) -> Parts:
    """What a machine is made of; it takes as long as Debian's packages take to come."""
    emulator(request.param)
    return parts(request.param)


def broken(machine: str, prepared: Parts, work: Path, script: str, least: int) -> list[str]:
    """What was not as it should be; and nothing was left out."""
    said = boot(machine, prepared, work, script, SECONDS)
    assert len(said) >= least, [one.name for one in said]
    return [f"{one.name}: {one.error}" for one in said if one.error]


@pytest.mark.parametrize("prepared", ["x86_64"], indirect=True)
def test_control_groups_of_version_2_keep_limits_for_root_and_for_whom_they_are_delegated_to(
    prepared: Parts, tmp_path: Path
) -> None:
    assert broken("x86_64", prepared, tmp_path, "version2", 27) == []


@pytest.mark.parametrize("prepared", ["aarch64"], indirect=True)
def test_an_aarch64_machine_has_forks_walls_and_limits(prepared: Parts, tmp_path: Path) -> None:
    assert broken("aarch64", prepared, tmp_path, "aarch64", 14) == []
