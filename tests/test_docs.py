"""What the documents say is held against what is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.commands_page import page

ROOT = Path(__file__).parents[1]
THREATS = ROOT / "docs" / "threat-model.md"


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [ROOT / name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def threat_rows() -> list[str]:
    return [line for line in THREATS.read_text().splitlines() if re.match(r"\| \d+ \|", line)]


@pytest.mark.parametrize("row", threat_rows())
def test_every_threat_names_a_test_that_exists(row: str) -> None:
    (cited,) = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", row)
    text = (ROOT / cited[0]).read_text()
    assert not cited[1] or f"def {cited[1]}(" in text


def test_threats_are_numbered_without_gaps() -> None:
    numbers = [int(row.split("|")[1]) for row in threat_rows()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    assert (ROOT / "docs" / "commands.md").read_text() == page(), "python -m tests.support.commands_page"


@pytest.mark.parametrize(
    "document",
    sorted(
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("**/*.md")
        if not {".venv", "cases", "node_modules"} & {*path.parts}
    ),
)
def test_links_and_paths_in_documents_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    links = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    paths = re.findall(r"`((?:src|docs|tests|examples|benchmarks)/[\w./-]+)`", text)
    missing = [target for target in links if not ((ROOT / document).parent / target).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


def test_the_readmes_two_commands_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= targets
    assert set(re.findall(r"make (\w+)", readme)) <= targets


def test_nothing_of_one_machine_is_in_a_tracked_file() -> None:
    banned = [str(ROOT.parent / "shared"), "/root/.pyenv", "/".join(["", "work", "main"])]
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked()
        for word in banned
        if path != Path(__file__) and word.encode() in path.read_bytes()
    ]
    assert found == []
