"""Reading what agents, judges and test programs wrote."""

from __future__ import annotations

import importlib.util

import pytest

import forkyard as vf


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        ("hello   world\n", "hello world\n", True),
        ("a\n\nb", "a\nb\n", True),
        ("1.0001 2.0", "1.0002 2.0009", True),
        ("1.0 2.0", "1.0 2.1", False),
        ("1.0 x", "1.0002 x", False),
        ("nan", "inf", False),
        ("nan", "nan", True),
        ("1 2", "1", False),
        ("", "", True),
        ("", "1", False),
    ],
)
def test_outputs_are_compared_word_by_word(actual: str, expected: str, same: bool) -> None:
    assert vf.compare_stdout_results(actual, expected) is same


def test_the_tolerance_can_be_chosen() -> None:
    assert vf.compare_stdout_results("1.0", "1.5", tolerance=0.5)


@pytest.mark.parametrize(
    ("text", "answer", "strictly"),
    [
        (r"so \boxed{4}", "4", "4"),
        (r"\boxed{1} then \boxed{\frac{1}{2}} done", r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed{}", "", ""),
        ("no box", "no box", ""),
        (r"\boxed{open", r"\boxed{open", ""),
    ],
)
def test_the_last_boxed_answer_counts(text: str, answer: str, strictly: str) -> None:
    assert (vf.extract_boxed_answer(text), vf.extract_boxed_answer(text, strict=True)) == (answer, strictly)


@pytest.mark.parametrize(
    ("reply", "choice"),
    [
        ("Final Judgment: B because it is a better answer", "B"),
        ("A is tempting.\nFinal answer: C\nThough A...", "C"),
        ("Final answer: A\nFinal answer: B", "B"),
        (r"I would say A, but \boxed{b}", "B"),
        ("Verdict: C. Not A.", "C"),
        ("maybe A, rather B", "B"),
        ("<think>A</think> C", "C"),
        ("<think>A, cut off", None),
        ("Abba", None),
        ("Final verdict: none", None),
        ("", None),
        (None, None),
    ],
)
def test_a_choice_is_what_the_judge_ends_with(reply: str | None, choice: str | None) -> None:
    assert vf.parse_judge_choice(reply, ("A", "B", "C")) == choice


@pytest.mark.parametrize(
    ("reply", "score"),
    [("SCORE: 0.5", 0.5), ("Score: **1**", 1.0), ("x\n\n`SCORE: 0`\n", 0.0), ("SCORE: 0, no: SCORE: 1/1", 1.0)],
)
def test_a_score_is_read_from_the_last_line(reply: str, score: float) -> None:
    assert vf.parse_score(reply) == score


@pytest.mark.parametrize(
    "reply",
    [
        "SCORE: 1.5",
        "SCORE: -1",
        "SCORE: 9/10",
        "SCORE: 0.9%",
        "SCORE: 1\nHope that helps",
        "[[90]]",
        "8",
        "SCORE: nan",
        None,
    ],
)
def test_what_is_not_on_the_scale_is_no_score(reply: str | None) -> None:
    with pytest.raises(ValueError, match="score|SCORE"):
        vf.parse_score(reply)


def test_outcomes_of_pytest_are_known_by_test_id_without_their_reasons() -> None:
    output = (
        "\x1b[32mPASSED\x1b[0m tests/a.py::one\n"
        "PASSED tests/a.py::dash[a - b]\n"
        "FAILED t[a - b] - assert 1 == 2 - x\n"
        "ERROR tests/b.py - ImportError\n"
        "XFAIL id - reason\n"
        "XPASS id2\n"
        "SKIPPED [1] tests/c.py:3: why\n"
        "PASSED\n"
        "noise\n"
    )
    assert vf.parse_pytest_outcomes(output) == {
        "tests/a.py::one": "PASSED",
        "tests/a.py::dash[a - b]": "PASSED",
        "t[a - b]": "FAILED",
        "tests/b.py": "ERROR",
        "id": "XFAIL",
        "id2": "XPASS",
    }
    assert vf.parse_pytest_outcomes(None) == {}


def test_boxed_mathematics_is_compared_by_its_meaning() -> None:
    assert vf.verify_boxed_math_answer(r"\boxed{4}", "4") == 1.0
    for reply in (None, "", "4", r"<think>\boxed{4}", r"\boxed{}"):
        assert vf.verify_boxed_math_answer(reply, "4") == 0.0
    if importlib.util.find_spec("math_verify") is None:
        with pytest.raises(vf.TaskError, match="pip install math-verify"):
            vf.verify_boxed_math_answer(r"\boxed{0.5}", "1/2")
        pytest.skip("math-verify is not installed (pip install math-verify)")
    assert vf.verify_boxed_math_answer(r"\boxed{0.5}", r"\boxed{\frac{1}{2}}") == 1.0
    assert vf.verify_boxed_math_answer(r"\boxed{0.4}", r"\frac{1}{2}") == 0.0


@pytest.mark.asyncio(loop_scope="module")
async def test_an_answer_file_counts_before_the_last_reply(sandbox: vf.Sandbox) -> None:
    trace = vf.Trace(messages=[vf.AssistantMessage("said")])
    answers = [await vf.read_answer_file_or_last_reply(sandbox, "/app/answer", trace)]
    for content in (b" written\n", b" \n"):
        await sandbox.write("/app/answer", content)
        answers.append(await vf.read_answer_file_or_last_reply(sandbox, "/app/answer", trace))
    assert answers == ["said", "written", "said"]
