from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.task.check import RULES, check_directory, chosen_rules, named_directories
from tests.task.check.examples import EXAMPLES, SOUND, Files, write

ROOT = Path(__file__).parents[3]
APART = {"not-executable", "compose-symlink-bind-mount"}  # what a file's content cannot show, below


def cases(kind: str) -> list[tuple[str, Files]]:
    return [(name, files) for name, example in EXAMPLES.items() for files in getattr(example, kind)]


def found(root: Path, rule: str) -> list[str]:
    return [str(finding) for finding in check_directory(root, chosen_rules([rule]))]


def ids(kind: str) -> list[str]:
    return [f"{name}-{number}" for number, (name, _) in enumerate(cases(kind))]


@pytest.mark.parametrize(("rule", "files"), cases("bad"), ids=ids("bad"))
def test_a_bad_example_is_found(rule: str, files: Files, tmp_path: Path) -> None:
    assert found(write(tmp_path / "task", files), rule)


@pytest.mark.parametrize(("rule", "files"), cases("good"), ids=ids("good"))
def test_a_good_example_is_not(rule: str, files: Files, tmp_path: Path) -> None:
    assert found(write(tmp_path / "task", files), rule) == []


def test_nothing_is_wrong_with_a_sound_task(tmp_path: Path) -> None:
    assert check_directory(write(tmp_path / "task", SOUND)) == []


def test_every_rule_over_files_has_examples() -> None:
    assert set(EXAMPLES) | APART == {name for name, rule in RULES.items() if rule.look}


def test_a_script_without_exec_bit_is_noted(tmp_path: Path) -> None:
    root = write(tmp_path / "task", SOUND)
    assert found(root, "not-executable") == []
    (root / "tests/test.sh").chmod(0o644)
    assert found(root, "not-executable") == [f"{root}/tests/test.sh: note not-executable: has no exec bit; chmod +x"]


def test_a_link_that_is_mounted_is_found(tmp_path: Path) -> None:
    text = "services:\n  main:\n    volumes: ['./data:/data:ro']\n"
    root = write(tmp_path / "task", {"environment/docker-compose.yaml": text, "environment/data/x": ""})
    assert found(root, "compose-symlink-bind-mount") == []
    (root / "environment/data/x").unlink()
    (root / "environment/data").rmdir()
    (root / "environment/data").symlink_to("/etc")
    assert len(found(root, "compose-symlink-bind-mount")) == 1


def test_places_are_lines_and_columns_of_the_file(tmp_path: Path) -> None:
    body = '#!/bin/bash\nset -e\n  grep -q x /app/answer.txt\necho "$?" > /logs/verifier/reward.txt\n'
    root = write(tmp_path / "task", {"tests/test.sh": body, "environment/Dockerfile": "# x\nFROM debian\n"})
    places = {finding.rule: finding for finding in check_directory(root)}
    aborts, image = places["set-e-aborts-before-reward"], places["unpinned-image"]
    assert (aborts.path, aborts.line, aborts.column) == (f"{root}/tests/test.sh", 3, 3)
    assert (image.path, image.line, image.severity) == (f"{root}/environment/Dockerfile", 2, "warning")
    toml = write(tmp_path / "other", {"task.toml": '[task]\nname = "a/b"\n[verifier]\ntimout_sec = 3\n'})
    (unknown,) = check_directory(toml, chosen_rules(["unknown-config-field"]))
    assert (unknown.path, unknown.line) == (f"{toml}/task.toml", 4) and "timeout_sec" in unknown.message


def test_steps_are_looked_at_each(tmp_path: Path) -> None:
    step: Files = {
        "task.toml": '[task]\nname = "a/b"\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n',
        "instruction.md": None,
        "tests/test.sh": None,
        "solution/solve.sh": None,
        "steps/one/instruction.md": "Do it, see /tests/test.sh.\n",
        "steps/one/tests/test.sh": SOUND["tests/test.sh"],
        "steps/two/instruction.md": "Do it.\n",
        "steps/two/tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
    }
    findings = check_directory(write(tmp_path / "task", step))
    rules = {(finding.rule, finding.path.removeprefix(f"{tmp_path}/task/")) for finding in findings if finding.counts}
    assert ("unconditional-reward", "steps/two/tests/test.sh") in rules
    assert ("statement-names-hidden-files", "steps/one/instruction.md") in rules
    assert len([rule for rule, _ in rules if rule == "missing-solution"]) == 1
    assert not any(path.startswith("steps/one/tests") for _, path in rules)


def test_no_content_of_files_stops_a_check(tmp_path: Path) -> None:
    hostile = b"\xff\xfe\x00" * 100 + b"$(((${`\"'<<<<EOF\n"
    root = write(tmp_path / "task", dict.fromkeys(SOUND, hostile))
    rules = {finding.rule for finding in check_directory(root)}
    assert {"invalid-task-config", "invalid-dockerfile"} <= rules


def test_the_examples_have_no_finding_but_notes() -> None:
    findings = [each for root in named_directories(ROOT / "examples/tasks") for each in check_directory(root)]
    assert [str(each) for each in findings if each.counts] == []


MEANT = {
    "hack-path-separate": {"reference-reads-truth", "reference-writes-reward"},
    "hack-planted-reward": {"reference-writes-reward"},
    "hack-tests-dir-occupied": {"reference-reads-truth"},
    "multi-step-gate": {"unconditional-reward"},
    "reward-comma": {"invalid-reward-value"},
    "reward-json-overflow": {"invalid-reward-value"},
    "reward-metrics-only": {"reward-without-primary"},
    "reward-trap-minus-one": {"invalid-reward-value"},
    "separate-declared-only": {"reference-reads-truth", "reference-writes-reward"},
    "separate-overlap": {"overlapping-artifacts"},
    "verifier-timeout": {"odd-timeout", "unconditional-reward"},
}
"""What is wrong with the case tasks on purpose, and nothing else may be found in them."""


def test_the_case_tasks_have_the_findings_they_were_made_to_have() -> None:
    found: dict[str, set[str]] = {}
    for root in named_directories(ROOT / "tests/cases/tasks"):
        for finding in check_directory(root):
            if finding.counts:
                found.setdefault(root.name, set()).add(finding.rule)
    assert found == MEANT


def test_rules_are_chosen_by_name() -> None:
    assert set(chosen_rules()) == set(RULES)
    assert set(chosen_rules(["unpinned-image", "crlf-script"], ["crlf-script"])) == {"unpinned-image"}
    with pytest.raises(ConfigError, match="did you mean unpinned-image"):
        chosen_rules(["unpined-image"])


def test_a_directory_without_a_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no task"):
        named_directories(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        named_directories(tmp_path / "nowhere")
