"""What of a sandbox's archive becomes files of the host."""

from __future__ import annotations

import tarfile
from pathlib import Path

from forkyard.sandbox.archive import unpack_untrusted
from forkyard.sandbox.contract.archives import member, pack


def _hard(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def test_a_hard_link_to_what_was_placed_is_one(tmp_path: Path) -> None:
    assert unpack_untrusted(pack([member("a/file", b"x" * 9), _hard("b/again", "a/file")]), tmp_path) == []
    assert (tmp_path / "b/again").samefile(tmp_path / "a/file")  # and no second file, whose room nobody bounded


def test_hard_links_to_anything_else_are_left_out(tmp_path: Path) -> None:
    secret, inside = tmp_path / "secret", tmp_path / "inside"
    secret.write_text("of the host")
    inside.mkdir()
    link = member("link", type=tarfile.SYMTYPE, linkname="../secret")
    targets = ("../secret", str(secret), "link", "none", "directory", "self4", "x" * 300, "")
    hostile = [_hard(f"self{number}", target) for number, target in enumerate(targets)]
    skipped = unpack_untrusted(pack([member("directory"), link, *hostile]), inside)
    assert len(skipped) == len(targets) + 1
    assert [path.name for path in inside.iterdir()] == ["directory"]
    assert secret.stat().st_nlink == 1
