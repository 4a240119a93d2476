"""Disks of an ordinary user, who may not give files away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ordinary_user import CHECKOUT, home_of_the_user, run_as_user

SCRIPT = """if True:
    import asyncio, os, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from forkyard.disk import About, DiskError, Disks
    async def main():
        assert os.getuid() != 0
        disks = Disks(Path(sys.argv[1]))
        disk, _ = await disks.create("d")
        plain = await disk.put("a", b"1")
        assert (plain.uid, plain.gid, plain.mode) == (0, 0, 0o644), plain
        await disk.put("b/c", b"2", about=About(mode=0o400, uid=7, gid=8))
        head = await disk.head("b/c")
        assert (head.uid, head.gid, head.mode) == (7, 8, 0o400), head
        await disk.put("b/c", b"3")
        assert (await disk.head("b/c")).uid == 0
        (disk.directory() / "closed").mkdir()
        (disk.directory() / "closed" / "f").write_bytes(b"x")
        (disk.directory() / "closed").chmod(0)
        assert [info.key for info in (await disk.list()).objects] == ["a", "b/c"]
        for call in (disk.get("closed/f"), disk.put("closed/f", b"y"), disk.append("closed/f", b"y")):
            try:
                await call
            except DiskError as err:
                assert err.code == "AccessDenied", err.code
            else:
                raise AssertionError
        await disks.delete(disk.info.id)
        assert list(Path(sys.argv[1]).glob("named-disks/dsk-*")) == []
        assert list(Path(sys.argv[1]).glob("named-disks/trash/*")) == []
        await disks.close()
        print("done")
    asyncio.run(main())
"""


def test_an_ordinary_users_objects_are_roots_inside_and_keep_the_owners_they_were_put_with(tmp_path: Path) -> None:
    if os.getuid() != 0:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path), str(CHECKOUT / "src")], capture_output=True, text=True
        )
    else:
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
            pytest.skip("needs a mount namespace")
        with home_of_the_user() as home:
            done = run_as_user(sys.executable, "-c", SCRIPT, str(home), str(CHECKOUT / "src"), home=home)
    assert done.stdout == "done\n", done.stderr
