"""What a program gives that is not what a verb takes, and output of which only a part is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import forkyard
from forkyard.client import Client
from forkyard.client.processes import _Text
from tests.support.serving import served


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[forkyard.client.Sandbox]:
    with Client(home=tmp_path_factory.mktemp("given")) as client:
        made = client.create_sandbox()
        yield made
        made.delete(cascade=True)


def test_a_command_has_a_terminal_of_the_size_that_is_given(box: forkyard.client.Sandbox) -> None:
    for terminal in (forkyard.Terminal(cols=100, rows=30), {"rows": 30, "cols": 100}):
        assert box.run("tty && stty size", terminal=terminal).wait().stdout.endswith("30 100\r\n")


def test_what_is_no_terminal_is_told_with_what_is(box: forkyard.client.Sandbox) -> None:
    with pytest.raises(TypeError, match=r"True is no terminal: write forkyard.Terminal\(cols=80, rows=24\)"):
        box.run("tty", terminal=True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a terminal has no 'columns', but cols and rows"):
        box.run("tty", terminal={"columns": 100})
    with pytest.raises(ValueError, match="rows must be from 1 to 65535, not '30'"):
        box.run("tty", terminal={"rows": "30"})  # type: ignore[dict-item]


def test_a_command_that_is_no_text_is_told_how_to_make_one(box: forkyard.client.Sandbox) -> None:
    for call in (lambda words: box.exec(words), lambda words: box.run(words), lambda words: forkyard.exec({}, words)):
        with pytest.raises(TypeError, match=r"one text for a shell, not \['echo', 'x'\]: .*shlex.join"):
            call(["echo", "x"])


def test_bytes_are_uploaded_as_a_file_is(box: forkyard.client.Sandbox, tmp_path: Path) -> None:
    box.files.upload_file(b"bytes", "/of/bytes")
    box.files.upload_file(b"", "/of/none", mode=0o600)
    assert box.exec("stat -c '%a %s' /of/bytes /of/none").stdout == "644 5\n600 0\n"
    with pytest.raises(forkyard.FileTransferError, match="/of was not written: it is a directory"):
        box.files.upload_file(b"bytes", "/of")
    assert box.exec("ls -A /of").stdout == "bytes\nnone\n"
    box.files.download_file("/of/bytes", tmp_path / "here")
    assert (tmp_path / "here").read_bytes() == b"bytes"


def test_a_verb_that_lacks_an_argument_says_how_it_is_called(box: forkyard.client.Sandbox) -> None:
    with pytest.raises(TypeError, match=r"'local': call it as download_file\(remote, local\)\. Copy a file inside"):
        box.files.download_file("/x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"call it as create_disk\(name, \*, mounts=\(\), allowed_ips=\(\)\)"):
        forkyard.create_disk()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="the path of a file in a sandbox is a text"):
        box.files.upload_file(b"x", Path("/x"))  # type: ignore[arg-type]


def test_a_result_says_when_it_has_not_all_of_the_output(box: forkyard.client.Sandbox) -> None:
    whole = box.exec("yes | head -c 3000000")
    assert (len(whole.stdout), whole.truncated) == (3_000_000, False)
    left = box.run("yes | head -c 3000000")
    ended = left.wait()
    late = box.attach(left.id).wait()
    assert not ended.truncated and late.truncated and 0 < len(late.stdout) < 3_000_000
    rest = box.attach(left.id, offset=2_999_998).wait()
    assert (rest.stdout, rest.truncated) == ("y\n", False)


def test_of_a_text_that_is_too_long_the_newest_is_kept_and_it_says_so() -> None:
    text = _Text(kept=10)
    for piece in (b"0123", b"4567", b"89"):
        text.add(piece)
    assert (str(text), text.truncated) == ("0123456789", False)
    text.add(b"x")
    assert (str(text), text.truncated) == ("123456789x", True)
    text.add(b"-" * 9)
    assert (str(text), text.truncated) == ("x" + "-" * 9, True)


LEAVES = "import forkyard\nbox = forkyard.create_sandbox()\nleft = box.run('sleep 1000')\nprint(left.status)"


@pytest.mark.parametrize("way", ["embedded", "url"])
def test_a_program_that_leaves_a_process_running_ends_without_a_word(way: str, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FORKYARD_", "ARCHIL_"))}
    command = [sys.executable, "-W", "error", "-c", LEAVES]
    if way == "embedded":
        environ["FORKYARD_HOME"] = str(tmp_path)
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
    else:
        with served(tmp_path) as place:
            done = subprocess.run(command, env=environ | place.variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "running\n", "")
