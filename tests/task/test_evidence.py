"""What is said of a separate verifier that may not get what it has to judge."""

from __future__ import annotations

import pytest

from forkyard.task import load_task
from tests.task.conftest import MakeTask

SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
READS = "#!/bin/bash\ngrep -q x /app/out/answer.txt && cmp /app/out/b.txt /tests/b.txt\n"
SOLVES = "#!/bin/bash\ncd /app\necho x > /app/out/answer.txt\ncp /usr/share/x /app/out/b.txt\n"


def notes(make_task: MakeTask, artifacts: str, tests: str = READS, solves: str = SOLVES) -> tuple[str, ...]:
    text = (f"artifacts = {artifacts}\n" if artifacts else "") + SEPARATE
    files = {"task.toml": text, "tests/test.sh": tests, "solution/solve.sh": solves}
    return load_task(make_task(files), {}).notes


def test_c4_no_artifacts_at_all_are_noted(make_task: MakeTask) -> None:
    (note,) = notes(make_task, "")
    assert note.startswith("separate_without_artifacts: no artifacts are declared")


def test_a_verifier_that_reads_the_usual_directory_needs_none(make_task: MakeTask) -> None:
    assert notes(make_task, "", tests="#!/bin/bash\ncat /logs/artifacts/model.patch\n") == ()


@pytest.mark.parametrize(
    "artifacts", ['["/app/out"]', '["/app"]', '["/app/out/answer.txt", "/app/out/b.txt"]', '["/app/out/"]']
)
def test_artifacts_that_bring_what_both_name_are_enough(artifacts: str, make_task: MakeTask) -> None:
    assert notes(make_task, artifacts) == ()


def test_what_both_name_and_no_artifact_brings_is_noted(make_task: MakeTask) -> None:
    (note,) = notes(make_task, '["/app/out/answer.txt"]')
    assert note.startswith("separate_without_artifacts: ") and "both name /app/out/b.txt, which" in note


@pytest.mark.parametrize(
    ("tests", "solves"),
    [
        ("#!/bin/bash\n/usr/bin/env python3 /tests/x.py > /tmp/log/x\n", "/usr/bin/env x > /tmp/log/x\n"),
        ("#!/bin/bash\ncat /app/data/in.csv\n", "echo x > out/answer.txt\n"),
        ("#!/bin/bash\ncurl http://a.test/app/x/y\n", "curl http://a.test/app/x/y\n"),
    ],
)
def test_what_only_one_names_or_every_image_has_is_no_evidence(tests: str, solves: str, make_task: MakeTask) -> None:
    assert notes(make_task, '["/app/out/answer.txt"]', tests, solves) == ()


def test_a_shared_verifier_sees_everything(make_task: MakeTask) -> None:
    files = {"task.toml": "", "tests/test.sh": READS, "solution/solve.sh": SOLVES}
    assert load_task(make_task(files), {}).notes == ()
