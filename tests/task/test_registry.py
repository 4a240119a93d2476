"""Sets of tasks by name and version, and by a manifest."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from forkyard.task import load_task, load_taskset
from forkyard.task.registry import is_path
from forkyard.task.registry.reference import load_reference
from tests.task.sets import listing, manifest, refused, tar, write_set


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for caches and the registry."""
    monkeypatch.setenv("FORKYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def names(path: Path | str) -> list[str]:
    return [task.name for task in load_taskset(path)]


def test_a_manifest_says_which_tasks_there_are_and_in_which_order(tmp_path: Path) -> None:
    root = manifest(write_set(tmp_path / "set", "a", "b"), "b", "a")
    found = load_taskset(root)
    assert (found.name, [task.name for task in found]) == ("org/set@1.0", ["cases/b", "cases/a"])
    assert all(task.notes == () for task in found)


def test_tasks_that_a_manifest_does_not_list_are_not_played_and_told(tmp_path: Path) -> None:
    root = manifest(write_set(tmp_path / "set", "a", "b"), "a")
    (task,) = load_taskset(root)
    assert task.notes == (f"{root} holds tasks that its dataset.toml does not list, and that are not played: cases/b",)


def test_a_task_that_is_not_there_and_one_that_changed_are_told_at_once(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", "a", "b")
    manifest(root, "a", "b", "c", c=f"sha256:{'0' * 64}")
    (root / "a/instruction.md").write_text("Other.\n")
    changed, missing = refused(lambda: load_taskset(root))
    assert changed.startswith(f"manifest_digest_mismatch: {root / 'dataset.toml'}, line 6: tasks[0].digest = 'sha256:")
    assert load_task(root / "a", {}).digest in changed
    assert missing.startswith(f"manifest_task_missing: {root / 'dataset.toml'}, line 11: tasks[2].name = 'cases/c'")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[dataset\n", "is not TOML"),
        ('[[tasks]]\nname = "a/b"\ndigest = "x"\n', "tasks[0].digest"),
        ('[dataset]\nname = "x"\nmetrics = 3\n', "dataset.metrics is not a key of dataset.toml"),
        ('[dataset]\nname = "x"\nnane = 3\n', "did you mean name?"),
        ('[dataset]\nname = "x"\n', "lists no task"),
        ('[[task]]\nname = "a/b"\n[dataset]\nname = "x"\n', "did you mean tasks?"),
    ],
)
def test_a_manifest_with_mistakes_is_named_with_their_lines(text: str, said: str, tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", "a")
    (root / "dataset.toml").write_text(text)
    told = refused(lambda: load_taskset(root))
    assert all(sentence.startswith(f"dataset_manifest_invalid: {root / 'dataset.toml'}") for sentence in told)
    assert any(said in sentence for sentence in told)


def test_the_files_of_a_set_are_checked_too(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", "a")
    (root / "data.txt").write_text("x")
    right = f'[[files]]\npath = "data.txt"\ndigest = "sha256:{hashlib.sha256(b"x").hexdigest()}"\n'
    assert names(manifest(root, "a", more=right)) == ["cases/a"]
    wrong = right.replace(hashlib.sha256(b"x").hexdigest(), "0" * 64)
    outside = wrong.replace("data.txt", "../data.txt")
    gone = wrong.replace("data.txt", "gone.txt")
    manifest(root, "a", "a", more=wrong + outside + gone)
    told = refused(lambda: load_taskset(root))
    assert [sentence.split(":")[0] for sentence in told] == [
        "manifest_digest_mismatch",
        *["dataset_manifest_invalid"] * 3,
    ]
    assert "lies outside" in told[1] and "is not there" in told[2] and "is listed twice" in told[3]


def test_a_metric_of_its_own_is_refused(tmp_path: Path) -> None:
    root = manifest(write_set(tmp_path / "set", "a"), "a")
    (root / "metric.py").write_text("")
    (told,) = refused(lambda: load_taskset(root))
    assert told.startswith("custom_metric_not_supported: ")


def test_a_broken_task_of_a_set_is_told_by_name(tmp_path: Path) -> None:
    root = manifest(write_set(tmp_path / "set", "a", "b"), "a", "b")
    (root / "b/task.toml").write_text("[agent]\ntimeout_sec = 0\n")
    (told,) = refused(lambda: load_taskset(root))
    assert told.startswith(f"task_parse_failed: {root / 'b/task.toml'}, line 2: agent.timeout_sec = 0")


def test_name_and_version_are_a_directory_or_an_archive_of_the_registry(home: Path, tmp_path: Path) -> None:
    root = write_set(tmp_path / "plain", "a")
    place = home / "tasksets"
    shutil.copytree(root, place / "org/set/1.0")
    tar(place / "org/set/2.0.tar.gz", write_set(tmp_path / "newer", "b"), "x")
    shutil.copytree(manifest(write_set(tmp_path / "third", "c"), "c"), place / "org/listed")
    (place / "org/listed/dataset.toml").write_text(
        (place / "org/listed/dataset.toml").read_text().replace("org/set", "org/listed")
    )
    for reference, name in (("org/set@1.0", "a"), ("org/set@2.0", "b"), ("org/listed@1.0", "c"), ("org/listed", "c")):
        found = load_reference(reference, None, {})
        assert [task.name for task in found] == [f"cases/{name}"]
        assert found.name == reference if "@" in reference else "org/listed@1.0"
    assert refused(lambda: load_reference("org/set")) == (
        f"import_failed: org/set is there in several versions: write org/set@VERSION with one of 1.0, 2.0 (in {place})",
    )
    assert "has no version 3.0" in refused(lambda: load_reference("org/set@3.0"))[0]


def test_a_registry_may_lie_anywhere_and_says_what_it_lacks(tmp_path: Path) -> None:
    root = tmp_path / "registry"
    assert "there is no registry" in refused(lambda: load_reference("mini@1", root))[0]
    write_set(tmp_path / "registry/mini/1", "a")
    assert [task.name for task in load_reference("mini@1", root, {})] == ["cases/a"]
    assert refused(lambda: load_reference("minni@1", root))[0].endswith("holds no 'minni': did you mean mini?")


def test_a_manifest_of_another_set_is_refused(tmp_path: Path) -> None:
    manifest(write_set(tmp_path / "registry/mini/1.0", "a"), "a")
    (told,) = refused(lambda: load_reference("mini@1.0", tmp_path / "registry"))
    assert told.startswith("dataset_manifest_invalid: ") and "is of org/set@1.0, not of mini@1.0" in told


def test_a_listing_names_folders_of_the_registry(tmp_path: Path) -> None:
    write_set(tmp_path / "registry/files", "a", "b")
    tasks = [{"name": name, "path": f"files/{name}"} for name in ("b", "a")]
    root = listing(tmp_path / "registry", *tasks, metrics=[{"type": "mean"}])
    found = load_reference("old@1.0", root, {})
    assert (found.name, [task.name for task in found]) == ("old@1.0", ["cases/b", "cases/a"])


@pytest.mark.parametrize(
    ("tasks", "more", "said"),
    [
        ([{"name": "a", "path": "nowhere"}], {}, "manifest_task_missing: "),
        ([{"name": "a", "path": "../.."}], {}, "import_failed: "),
        ([{"name": "a", "path": "x"}], {"metrics": [{"type": "uv-script"}]}, "custom_metric_not_supported: "),
        ([{"name": "a"}], {}, "import_failed: "),
        ([], {}, "import_failed: "),
        ([{"name": "a", "path": "x", "git_url": "https://a.test/b", "git_commit_id": "head"}], {}, "import_failed: "),
    ],
)
def test_a_listing_with_mistakes_is_told_by_name(
    tasks: list[dict[str, str]], more: dict[str, object], said: str, tmp_path: Path
) -> None:
    root = listing(tmp_path / "registry", *tasks, **more)
    (told,) = refused(lambda: load_reference("old@1.0", root))
    assert told.startswith(said)


def test_a_set_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    root = listing(tmp_path / "registry", {"name": "a", "path": "old/1.0/a"})
    write_set(tmp_path / "registry/old/1.0", "a")
    assert "holds old@1.0 twice" in refused(lambda: load_reference("old@1.0", root))[0]


def test_what_is_a_path_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    assert [is_path(text) for text in ("there", "./x", "/x", "x.tar.gz", "~/x")] == [True] * 5
    assert [is_path(text) for text in ("x", "x@1", "https://a/b.tar@c", "git@host:a/b@c")] == [False] * 4
