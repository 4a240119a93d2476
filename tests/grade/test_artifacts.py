"""Collecting and restoring artifacts; rows by the numbers of the list they are from ("6.4")."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import forkyard as vf
from forkyard.errors import TooLarge
from forkyard.grade import cleaned, collect, restore
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.subprocess import SubprocessProvider

FILE, DIR, LINK, HARD, FIFO = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE


@pytest_asyncio.fixture(loop_scope="module")
async def box(local: LocalProvider) -> AsyncIterator[vf.Sandbox]:
    sandbox = await local.create(vf.SandboxSpec(workdir="/app"))
    await sandbox.push(bytes(10240), "/app")
    yield sandbox
    await sandbox.close()


async def sh(box: vf.Sandbox, script: str) -> str:
    result = await box.run(script, cwd="/app")
    assert result.ok, result.stderr
    return result.stdout


def artifact(source: str, **fields: Any) -> vf.Artifact:
    return vf.Artifact(source=source, **fields)


def members(archive: bytes | None) -> dict[str, tarfile.TarInfo]:
    assert archive is not None
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: member for member in tar}


def tar_of(*entries: tuple[str, bytes, str]) -> bytes:
    """An archive of (name, type, target of a link, or content)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, what in entries:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o755 if kind == DIR else 0o644
            if kind in (LINK, HARD):
                member.linkname = what
            content = what.encode() if kind == FILE else b""
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


async def test_6_4_a_directory_keeps_links_and_hard_links_and_loses_fifos(box: vf.Sandbox) -> None:
    await sh(box, "mkdir d && cd d && echo A > a && ln -s a l && ln a h && mkfifo p && mkdir empty && chmod 700 .")
    collected = await collect(box, [artifact("/app/d")], sweep=False)
    found = members(collected["/app/d"])
    assert sorted(found) == ["app/d", "app/d/a", "app/d/empty", "app/d/h", "app/d/l"]
    assert (found["app/d"].mode, found["app/d/l"].linkname, found["app/d/h"].linkname) == (0o700, "a", "app/d/a")
    await sh(box, "rm -r d")
    await restore(box, collected)
    assert await sh(box, "cd d && cat a l h && readlink l && stat -c %h a && stat -c %a .") == "A\nA\nA\na\n2\n700\n"


async def test_6_4_one_path_declared_twice(box: vf.Sandbox) -> None:
    with pytest.raises(RuntimeError, match="artifact '/app/f' declared more than once"):
        await collect(box, [artifact("/app/f"), artifact("f")], workdir="/app")


async def test_6_4_a_relative_source_is_taken_from_the_working_directory(box: vf.Sandbox) -> None:
    await sh(box, "echo 1 > f")
    assert list(await collect(box, [artifact("f")], sweep=False)) == ["/app/f"]
    assert list(await collect(box, [artifact("./f/")], sweep=False, workdir="/app")) == ["/app/f"]


async def test_6_4_required_and_optional_ones_that_are_missing(box: vf.Sandbox) -> None:
    with pytest.raises(RuntimeError, match="declared artifact '/app/no' does not exist in the runtime"):
        await collect(box, [artifact("/app/no")])
    with pytest.raises(RuntimeError, match="does not exist"):
        await collect(box, [artifact("/app/no/deeper")])
    assert await collect(box, [artifact("no", required=False)]) == {"/logs/artifacts": None, "/app/no": None}


async def test_6_4_excluded_members_are_absent(box: vf.Sandbox) -> None:
    await sh(box, "mkdir -p d/s && touch d/s/in d/a d/b.x d/keep")
    collected = await collect(box, [artifact("/app/d", exclude=("s", "*.x"))], sweep=False)
    assert sorted(members(collected["/app/d"])) == ["app/d", "app/d/a", "app/d/keep"]


async def test_6_4_all_archives_together_are_bounded(box: vf.Sandbox) -> None:
    await sh(box, "mkdir -p /logs/artifacts && echo n > /logs/artifacts/n && head -c 5000000 /dev/zero > big")
    with pytest.raises(TooLarge, match="/app.*over the 989760 byte limit"):
        await collect(box, [artifact("/app/big")], max_bytes=1_000_000)


async def test_6_4_a_root_that_is_a_link_is_collected_and_not_restored(box: vf.Sandbox) -> None:
    await sh(box, "mkdir d && echo 1 > d/a && ln -s /app/d root")
    collected = await collect(box, [artifact("/app/root")], sweep=False)
    assert members(collected["/app/root"])["app/root"].issym()
    with pytest.raises(RuntimeError, match="artifact member 'app/root' is a link or special file"):
        await restore(box, collected)


async def test_6_4_a_link_to_outside_is_collected_and_not_restored(box: vf.Sandbox) -> None:
    await sh(box, "mkdir e && ln -s /etc/passwd e/p && echo 1 > e/a")
    collected = await collect(box, [artifact("/app/e")], sweep=False)
    with pytest.raises(RuntimeError, match="artifact symlink 'app/e/p' has unsafe target '/etc/passwd'"):
        await restore(box, collected)
    archive, left_out = cleaned(collected)
    assert (sorted(members(archive)), len(left_out)) == (["app/e", "app/e/a"], 1)


