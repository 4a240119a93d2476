"""What an installed package offers by an entry point is known by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.harness import make_harness
from forkyard.plugins import Kind, file_module, function_of, load, make, module_of, names, package_module

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


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", r"ZeroDivisionError: division by zero \(.*/broken_\w+.py, line 2\)"),
        ("raise SystemExit(3)", r"SystemExit: 3 \(.*, line 2\)"),
        ("def f(:", r"SyntaxError: invalid syntax \(.*, line 2\)"),
        ("import no_such_module", r"ModuleNotFoundError: No module named 'no_such_module' \(.*, line 2\)"),
    ],
)
def test_whatever_code_of_users_raises_is_told_with_its_place_whatever_way_it_comes_in(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"broken_{len(code)}"
    file = tmp_path / f"{name}.py"
    file.write_text(f"A = 1\n{code}\n")
    with pytest.raises(ConfigError, match=f"cannot be loaded from '{name}:A': {said}"):
        make_harness(f"{name}:A")
    with pytest.raises(ConfigError, match=f"taskset '{name}' cannot be imported: {said}"):
        module_of("taskset", name)
    for function in (f"{name}.f", f"{name}:f", f"{name}.py:f"):
        with pytest.raises(ConfigError, match=f"cannot be loaded: {said}"):
            function_of(function)
    package = tmp_path / f"{name}_package"
    package.mkdir()
    file.rename(package / "__init__.py")
    said = said.replace(r"/broken_\w+.py", "/__init__.py")
    with pytest.raises(ConfigError, match=f"{package} cannot be imported: {said}"):
        package_module(package)


def test_a_function_is_found_in_the_current_directory_as_a_module_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "found_beside.py").write_text("def f(): return 7\n")
    assert function_of("found_beside.f")() == function_of("found_beside.py:f")() == 7


def test_a_file_is_one_module_as_long_as_it_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "tasks.py"
    one = file_module(file, b"A = 1")
    assert file_module(file, b"A = 1") is one
    assert file_module(file, b"A = 2").A == 2
    assert file_module(tmp_path / "other.py", b"A = 1") is not one
