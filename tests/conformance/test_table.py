"""Which test shows which row of the format's conformance list, and why some rows have none.

A row is shown by the tests that name it (`test_m5_...`, `test_r8_r9_...`, `test_j1_to_j8_...`) or those of `SHOWN_BY`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS = {"R": 10, "T": 25, "E": 15, "P": 5, "M": 9, "A": 14, "N": 20, "S": 13, "Q": 5, "L": 4, "J": 8, "G": 8}

SHOWN_BY = {
    "R10": "report/test_report.py::test_metrics_and_single_rewards_are_averaged_and_rewards_over_one_are_said",
    "P3": "task/test_verifier.py::test_scripts_without_exec_bit_run_and_other_modes_are_kept",
    "E13": "env/test_verifier_models.py::test_what_a_run_says_to_verifiers_wins_and_anything_else_is_refused_by_name",
    "E14": "task/test_load.py::test_every_missing_variable_is_named_with_its_line",
    "E15": "task/test_verifier.py::test_a_secret_of_the_host_shows_on_no_record",
    "A13": "grade/test_artifacts.py::test_6_4_hostile_archives_are_refused_before_anything_changes",
    "Q2": "test_values.py::test_pauses_double_up_to_half_a_minute_and_are_spread",
    "Q3": "model/test_chat.py::test_a_passing_fault_is_retried",
    "Q4": "run/test_signals.py::test_the_first_signal_ends_a_run_in_order",
    "L1": "run/test_run.py::test_a_run_does_not_go_on_with_tasks_that_changed_or_went",
    "L2": "task/test_registry_git.py::test_the_tasks_of_a_repository_at_a_commit",
    "L3": "run/test_run.py::test_the_plan_is_saved_with_what_the_tasks_were_and_without_the_key",
}
NOT_OURS = {
    "R2": "there are no filters of logs: all of /logs/verifier is kept",
    "R3": "there are no filters of logs: all of /logs/verifier is kept",
    "T25": "nothing writes a task.toml that was read",
    "M9": "a task with steps has no separate verifier: the seed has it refused",
    "N18": "a run adds no hosts to what a task may reach",
    "N20": "a run adds no hosts to what a task may reach",
    "Q1": "only infrastructure failures are played again, which no option changes",
    "Q5": "a sandbox is never left behind",
    "L4": "there are no records of an older form",
}
_FUNCTION = re.compile(r"def (test_\w+)\(")
_ROW = re.compile(r"([a-z])(\d{1,2})")


def rows_of(name: str) -> set[str]:
    """The rows that a test's name begins with."""
    found: list[str] = []
    words = name.split("_")[1:]
    for number, word in enumerate(words):
        if match := _ROW.fullmatch(word):
            letter, last = match[1].upper(), int(match[2])
            first = int(found[-1][1:]) + 1 if number and words[number - 1] == "to" and found else last
            found += [f"{letter}{row}" for row in range(first, last + 1)]
        elif word not in ("and", "to"):
            break
    return set(found)


def named() -> dict[str, list[str]]:
    """The tests that name a row, by row."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if {"server", "cases"} & set(path.parts):
            continue
        for name in _FUNCTION.findall(path.read_text()):
            for row in rows_of(name):
                found.setdefault(row, []).append(f"{path.relative_to(TESTS)}::{name}")
    return found


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("test_m5_a_verifier", {"M5"}),
        ("test_a2_a3_and_a8_what", {"A2", "A3", "A8"}),
        ("test_n9_to_n11_a_phase", {"N9", "N10", "N11"}),
        ("test_what_m5_is", set()),
    ],
)
def test_rows_are_read_from_names(name: str, rows: set[str]) -> None:
    assert rows_of(name) == rows


def test_every_row_is_shown_by_a_test_or_told_to_be_none_of_ours() -> None:
    tests = named()
    wanted = [f"{letter}{number}" for letter, last in ROWS.items() for number in range(1, last + 1)]
    assert [row for row in wanted if (row in tests) + (row in SHOWN_BY) + (row in NOT_OURS) == 0] == []
    assert set(SHOWN_BY) | set(NOT_OURS) <= set(wanted)
    assert set(NOT_OURS) & set(tests) == set()


@pytest.mark.parametrize("place", SHOWN_BY.values(), ids=SHOWN_BY.keys())
def test_the_tests_of_the_table_are_there(place: str) -> None:
    path, _, name = place.partition("::")
    assert name in _FUNCTION.findall((TESTS / path).read_text())