async def test_6_4_artifacts_may_nest(box: vf.Sandbox) -> None:
    await sh(box, "mkdir -p d/s && echo 1 > d/s/a && echo 2 > d/b")
    collected = await collect(box, [artifact("/app/d/s"), artifact("/app/d")], sweep=False)
    assert "app/d/s/a" in members(collected["/app/d"]) and "app/d/s/a" in members(collected["/app/d/s"])
    await sh(box, "rm -r d")
    await restore(box, collected)
    assert await sh(box, "cat d/s/a d/b") == "1\n2\n"


async def test_6_4_a_stale_tree_is_replaced_and_its_siblings_stay(box: vf.Sandbox) -> None:
    await sh(box, "mkdir -p d /logs/artifacts && echo new > d/a")
    collected = await collect(box, [artifact("/app/d"), artifact("/app/gone", required=False)])
    await sh(box, "touch d/stale /logs/artifacts/stale keep; mkdir -p gone/deep")
    await restore(box, collected)
    assert await sh(box, "ls d /logs/artifacts; ls -d keep gone 2>&1 || true; cat d/a") == (
        "/logs/artifacts:\n\nd:\na\nls: cannot access 'gone': No such file or directory\nkeep\nnew\n"
    )


async def test_6_4_a_root_that_is_the_working_directory_itself(box: vf.Sandbox) -> None:
    await sh(box, "echo 1 > a")
    collected = await collect(box, [artifact("/app")], sweep=False)
    await restore(box, collected)
    assert await sh(box, "ls; cat a") == "a\n1\n"
    await restore(box, {"/app": None})
    assert await sh(box, "ls -A") == ""


async def test_files_with_names_that_a_layer_deletes_by_are_restored_as_they_are(box: vf.Sandbox) -> None:
    await sh(box, "mkdir x && echo kept > x/a && echo 1 > x/.wh.a && echo 2 > x/.wh..wh..opq")
    collected = await collect(box, [artifact("/app/x")], sweep=False)
    await sh(box, "rm -r x; mkdir x; echo old > x/b; echo beside > y")
    await restore(box, collected)
    assert await sh(box, "cat x/a x/.wh.a x/.wh..wh..opq; ls x y") == "kept\n1\n2\ny\n\nx:\na\n"


async def test_a_working_directory_that_the_agent_removed_is_there_after_a_restore(local: LocalProvider) -> None:
    box = await local.create(vf.SandboxSpec(workdir="/app/deep/er"))
    await restore(box, {"/app/deep": tar_of(("app/deep", DIR, ""), ("app/deep/a", FILE, "1"))})
    assert (await box.run("pwd; ls ..; ls -A")).stdout == "/app/deep/er\na\ner\n"
    await box.close()


HOSTILE: list[tuple[str, bytes, str]] = [
    ("climbs", tar_of(("app/x/../../etc/p", FILE, "")), "artifact member .* is outside declared root '/app/x'"),
    ("elsewhere", tar_of(("etc/p", FILE, "")), "artifact member 'etc/p' is outside declared root '/app/x'"),
    ("absolute", tar_of(("/app/x/p", FILE, "")), "artifact member '/app/x/p' is outside declared root"),
    ("a longer name", tar_of(("app/xy", FILE, "")), "is outside declared root"),
    ("through a link", tar_of(("app/x", DIR, ""), ("app/x/l", LINK, "d"), ("app/x/l/p", FILE, "")), "traverses a sym"),
    ("up and out", tar_of(("app/x/l", LINK, "../../etc")), "unsafe target"),
    ("through the root", tar_of(("app/x/a/l", LINK, "../../x/../../etc")), "unsafe target"),
    ("down and up", tar_of(("app/x/a/s", LINK, ".."), ("app/x/a/l", LINK, "s/../../etc")), "unsafe target"),
    ("just outside", tar_of(("app/x/l", LINK, "..")), "unsafe target"),
    ("absolute link", tar_of(("app/x/l", LINK, "/tests/expected")), "unsafe target"),
    ("forward hard link", tar_of(("app/x/h", HARD, "app/x/a"), ("app/x/a", FILE, "1")), "unsafe target"),
    ("hard link out", tar_of(("app/x/h", HARD, "etc/passwd")), "unsafe target"),
    ("hard link to a link", tar_of(("app/x/l", LINK, "a"), ("app/x/h", HARD, "app/x/l")), "unsafe target"),
    ("twice", tar_of(("app/x/a", FILE, "1"), ("app/x/a", FILE, "2")), "duplicate artifact member 'app/x/a'"),
    ("twice, a slash", tar_of(("app/x/a", DIR, ""), ("app/x/a/", DIR, "")), "duplicate artifact member"),
    ("dots", tar_of(("app/x/./a", FILE, "1")), "is outside declared root"),
    ("beneath a file", tar_of(("app/x/a", FILE, "1"), ("app/x/a/b", FILE, "2")), "beneath what is no directory"),
    ("a FIFO", tar_of(("app/x/p", FIFO, "")), "artifact member 'app/x/p' is a link or special file"),
    ("a device", tar_of(("app/x/p", tarfile.CHRTYPE, "")), "is a link or special file"),
    ("junk", b"junk" * 1000, "unreadable artifact archive for '/app/x': invalid header"),
    ("cut", tar_of(("app/x/a", FILE, "1" * 2000))[:1024], "unreadable artifact archive for '/app/x'"),
]


