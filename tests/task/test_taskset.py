import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from forkyard.errors import ConfigError
from forkyard.task import SelectConfig, Task, TaskConfig, TaskData, TaskMatchConfig, Taskset, TasksetConfig


class Three(Taskset):
    name = "three"

    def load(self) -> list[Task]:
        return [Task(TaskData(name=f"org/{name}", id=name)) for name in ("alpha", "beta", "bravo")]


class Number(Task[TaskData]):
    pass


class EndlessConfig(TasksetConfig):
    first: int = 0


class Endless(Taskset[Number, EndlessConfig]):
    INFINITE = True

    def __init__(self, config: EndlessConfig | None = None) -> None:
        super().__init__(config)
        self.built: list[int] = []

    def load(self) -> Iterator[Number]:
        for number in count(self.config.first):
            self.built.append(number)
            yield Number(TaskData(name=f"task-{number}", id=str(number)))


class Ten(Endless):
    INFINITE = False

    def load(self) -> Iterator[Number]:
        return (task for _, task in zip(range(10), super().load(), strict=False))


def names(tasks: Taskset[Any, Any]) -> list[str]:
    return [task.name for task in tasks]


def positions(tasks: Taskset[Any, Any]) -> list[int | None]:
    return [task.data.idx for task in tasks]


def test_iterating_numbers_the_tasks_and_each_key_is_its_hash() -> None:
    assert [(task.data.idx, task.name) for task in Three()] == [(0, "org/alpha"), (1, "org/beta"), (2, "org/bravo")]
    assert len({task.key for task in Ten()}) == 10
    assert all(task.key == task.hash for task in Ten())


def test_views_select_by_name_id_key_or_position_and_leave_the_set_as_it_was() -> None:
    tasks = Three()
    assert names(tasks.include(names=["org/b*"])) == ["org/beta", "org/bravo"]
    assert names(tasks.include(ids=["alpha"], names=["org/bravo"])) == ["org/alpha", "org/bravo"]
    assert names(tasks.include(keys=[list(tasks)[1].key])) == ["org/beta"]
    assert names(tasks.exclude(names=["org/b*"])) == ["org/alpha"]
    assert names(tasks.exclude(idx=[0, "2:"])) == ["org/beta"]
    assert positions(tasks.include(names=["org/b*"]).take(1)) == [1]
    assert positions(tasks.skip(1).skip(1)) == [2]
    assert len(names(tasks)) == 3
    assert tasks.include(ids=["alpha"]).name == "three"


@pytest.mark.parametrize(
    ("idx", "chosen"),
    [
        ("0:10,17", [*range(10), 17]),
        (3, [3]),
        (["::5"], [0, 5, 10, 15]),
        (["18:"], [18, 19]),
        ([":2", "1:4:2"], [0, 1, 3]),
    ],
)
def test_positions_are_numbers_and_slices(idx: Any, chosen: list[int]) -> None:
    assert positions(Endless().take(20).include(idx=idx)) == chosen


@pytest.mark.parametrize("idx", [-1, "a", "3:3", "5:2", "::0", "1:2:3:4", "-1:"])
def test_positions_that_are_none_are_refused(idx: Any) -> None:
    with pytest.raises(ValidationError, match="idx"):
        TaskMatchConfig(idx=idx)


def test_what_matches_no_task_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert names(Three().include(ids=["alpha", "gamma"], idx=[7])) == ["org/alpha"]
        assert len(names(Three().exclude(names=["gam*"]))) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "idx 7, ids 'gamma' matched no task of taskset three (Three)",
        "names 'gam*' matched no task of taskset three (Three)",
    ]


def test_a_choice_of_nothing_is_seen_without_a_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert names(Three().include(names=["gam*"])) == []
    assert caplog.records == []


def test_take_builds_no_more_than_it_takes() -> None:
    tasks = Endless()
    assert positions(tasks.take(3)) == [0, 1, 2]
    assert tasks.built == [0, 1, 2]
    assert positions(tasks.take(5)) == [0, 1, 2, 3, 4]
    assert list(tasks.take(0)) == []
    for wrong in (tasks.take, tasks.skip):
        with pytest.raises(ConfigError):
            wrong(-1)


def test_closed_positions_are_read_no_further_than_needed() -> None:
    tasks = Endless()
    assert positions(tasks.include(idx=["2:4"])) == [2, 3]
    assert tasks.built == [0, 1, 2, 3]


def test_a_view_is_a_set_of_the_same_class_and_leaves_the_base_endless() -> None:
    tasks = Endless()
    view = tasks.take(5)
    assert type(view) is Endless and view.task_type() is Number
    assert (tasks.INFINITE, tasks.bounded, view.bounded) == (True, False, True)
    assert (tasks.include(idx=["0:3"]).bounded, tasks.skip(2).bounded) == (True, False)


def test_shuffling_draws_from_the_whole_set_by_its_seed() -> None:
    first = positions(Ten().shuffle().take(5))
    assert first == positions(Ten().shuffle().take(5)) != [0, 1, 2, 3, 4]
    assert positions(Ten().shuffle(seed=1).take(5)) != first
    assert sorted(positions(Ten().take(5).shuffle()), key=str) == [0, 1, 2, 3, 4]
    assert positions(Ten().shuffle().include(idx=["3:5"])) in ([3, 4], [4, 3])


def test_what_could_never_end_is_refused() -> None:
    with pytest.raises(ValueError, match="infinite"):
        Endless().shuffle()
    with pytest.raises(ValueError, match="infinite"):
        Endless().include(names=["task-3"])
    with pytest.raises(ValueError, match="infinite"):
        Endless().exclude(idx=["5:"])


def test_a_selection_goes_by_its_own_order() -> None:
    chosen = SelectConfig(
        include=TaskMatchConfig(idx=("0:8",)),
        exclude=TaskMatchConfig(ids=("3",)),
        shuffle=True,
        seed=4,
        skip=1,
        limit=3,
    )
    by_hand = Ten().include(idx=["0:8"]).exclude(ids=["3"]).shuffle(4).skip(1).take(3)
    assert positions(Ten().select(chosen)) == positions(by_hand)
    assert positions(Ten().select(SelectConfig())) == list(range(10))
    with pytest.raises(ValidationError):
        SelectConfig(limit=0)


def test_a_config_is_of_the_class_that_the_brackets_name(tmp_path: Path) -> None:
    assert (Endless.config_type(), Three.config_type(), Ten.task_type()) == (EndlessConfig, TasksetConfig, Number)
    prompt = tmp_path / "system.txt"
    prompt.write_text("be brief")
    (task,) = Endless(EndlessConfig(first=7, system_prompt=prompt)).take(1)
    assert (task.name, task.data.system_prompt) == ("task-7", "be brief")
    assert TasksetConfig(id="owner/sums@2").name == "sums"
    assert TasksetConfig().task == TaskConfig()
