import os
from collections.abc import Callable
from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.image.context import Context, digest
from forkyard.image.problem import Problem


def make(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(os.fsencode(f"content of {file}"))
    return root


def names(root: Path, *patterns: str) -> list[list[str]]:
    """For each source found, its name and the names in it."""
    return [[source.name, *(e.name for e in source.entries if e.name)] for source in Context(root).take(patterns)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path, "a.txt", "b.txt", "c.py", "d/e.txt", "d/f/g.txt", ".h")


# sources of a COPY, what is found
SOURCES = [
    (["a.txt"], [["a.txt"]]),
    (["/a.txt"], [["a.txt"]]),
    (["./d/e.txt"], [["e.txt"]]),
    (["d"], [["d", "e.txt", "f", "f/g.txt"]]),
    (["d/"], [["d", "e.txt", "f", "f/g.txt"]]),
    (["d/f"], [["f", "g.txt"]]),
    (["."], [["", ".h", "a.txt", "b.txt", "c.py", "d", "d/e.txt", "d/f", "d/f/g.txt"]]),
    (["/"], [["", ".h", "a.txt", "b.txt", "c.py", "d", "d/e.txt", "d/f", "d/f/g.txt"]]),
    (["*.txt"], [["a.txt"], ["b.txt"]]),
    (["c.py", "*.txt"], [["c.py"], ["a.txt"], ["b.txt"]]),
    (["?.py"], [["c.py"]]),
    (["[ab].*"], [["a.txt"], ["b.txt"]]),
    (["*/*.txt"], [["e.txt"]]),
    (["d/*"], [["e.txt"], ["f", "g.txt"]]),
    (["a.txt", "none*"], [["a.txt"]]),
]


@pytest.mark.parametrize(("patterns", "found"), SOURCES)
def test_sources_are_found(root: Path, patterns: list[str], found: list[list[str]]) -> None:
    assert names(root, *patterns) == found


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("none", "none is not in the build context"),
        ("none/x", "not in the build context"),
        ("a.txt/x", "cannot be read: Not a directory"),
        ("../x", "leaves the build context"),
        ("d/../../x", "leaves the build context"),
        ("d/../a.txt", "leaves the build context"),
        ("d/[", "not closed"),
    ],
)
def test_a_source_that_is_not_there_is_refused(root: Path, pattern: str, complaint: str) -> None:
    with pytest.raises(Problem, match=complaint.replace("*", r"\*").replace("[", r"\[")):
        Context(root).take([pattern])


def test_names_that_patterns_would_read_otherwise_can_be_spelled(tmp_path: Path) -> None:
    make(tmp_path, "a*", "ab", "[x]", "t\u00a0u", os.fsdecode(b"raw\xff"))
    assert names(tmp_path, r"a\*") == [["a*"]]
    assert names(tmp_path, r"\[x]") == [["[x]"]]
    assert names(tmp_path, "t\u00a0u") == [["t\u00a0u"]]
    assert names(tmp_path, "raw?") == [["raw\udcff"]]


def test_links_below_a_source_stay_links(root: Path) -> None:
    (root / "d/inside").symlink_to("e.txt")
    (root / "d/outside").symlink_to("/etc/passwd")
    (root / "d/broken").symlink_to("./nowhere//x/")
    (source,) = Context(root).take(["d"])
    links = {entry.name: entry.content for entry in source.entries if entry.kind == "link"}
    assert links == {"inside": "e.txt", "outside": "/etc/passwd", "broken": "./nowhere//x/"}