@pytest.mark.parametrize(("archive", "complaint"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
async def test_6_4_hostile_archives_are_refused_before_anything_changes(
    box: vf.Sandbox, archive: bytes, complaint: str
) -> None:
    await sh(box, "mkdir x && echo old > x/old")
    with pytest.raises(RuntimeError, match=complaint):
        await restore(box, {"/app/ok": tar_of(("app/ok", FILE, "1")), "/app/x": archive})
    assert await sh(box, "ls; cat x/old") == "x\nold\n"


@pytest.mark.parametrize("root", ["/", "app", "/app/../etc/x", "", "//", "/.."])
async def test_6_4_roots_that_are_none(box: vf.Sandbox, root: str) -> None:
    with pytest.raises(RuntimeError, match="must be an absolute path below '/' with no '..'"):
        await restore(box, {root: tar_of(("app/x", FILE, "1"))})


@pytest.mark.parametrize("target", ["a", "d/../a", "./d/a", "../x2/a"])
async def test_links_inside_a_root_are_restored_as_long_as_they_stay_there(box: vf.Sandbox, target: str) -> None:
    archive = tar_of(("app/x", DIR, ""), ("app/x/d", DIR, ""), ("app/x/l", LINK, target))
    if ".." in target:
        with pytest.raises(RuntimeError, match="unsafe target"):
            await restore(box, {"/app/x": archive})
    else:
        await restore(box, {"/app/x": archive})
        assert (await sh(box, "readlink x/l")).strip() == target


async def test_set_user_bits_and_capabilities_do_not_travel(box: vf.Sandbox) -> None:
    await sh(box, "mkdir d && cp /bin/true d/t && chmod 4755 d/t")
    collected = await collect(box, [artifact("/app/d")], sweep=False)
    await restore(box, collected)
    assert await sh(box, "stat -c %a d/t") == "755\n"


@pytest.mark.parametrize("name", ["a b", "new\nline", "-rf", 'it\'s "q"', "p|q\\z", "héé-中-😀", "[x]*?", " both "])
async def test_odd_names_survive(box: vf.Sandbox, name: str) -> None:
    await box.write(f"/app/{name}", b"1")
    await box.write(f"/app/{name}x", b"2")
    collected = await collect(box, [artifact(f"/app/{name}")], sweep=False)
    await box.write(f"/app/{name}", b"3")
    await restore(box, collected)
    assert (await box.read(f"/app/{name}"), await box.read(f"/app/{name}x")) == (b"1", b"2")


async def test_a_directory_is_told_from_a_file_of_the_same_name_in_it(box: vf.Sandbox) -> None:
    await sh(box, "mkdir x && echo 1 > x/x")
    collected = await collect(box, [artifact("/app/x")], sweep=False)
    assert sorted(members(collected["/app/x"])) == ["app/x", "app/x/x"]


async def test_the_working_directory_is_the_callers_word_and_not_the_sandboxes(box: vf.Sandbox) -> None:
    await sh(box, "mkdir -p /usr/local/bin /etc/src && printf '#!/bin/sh\\necho /etc' > /usr/local/bin/pwd")
    await sh(box, "chmod 755 /usr/local/bin/pwd; mkdir src; echo 1 > src/a")
    assert list(await collect(box, [artifact("src")], sweep=False, workdir="/app")) == ["/app/src"]


async def test_nothing_is_restored_into_a_directory_of_this_machine(tmp_path: Path) -> None:
    async with SubprocessProvider(tmp_path) as provider:
        plain = await provider.create(vf.SandboxSpec())
        with pytest.raises(TypeError, match="use another provider"):
            await restore(plain, {"/app/x": tar_of(("app/x", FILE, "1"))})


def test_cleaning_leaves_out_what_restoring_refuses_and_says_so() -> None:
    hostile: Mapping[str, bytes | None] = {
        "/app/x": tar_of(("app/x", DIR, ""), ("app/x/l", LINK, "/"), ("app/x/l/p", FILE, ""), ("app/x/a", FILE, "1")),
        "/app/y": None,
        "/app/z": tar_of(("app/z", LINK, "x/a")),
    }
    archive, left_out = cleaned(hostile)
    assert sorted(members(archive)) == ["app/x", "app/x/a"]
    assert [text.rpartition("'app/")[0].strip() for text in left_out] != []
    assert len(left_out) == 3
