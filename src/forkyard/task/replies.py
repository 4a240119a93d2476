"""Reading what agents, judges and test programs wrote."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from forkyard.errors import SandboxError, TaskError
from forkyard.sandbox import Sandbox
from forkyard.trace import Trace

_BOX = "\\boxed{"
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_FINAL = r"FINAL[^\S\n]+(?:JUDGE?MENT|ANSWER|VERDICT)"
_SAYS = r"[^\S\n]*(?:IS\b)?[^\S\n]*[:\-]?"
_OUTCOMES = frozenset({"PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS"})
_WITH_REASON = _OUTCOMES - {"PASSED", "SKIPPED"}


def compare_stdout_results(exec_stdout: str, expected: str, *, tolerance: float = 1e-3) -> bool:
    """Whether two outputs hold the same words in order; numbers alone may differ by `tolerance`."""
    ours, theirs = exec_stdout.split(), expected.split()
    if ours == theirs:
        return True
    if len(ours) != len(theirs) or not ours:
        return False
    try:
        pairs = [(Decimal(one), Decimal(other)) for one, other in zip(ours, theirs, strict=True)]
    except InvalidOperation:
        return False
    finite = all(number.is_finite() for pair in pairs for number in pair)
    return finite and all(abs(one - other) <= Decimal(str(tolerance)) for one, other in pairs)


def extract_boxed_answer(text: str, strict: bool = False) -> str:
    r"""What stands in the last \boxed{...}; without one the text itself, or "" when `strict`."""
    start = text.rfind(_BOX)
    depth = 1
    for at in range(start + len(_BOX), len(text) if start >= 0 else 0):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth:
            return text[start + len(_BOX) : at]
    return "" if strict else text


async def read_answer_file_or_last_reply(runtime: Sandbox, path: str, trace: Trace) -> str:
    """What a file in the sandbox holds; the last reply when there is none or it is empty."""
    try:
        answer = (await runtime.read(path)).decode(errors="replace").strip()
    except (OSError, SandboxError):
        answer = ""
    return answer or trace.last_reply


def parse_judge_choice(content: str | None, choices: Sequence[str] = ("A", "B", "C")) -> str | None:
    """The choice a judge's reply makes, None when it makes none or is cut off in its thoughts.

    The last line that says "final judgment", "final answer" or "final verdict" decides; then what is boxed, what
    follows a first "verdict", "judgment" or "answer", and the last choice named anywhere.
    """
    said = _after_thoughts(content)
    if said is None:
        return None
    by_name = {choice.upper(): choice for choice in choices}
    one = rf"(?<!\w)({'|'.join(map(re.escape, by_name))})(?!\w)"
    final = re.findall(rf"^[^\S\n]*{_FINAL}{_SAYS}[^\S\n]*{one}", said.upper(), re.MULTILINE)
    if final:
        return by_name[final[-1]]
    text = (extract_boxed_answer(said, strict=True).strip() or said).upper()
    if verdict := re.search(rf"^\s*(?:{_FINAL}|JUDGE?MENT|VERDICT|ANSWER){_SAYS}", text, re.MULTILINE):
        found = re.search(one, text[verdict.end() :])
        return by_name[found[1]] if found else None
    named = re.findall(one, text)
    return by_name[named[-1]] if named else None


def parse_score(content: str | None, low: float = 0.0, high: float = 1.0) -> float:
    """What the last line of a reply says as `SCORE: x`, as a part of the scale from `low` to `high`.

    Only that line counts: what a reply quotes earlier is not its verdict. Raises ValueError without a score on it,
    and for one on another scale.
    """
    said = _after_thoughts(content) or ""
    last = said.rstrip().rpartition("\n")[2]
    found = re.findall(
        r"\bSCORE\W{0,4}[:=]\W{0,4}?(-?\d+(?:\.\d+)?)(?:\s*/\s*(\d+(?:\.\d+)?))?[^\w%]*$", last, re.IGNORECASE
    )
    if not found:
        raise ValueError(f"the reply does not end in a line `SCORE: x`: {said[-200:]!r}")
    score, of = found[-1]
    if (of and float(of) != high) or not low <= float(score) <= high:
        raise ValueError(f"the reply's score {score}{of and '/'}{of} is not on the scale from {low:g} to {high:g}")
    return (float(score) - low) / (high - low)


def _after_thoughts(content: str | None) -> str | None:
    """What follows the thoughts in a reply; None when there is nothing."""
    text = content or ""
    if "<think>" in text and "</think>" not in text:
        return None
    return text.rpartition("</think>")[2].strip() or None


def parse_pytest_outcomes(output: str | None) -> dict[str, str]:
    """The outcome of each test that pytest lists with `-rA`: PASSED, FAILED, ERROR, XFAIL, XPASS by test id."""
    outcomes = {}
    for line in _ESCAPES.sub("", output or "").splitlines():
        outcome, _, rest = line.strip().partition(" ")
        if outcome in _OUTCOMES and rest.strip() and not rest.lstrip().startswith("["):
            outcomes[_test_id(rest.strip(), outcome)] = outcome
    return outcomes


def _test_id(text: str, outcome: str) -> str:
    """The id without the reason behind it: a " - " inside of a parameter's brackets is part of the id."""
    if outcome not in _WITH_REASON:
        return text
    for at in (found.start() for found in re.finditer(" - ", text)):
        if text.count("[", 0, at) == text.count("]", 0, at):
            return text[:at].rstrip()
    return text


def verify_boxed_math_answer(response: str | None, answer: str, *, timeout_seconds: int = 5) -> float:
    r"""1.0 when the last \boxed{...} of a reply means the same as the answer, else 0.0.

    Needs the package math-verify; raises TaskError without it.
    """
    said = _after_thoughts(response) or ""
    found = extract_boxed_answer(said, strict=True).strip()
    gold = (extract_boxed_answer(answer, strict=True) or answer).strip()
    if not found or not gold:
        return 0.0
    if found == gold:
        return 1.0
    try:
        math_verify = importlib.import_module("math_verify")
    except ImportError as err:
        raise TaskError("comparing mathematics needs the package math-verify: pip install math-verify") from err
    unreadable = (Exception, importlib.import_module("math_verify.errors").TimeoutException)  # no Exception, this one
    try:
        sides = [math_verify.parse(rf"\boxed{{{side}}}", parsing_timeout=timeout_seconds) for side in (gold, found)]
        return float(math_verify.verify(*sides, timeout_seconds=timeout_seconds))
    except unreadable:  # what a model wrote may be no mathematics at all
        return 0.0
