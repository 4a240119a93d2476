"""What a judge with a sandbox must write, and how it is read."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import ValidationError

from forkyard.task.judges import Criterion, RubricVerdicts, score_verdicts

VERDICT = "/tmp/verdict.json"
LIMIT = 1 << 20
SOLVED = Criterion(name="solved", text="The task is solved: everything it asks for is there and right.")


def instructions(criteria: Sequence[Criterion]) -> str:
    """By what to judge, and how the verdict is to be written."""
    lines = [f"- {each.name} ({', '.join(map(json.dumps, each.choices))}): {each.text}" for each in criteria]
    form = {"verdicts": [{"name": each.name, "reason": "...", "verdict": each.choices[-1]} for each in criteria]}
    return (
        "Judge by these criteria; behind each stand the answers it can have, from the worst to the best:\n"
        + "\n".join(lines)
        + f"\n\nWrite your verdict to {VERDICT}, as JSON of this form, with one entry for each criterion:\n"
        + json.dumps(form, indent=1)
        + "\nWithout that file there is no verdict."
    )


def read_verdict(text: bytes, criteria: Sequence[Criterion]) -> dict[str, float]:
    """The value of each criterion. Raises ValueError for what is no verdict on exactly these."""
    try:
        verdicts = RubricVerdicts.model_validate_json(text).verdicts
    except ValidationError as err:
        first = err.errors()[0]
        raise ValueError(f"{VERDICT} is no verdict of the form that was asked for: {first['msg']}") from None
    return score_verdicts(verdicts, criteria, "the rubric's")
