"""Sets of tasks in archives, honest and hostile."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from forkyard.task import load_taskset
from forkyard.task.registry.archive import unpack_archive
from tests.task.sets import manifest, refused, tar, write_set


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for caches and the registry."""
    monkeypatch.setenv("FORKYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("ending", "mode"), [(".tar", "w"), (".tar.gz", "w:gz"), (".tgz", "w:gz"), (".tar.xz", "w:xz")]
)
@pytest.mark.parametrize("prefix", [".", "set-1.0", "repository/tasks"])
def test_the_tasks_of_an_archive(ending: str, mode: str, prefix: str, tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", "a", "b")
    (root / "a/tests/link").symlink_to("test.sh")
    (root / "a/tests/test.sh").chmod(0o755)
    found = load_taskset(tar(tmp_path / f"some{ending}", root, prefix, mode))
    assert (found.name, [task.name for task in found]) == ("some", ["cases/a", "cases/b"])
    assert [task.digest for task in found] == [task.digest for task in load_taskset(root)]


def test_an_archive_is_unpacked_once(tmp_path: Path, home: Path) -> None:
    path = tar(tmp_path / "a.tar.gz", manifest(write_set(tmp_path / "set", "a"), "a"), "set")
    first, second = unpack_archive(path), unpack_archive(path)
    assert first == second and list((home / "cache/archives").iterdir()) == [first]


def test_what_lacks_a_solution_is_noted(tmp_path: Path) -> None:
    write_set(tmp_path / "set", "a")
    some = load_taskset(tar(tmp_path / "some.tar", write_set(tmp_path / "set", "b", files={}), "set", "w"))
    assert [[note.split(":")[0] for note in task.notes] for task in some] == [[], ["partial_solutions_archived"]]
    none = load_taskset(tar(tmp_path / "none.tar", write_set(tmp_path / "other", "c", files={}), "set", "w"))
    assert [[note.split(":")[0] for note in task.notes] for task in none] == [["no_solutions_archived"]]


Member = tuple[str, bytes, str, bytes]  # name, type, link, content
HOSTILE: dict[str, tuple[list[Member], str]] = {
    "absolute": ([("/tmp/x", tarfile.REGTYPE, "", b"x")], "'/tmp/x' lies outside of it"),
    "above": ([("a/../../x", tarfile.REGTYPE, "", b"x")], "lies outside of it"),
    "link to root": ([("a", tarfile.SYMTYPE, "/etc", b"")], "'a' is a link that leads out of it"),
    "link above": ([("a/b", tarfile.SYMTYPE, "../../x", b"")], "is a link that leads out of it"),
    "through a link": (
        [("a", tarfile.SYMTYPE, "b", b""), ("a/x", tarfile.REGTYPE, "", b"x")],
        "'a/x' lies in 'a', which is no directory",
    ),
    "through a file": ([("a", tarfile.REGTYPE, "", b"x"), ("a/x", tarfile.REGTYPE, "", b"")], "which is no directory"),
    "a file turned link": ([("a", tarfile.REGTYPE, "", b"x"), ("a", tarfile.SYMTYPE, "b", b"")], "is in it twice"),
    "a directory turned link": (
        [("a/x", tarfile.REGTYPE, "", b"x"), ("a", tarfile.SYMTYPE, "b", b"")],
        "'a' is in it twice",
    ),
    "twice": ([("a", tarfile.REGTYPE, "", b"x"), ("./a", tarfile.REGTYPE, "", b"x")], "is in it twice"),
    "hard link": ([("a", tarfile.LNKTYPE, "/etc/passwd", b"")], "'a' is neither a file"),
    "pipe": ([("a", tarfile.FIFOTYPE, "", b"")], "'a' is neither a file"),
    "device": ([("a", tarfile.CHRTYPE, "", b"")], "'a' is neither a file"),
    "too large": ([("a", tarfile.REGTYPE, "", bytes(3 << 20))], "it unpacks to more than 2 MiB"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(case: str, tmp_path: Path, home: Path) -> None:
    members, said = HOSTILE[case]
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        for name, kind, link, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, link, len(content)
            archive.addfile(member, io.BytesIO(content))
    (told,) = refused(lambda: unpack_archive(tmp_path / "x.tar.gz", most_bytes=2 << 20))
    assert told.startswith(f"import_failed: {tmp_path / 'x.tar.gz'} is refused: ") and said in told
    assert list((home / "cache/archives").iterdir()) == []


def test_a_header_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    (tmp_path / "x.tar").write_bytes(header.tobuf() + bytes(1 << 20))
    (told,) = refused(lambda: load_taskset(tmp_path / "x.tar"))
    assert "a header of 1073741824 bytes" in told


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8bbroken", b"PK\x03\x04zip"])
def test_what_is_no_archive_is_said(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    (told,) = refused(lambda: load_taskset(tmp_path / "x.tar"))
    assert told.startswith("import_failed: ")


def test_an_archive_that_is_not_there_is_said(tmp_path: Path) -> None:
    (told,) = refused(lambda: load_taskset(tmp_path / "x.tar"))
    assert told == f"import_failed: {tmp_path / 'x.tar'} cannot be unpacked: No such file or directory"
