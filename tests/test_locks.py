from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forkyard.locks import Owners, locked

NOW = fcntl.LOCK_EX | fcntl.LOCK_NB


def killed_owner(directory: Path) -> str:
    """An owner whose process ended without a word."""
    code = "import os, sys, pathlib; from forkyard.locks import Owners; print(Owners(pathlib.Path(sys.argv[1])).own)"
    return subprocess.check_output([sys.executable, "-c", code, directory], text=True).strip()


def test_a_lock_is_one_processs_until_it_is_closed(tmp_path: Path) -> None:
    first = locked(tmp_path / "lock", fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError):
        locked(tmp_path / "lock", NOW)
    os.close(first)
    os.close(locked(tmp_path / "lock", NOW))


def test_a_file_that_was_removed_under_its_lock_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"""if True:
        import os, fcntl; from pathlib import Path; from forkyard.locks import locked
        fd = locked(Path({str(path)!r}), fcntl.LOCK_EX)
        print(os.fstat(fd).st_ino == os.stat({str(path)!r}).st_ino)
    """
    holder = locked(path, fcntl.LOCK_EX)
    waiter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    path.unlink()
    os.close(holder)
    assert waiter.communicate()[0] == b"True\n"
    assert path.exists()


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        locked(tmp_path / "lock", fcntl.LOCK_EX)
    assert not (tmp_path / "elsewhere").exists()


def test_whoever_ended_untidily_is_dead_until_forgotten(tmp_path: Path) -> None:
    dead = killed_owner(tmp_path)
    owners, others = Owners(tmp_path), Owners(tmp_path)
    assert owners.dead() == others.dead() == [dead]
    assert [owners.is_dead(each) for each in (dead, owners.own, others.own)] == [True, False, False]
    owners.forget(dead)
    assert owners.dead() == [] and owners.is_dead(dead)
    others.close(tidy=False)
    assert owners.dead() == [others.own]
    owners.forget(others.own)
    owners.close(tidy=True)
    assert list(tmp_path.iterdir()) == []


def test_what_a_kill_left_of_a_beginning_goes_with_the_next_look(tmp_path: Path) -> None:
    owners = Owners(tmp_path)
    (tmp_path / ".0123456789abcdef").touch()
    beginning = locked(tmp_path / ".fedcba9876543210", fcntl.LOCK_EX)
    assert owners.dead() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [".fedcba9876543210", owners.own]
    os.close(beginning)
    owners.close(tidy=True)
