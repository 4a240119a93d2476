"""What an installed package offers by an entry point is known by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.harness import make_harness
from forkyard.plugins import Kind, load, make, names

CODE = """
from forkyard.harness import NopHarness

class Idle(NopHarness):
    def __init__(self, *, hours: float = 1.0) -> None:
        self.hours = hours

class Unknown:
    def __init__(self, what: "Nothing") -> None: ...
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that was installed beside ours."""
    (tmp_path / "forkyard_idle.py").write_text(CODE)
    info = tmp_path / "forkyard_idle-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: forkyard-idle\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[forkyard.harnesses]\nidle = forkyard_idle:Idle\nlost = forkyard_idle:Lost\nbash = forkyard_idle:Idle\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("outside")
def test_a_harness_of_an_installed_package_is_made_by_its_name() -> None:
    harness = make_harness("idle", {"hours": "2.5"})
    assert (harness.name, vars(harness)) == ("idle", {"hours": 2.5})
    with pytest.raises(ConfigError, match="known are bash, .*scripted, idle, lost, or give"):
        make_harness("zzz")


@pytest.mark.usefixtures("outside")
def test_no_package_takes_the_name_of_one_of_ours() -> None:
    assert type(make_harness("bash")).__module__ == "forkyard.harness.bash"


@pytest.mark.usefixtures("outside")
def test_what_a_package_promises_and_lacks_is_told_with_its_place() -> None:
    with pytest.raises(ConfigError, match="'lost' cannot be loaded from 'forkyard_idle:Lost'"):
        make_harness("lost")


@pytest.mark.usefixtures("outside")
def test_a_type_that_is_not_there_at_run_time_is_told() -> None:
    kind = Kind("thing", "forkyard.things")
    assert names(kind) == []
    name = "forkyard_idle:Unknown"
    with pytest.raises(ConfigError, match="has options of unknown types: .*Nothing"):
        make(kind, name, load(kind, name), {"what": "x"})
