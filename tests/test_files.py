from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from forkyard.files import followed, place_once, replace


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    (tmp_path / "file.new").write_text("what a kill left, longer than what is written")
    replace(path, (piece for piece in (b"one ", b"two")), 0o600)
    assert path.read_text() == "one two" and path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(TypeError):
        replace(path, [b"one", "no bytes"])  # type: ignore[list-item]
    assert path.read_text() == "before"


def test_a_path_is_followed_to_where_something_is(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(FileNotFoundError):
        followed(tmp_path / "link")
    (tmp_path / "file").write_text("")
    assert followed(tmp_path / "link") == (tmp_path / "file").resolve()
    (tmp_path / "file").unlink()
    (tmp_path / "file").symlink_to("link")
    with pytest.raises(OSError, match="symbolic links") as raised:
        followed(tmp_path / "link")
    assert raised.value.errno == errno.ELOOP


FULL = """
import resource, sys
from pathlib import Path
from forkyard.files import replace
resource.setrlimit(resource.RLIMIT_FSIZE, (2, 2))
try:
    replace(Path(sys.argv[1]), [b"three"])
except OSError as err:
    print(err.filename, err.strerror, sep="|", file=sys.stderr)
"""


def test_a_write_that_finds_no_room_names_the_file_and_leaves_no_part(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    done = subprocess.run([sys.executable, "-c", FULL, path], stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr.splitlines() == [f"{path}.new|File too large"]
    assert [each.name for each in tmp_path.iterdir()] == ["file"] and path.read_text() == "before"


def test_of_several_writers_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"second"):
        place_once(path, content, 0o600)
    assert path.read_text() == "first" and path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