def test_a_source_that_is_a_link_is_followed_inside_the_context_only(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = make(tmp_path_factory.mktemp("outside"), "secret")
    (root / "to_file").symlink_to("d/e.txt")
    (root / "to_directory").symlink_to("d/f")
    (root / "out_file").symlink_to(outside / "secret")
    (root / "out_directory").symlink_to(outside)
    (root / "loop").symlink_to("loop")
    assert names(root, "to_file", "to_directory") == [["to_file"], ["to_directory", "g.txt"]]
    assert Context(root).take(["to_file"])[0].entries[0].kind == "file"
    for leaving in ("out_file", "out_directory", "out_directory/secret", "out_directory/*", "out_*"):
        with pytest.raises(Problem, match="leaves the build context"):
            Context(root).take([leaving])
    with pytest.raises(Problem, match="leads to itself|cannot be read"):
        Context(root).take(["loop"])


def test_what_dockerignore_names_is_not_copied(root: Path) -> None:
    (root / ".dockerignore").write_text("*.txt\n!b.txt\nd/f\n.*\n")
    assert names(root, ".") == [["", "b.txt", "c.py", "d", "d/e.txt"]]
    assert names(root, "*.txt") == [["b.txt"]]
    assert names(root, "d") == [["d", "e.txt"]]
    for hidden in ("a.txt", "d/f", "d/f/g.txt"):
        with pytest.raises(Problem, match="left out of the build context by .dockerignore"):
            Context(root).take([hidden])
    (root / "link").symlink_to("a.txt")
    with pytest.raises(Problem, match="a.txt is left out"):
        Context(root).take(["link"])


def test_an_excluded_directory_appears_for_what_is_kept_in_it(root: Path) -> None:
    (root / ".dockerignore").write_text("*\n!d/f/g.txt\n")
    (root / "empty").mkdir()
    assert names(root, ".") == [["", "d", "d/f", "d/f/g.txt"]]


def test_a_bad_dockerignore_is_refused(root: Path) -> None:
    (root / ".dockerignore").write_text("[")
    with pytest.raises(ConfigError, match=r"\.dockerignore:1: "):
        Context(root)
    (root / ".dockerignore").unlink()
    (root / ".dockerignore").mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        Context(root)
    with pytest.raises(ConfigError, match="cannot be read"):
        Context(root / "nowhere")


def test_pipes_are_refused_unless_left_out(root: Path) -> None:
    os.mkfifo(root / "d/pipe")
    with pytest.raises(Problem, match="pipe.*cannot be copied"):
        Context(root).take(["."])
    (root / ".dockerignore").write_text("**/pipe")
    assert "d/pipe" not in names(root, ".")[0]


def now(root: Path) -> str:
    return digest(Context(root).take(["."]))


def test_the_digest_does_not_follow_times(root: Path) -> None:
    before = now(root)
    os.utime(root / "a.txt", (1, 1))
    os.utime(root / "d", (1, 1))
    assert now(root) == before


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte": lambda root: (root / "a.txt").write_text("Content of a.txt"),
    "a mode": lambda root: (root / "a.txt").chmod(0o755),
    "the mode of a directory": lambda root: (root / "d").chmod(0o700),
    "a name": lambda root: (root / "d/e.txt").rename(root / "d/E.txt"),
    "a place": lambda root: (root / "d/f/g.txt").rename(root / "d/g.txt"),
    "a new link": lambda root: (root / "d/link").symlink_to("f"),
    "a new file": lambda root: (root / "d/new").touch(),
    "a new directory": lambda root: (root / "d/new").mkdir(),
    "a lost file": lambda root: (root / "d/e.txt").unlink(),
    "what is left out": lambda root: (root / ".dockerignore").write_text("d/e.txt\n.dockerignore"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_follows(change: str, root: Path) -> None:
    before = now(root)
    CHANGES[change](root)
    assert now(root) != before


def test_the_digest_follows_the_target_of_a_link(root: Path) -> None:
    (root / "link").symlink_to("a.txt")
    (root / "d/link").symlink_to("x")
    before = now(root)
    (root / "d/link").unlink()
    (root / "d/link").symlink_to("y")
    assert now(root) != before


def test_the_digest_knows_which_source_a_file_came_from(tmp_path: Path) -> None:
    one = make(tmp_path / "one", "a/x", "b/y")
    two = make(tmp_path / "two", "a/x", "b/y")
    assert digest(Context(one).take(["a", "b"])) == digest(Context(two).take(["a", "b"]))
    assert digest(Context(one).take(["a", "b"])) != digest(Context(one).take(["b", "a"]))
    (two / "c").mkdir()
    (two / "c/x").write_text("content of a/x")
    (two / "c").chmod((two / "a").stat().st_mode)
    assert digest(Context(two).take(["a"])) == digest(Context(two).take(["c"])), "a directory's own name is not copied"
    (two / "z").write_text("content of a/x")
    assert digest(Context(two).take(["a/x"])) != digest(Context(two).take(["z"])), "a file's name is"
