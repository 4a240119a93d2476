"""Which tasks a PATH means, and what is said when it means none."""

from __future__ import annotations

from pathlib import Path

import pytest

import forkyard as vf
from forkyard.errors import ConfigError
from forkyard.task import load_taskset

HEAD = "import forkyard as vf\n\ndef task(name):\n    return vf.Task(vf.TaskData(name=name))\n\n"
SET = "class {name}(vf.Taskset):\n    def load(self):\n        return [task('{task}')]\n\n"
ONE, TWO = SET.format(name="One", task="a"), SET.format(name="Two", task="b")


def write(tmp_path: Path, text: str, name: str = "tasks.py") -> Path:
    path = tmp_path / name
    path.write_text(HEAD + text)
    return path


def names(path: Path | str) -> list[str]:
    return [task.name for task in load_taskset(path)]


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        (ONE, "", ["a"]),
        (ONE, ":One", ["a"]),
        (ONE + TWO, ":Two", ["b"]),
        ("TASKS = [task('x'), task('y')]\n", "", ["x", "y"]),
        ("TASKS = (task('x'),)\n", ":TASKS", ["x"]),
        (ONE + "one = [task('z')]\n", ":one", ["z"]),
        ("_helper = [task('x')]\nOTHER = [1]\nTASKS = [task('y')]\nfrom forkyard import Taskset\n", "", ["y"]),
        ("class Base(vf.Taskset):\n    pass\n\n" + ONE.replace("vf.Taskset", "Base"), "", ["a"]),
        (ONE + "few = One().take(1)\n", ":few", ["a"]),
    ],
)
def test_the_tasks_a_file_offers(text: str, name: str, found: list[str], tmp_path: Path) -> None:
    assert names(f"{write(tmp_path, text)}{name}") == found


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("", "", "is to define a Taskset, or a list of Tasks, at its top level, and defines none"),
        (ONE + TWO, "", "tasks.py:NAME, of One, Two"),
        (ONE, ":Onee", "tasks.py defines no Onee: did you mean One?"),
        (ONE, ":zzz", "tasks.py defines no zzz: it offers One"),
        ("x = 5\n", ":x", "x is neither a Taskset nor a list of Tasks, but int"),
        ("1 / 0\n", "", "tasks.py, line 6: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)\n", "", "tasks.py, line 7: SystemExit: 3"),
        ("def broken(:\n", "", "tasks.py, line 6: SyntaxError: "),
        ("import no_such_module\n", "", "tasks.py, line 6: ModuleNotFoundError: "),
        ("T = [5, task('a')]\n", ":T", "tasks.py: T holds 5, which is no Task"),
        ("class S(vf.Taskset):\n    def load(self):\n        yield 5\n", "", "S.load gives 5, which is no Task"),
        ("class S(vf.Taskset):\n    def load(self):\n        open('/nowhere/x')\n", "", "line 8: FileNotFoundError"),
        ("class S(vf.Taskset):\n    def __init__(self, x):\n        pass\n    load = None\n", "", "TypeError: "),
        ("class S(vf.Taskset):\n    def load(self):\n        raise vf.ConfigError('mend me')\n", "", "mend me"),
    ],
)  # fmt: skip
def test_what_offers_no_tasks_is_said_with_file_and_line(text: str, name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        names(f"{write(tmp_path, text)}{name}")
    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.py cannot be read: No such file"):
        load_taskset(tmp_path / "none.py")
    with pytest.raises(ConfigError, match="does not exist: name a task directory"):
        load_taskset(tmp_path / "none")


def test_a_directory_may_be_called_like_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no task"):
        (tmp_path / "set.py").mkdir()
        load_taskset(tmp_path / "set.py")


def test_a_change_of_the_code_is_a_change_of_the_task(tmp_path: Path) -> None:
    before = {task.digest for task in load_taskset(write(tmp_path, ONE))}
    assert {task.digest for task in load_taskset(write(tmp_path, ONE))} == before
    after = {task.digest for task in load_taskset(write(tmp_path, ONE + "# better\n"))}
    assert after.isdisjoint(before) and all(digest.startswith("sha256:") for digest in before | after)


def test_neighbours_of_the_file_can_be_imported_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_tasks.py").write_text("NAME = 'from next door'\n")
    path = write(tmp_path, "import neighbour_of_tasks\nTASKS = [task(neighbour_of_tasks.NAME)]\n")
    assert names(path) == ["from next door"]
    assert not list((tmp_path / "__pycache__").glob("tasks*"))


def test_tasks_may_have_data_and_hooks_of_their_own(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nimport forkyard as vf\n\n"
        "class Data(vf.TaskData):\n    answer: str\n\n"
        "class Own(vf.Task[Data]):\n    @vf.reward\n"
        "    def right(self, trace: vf.Trace) -> float:\n        return 1.0\n\n"
        "TASKS = [Own(Data(name='x', answer='y'))]\n"
    )
    (tmp_path / "own.py").write_text(text)
    (task,) = load_taskset(tmp_path / "own.py")
    assert isinstance(task, vf.Task) and task.data.model_dump()["answer"] == "y" and task.data.idx == 0
