"""Sets of tasks in git repositories at a commit."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.task.registry.reference import load_reference
from tests.task.sets import listing, manifest, refused, write_set


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for caches and the registry."""
    monkeypatch.setenv("FORKYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed (apt-get install git)")


def git(root: Path, *arguments: str) -> str:
    who = {"GIT_AUTHOR_NAME": "x", "GIT_AUTHOR_EMAIL": "x@x", "GIT_COMMITTER_NAME": "x", "GIT_COMMITTER_EMAIL": "x@x"}
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("GIT_")}, **who}
    done = subprocess.run(["git", "-C", str(root), *arguments], env=environment, capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """A repository with tasks in tasks/: its address, the commit with them, and a later one."""
    root = manifest(write_set(tmp_path / "repository/tasks", "a", "b"), "a", "b").parent
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "tasks")
    first = git(root, "rev-parse", "HEAD")
    (root / "tasks/a/instruction.md").write_text("Later.\n")
    git(root, "commit", "--quiet", "-am", "later")
    yield f"file://{root}", first, git(root, "rev-parse", "HEAD")


@needs_git
def test_the_tasks_of_a_repository_at_a_commit(repository: tuple[str, str, str], home: Path) -> None:
    url, first, later = repository
    for reference in (f"{url}@{first}", f"{url}@{first}#tasks"):
        found = load_reference(reference, None, {})
        assert (found.name, [task.name for task in found]) == (reference, ["cases/a", "cases/b"])
    (kept,) = (home / "cache/git").glob("*/*")
    assert kept.name == first and git(kept, "rev-list", "--count", "HEAD") == "1"
    (told,) = refused(lambda: load_reference(f"{url}@{later}", None, {}))  # its manifest was forgotten
    assert told.startswith("manifest_digest_mismatch: ")
    assert [t.name for t in load_reference(f"{url}@{later}#tasks/a", None, {})] == ["cases/a"]


@needs_git
def test_a_kept_checkout_that_somebody_changed_is_fetched_again(repository: tuple[str, str, str], home: Path) -> None:
    url, first, _ = repository
    load_reference(f"{url}@{first}", None, {})
    (kept,) = (home / "cache/git").glob("*/*")
    (kept / "tasks/a/instruction.md").write_text("Mine.\n")
    (kept / "tasks/c").mkdir()
    assert len(list(load_reference(f"{url}@{first}", None, {}))) == 2
    assert (kept / "tasks/a/instruction.md").read_text() == "Write done to /app/answer.txt.\n"


@needs_git
def test_a_listing_names_folders_of_repositories(repository: tuple[str, str, str], tmp_path: Path) -> None:
    url, first, later = repository
    tasks = [
        {"name": "a", "git_url": url, "git_commit_id": later, "path": "tasks/a"},
        {"name": "b", "git_url": url, "git_commit_id": first, "path": "tasks/b"},
    ]
    found = load_reference("old@1.0", listing(tmp_path / "registry", *tasks), {})
    assert [task.data.prompt for task in found] == ["Later.\n", "Write done to /app/answer.txt.\n"]


@needs_git
@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("{url}", "names no commit; write URL@COMMIT"),
        ("{url}@main", "names no commit"),
        ("{url}@{short}", "names no commit"),
        ("{url}@" + "0" * 40, "cannot be fetched: git fetch: "),
        ("{url}@{commit}#nowhere", "has no folder 'nowhere'"),
        ("{url}@{commit}#../..", "lies outside of the repository"),
        ("https://me:secretword@a.test/b@{commit}", "https://a.test/b holds a password"),
        ("ext::sh -c true://@{commit}", "cannot be fetched: git fetch: "),
        ("nothing here", "is neither name@version"),
        ("../x@1", "is neither name@version"),
        ("a@../../x", "is neither name@version"),
    ],
)
def test_a_reference_that_leads_nowhere_is_told(
    reference: str, said: str, repository: tuple[str, str, str], home: Path
) -> None:
    url, first, _ = repository
    text = reference.format(url=url, commit=first, short=first[:12])
    (told,) = refused(lambda: load_reference(text))
    assert told.startswith("import_failed: ") and said in told
    assert "secretword" not in told
    assert not list((home / "cache/git").glob("*/.unfinished-*"))


@needs_git
def test_a_folder_of_a_repository_that_is_a_link_to_elsewhere_is_refused(
    repository: tuple[str, str, str], tmp_path: Path
) -> None:
    root = tmp_path / "repository"
    (root / "out").symlink_to("/etc")
    (root / "tasks/c").symlink_to("/etc")
    git(root, "rm", "--quiet", "tasks/dataset.toml")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "links")
    commit = git(root, "rev-parse", "HEAD")
    assert "has no folder 'out'" in refused(lambda: load_reference(f"{repository[0]}@{commit}#out"))[0]
