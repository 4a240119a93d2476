"""What `pull` and `push` promise of trees."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable

from forkyard.errors import SandboxError, TooLarge
from forkyard.sandbox.contract.files import ODD_NAMES, soon, umask
from forkyard.sandbox.contract.promise import PATIENCE, expect, expect_equal, expect_raises, fresh, sh
from forkyard.sandbox.protocol import Provider
from forkyard.values import MIB

BAD_UTF8 = b"bytes-\xff\xfe".decode("utf-8", "surrogateescape")
TREE = """
mkdir -p tree/sub/deep tree/empty tree/closed
for mode in 755 750 644 600 444; do printf "content $mode" > tree/$mode; chmod $mode tree/$mode; done
printf deep > tree/sub/deep/file; chmod 700 tree/sub
printf x > tree/closed/file; chmod 500 tree/closed
ln -s sub/deep/file tree/file-link; ln -s sub tree/dir-link
ln -s /absolute/nowhere tree/dangling; ln -s ../../.. tree/sub/up
"""
LOOK = """
for f in 755 750 644 600 444 sub sub/deep/file closed closed/file empty; do stat -c '%n %a %F' $f; done
for l in file-link dir-link dangling sub/up; do echo "$l -> $(readlink $l)"; done
cat 644 sub/deep/file
"""
EXCLUDABLE = """
mkdir -p t/cache/x t/keep
touch t/a.log t/a.txt t/cache/x/f t/keep/b.log t/keep/cached
ln -s / t/link.log
"""
DEEP = "d/" * 1100  # two of them are deeper than recursion and longer than a path may be
DEEP_TREE = f"mkdir -p t/{DEEP} lower/{DEEP}; printf x > lower/{DEEP}bottom; mv lower t/{DEEP}"


def member(
    name: str, content: bytes | None = None, mode: int | None = None, **fields: object
) -> tuple[tarfile.TarInfo, bytes]:
    """One member of an archive: a file when there is content, else what `type` says (a directory by default)."""
    info = tarfile.TarInfo(name)
    info.mode = mode or (0o644 if content is not None else 0o755)
    info.size = len(content or b"")
    info.type = tarfile.REGTYPE if content is not None else tarfile.DIRTYPE
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content or b""


def pack(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """A tar archive of members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def unpack(archive: bytes) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """The members of an archive by name, without "./" and the root itself."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        for info in tar:
            name = info.name.removeprefix("./").rstrip("/")
            if name not in ("", "."):
                file = tar.extractfile(info) if info.isreg() else None
                found[name] = (info, file.read() if file else b"")
    return found


async def check_pull_push_carries_a_tree(provider: Provider) -> None:
    """A tree goes from one sandbox to another with contents, modes, links as links, and empty directories."""
    async with fresh(provider) as box, fresh(provider) as other:
        await sh(box, TREE)
        archive = await box.pull("tree")
        with umask(0o077):
            await other.push(archive, "/srv/copy")
            await other.push(archive, "copy")
        wanted = await sh(box, LOOK, cwd="tree")
        expect_equal(await sh(other, LOOK, cwd="copy"), wanted, "the tree after pull and push")
        expect_equal(await other.read("/srv/copy/sub/deep/file"), b"deep", "a file under the absolute path")


async def check_pull_names_members_relative_to_the_path(provider: Provider) -> None:
    """Members are named relative to the path pulled; links stay links, whatever they point to."""
    async with fresh(provider) as box:
        await sh(box, TREE)
        found = unpack(await box.pull("tree"))
        wanted = {"755", "750", "644", "600", "444", "sub", "sub/deep", "sub/deep/file", "sub/up", "empty", "closed",
                  "closed/file", "file-link", "dir-link", "dangling"}  # fmt: skip
        expect_equal(set(found), wanted, "names of the members")
        for name, target in (("file-link", "sub/deep/file"), ("dir-link", "sub"), ("dangling", "/absolute/nowhere")):
            info, _ = found[name]
            expect_equal((info.issym(), info.linkname), (True, target), f"whether {name} is a link, and to what")
        expect_equal(found["750"][0].mode & 0o7777, 0o750, "mode of a member")
        expect(found["empty"][0].isdir(), "an empty directory should be a member, it is not a directory")
        expect_equal(found["600"][1], b"content 600", "content of a member")
        inner = unpack(await box.pull("tree/sub"))
        expect_equal(set(inner), {"deep", "deep/file", "up"}, "names when a part of the tree is pulled")


async def check_pull_of_one_file(provider: Provider) -> None:
    """Pulling a single file gives an archive with one member of its own name."""
    async with fresh(provider) as box:
        await box.write("folder/one file", b"content", mode=0o750)
        found = unpack(await box.pull("folder/one file"))
        expect_equal(list(found), ["one file"], "names of the members")
        info, content = found["one file"]
        expect_equal((content, info.mode & 0o7777), (b"content", 0o750), "content and mode")


async def check_odd_names_travel(provider: Provider) -> None:
    """Names with blanks, newlines, quotes, wildcards, any script, or bytes that are no text arrive as they are."""
    names = (*ODD_NAMES, BAD_UTF8, "x" * 200)
    members = [member(f"odd & more/{name}", f"in {name!r}".encode()) for name in names]
    async with fresh(provider) as box:
        await box.push(pack(members), "there")
        for name in ODD_NAMES:
            result = await box.run(["cat", "--", name], cwd="there/odd & more", timeout=PATIENCE)
            expect_equal(result.stdout, f"in {name!r}", f"content of {name!r} for a command")
        script = "cat \"$(printf 'bytes-\\377\\376')\""
        expect_equal(
            await sh(box, script, cwd="there/odd & more"), f"in {BAD_UTF8!r}", "content of a name that is no text"
        )
        found = unpack(await box.pull("there"))
        expect_equal(set(found), {"odd & more"} | {f"odd & more/{name}" for name in names}, "names pulled back")
        for name in names:
            expect_equal(found[f"odd & more/{name}"][1], f"in {name!r}".encode(), f"content of {name!r} pulled back")


async def check_exclude_leaves_members_out(provider: Provider) -> None:
    """`exclude` leaves out the members its patterns match, and everything beneath an excluded directory."""
    async with fresh(provider) as box:
        await sh(box, EXCLUDABLE)
        expect_equal(
            set(unpack(await box.pull("t", exclude=["*.log", "cache"]))),
            {"a.txt", "keep", "keep/cached"},
            "members left",
        )
        expect_equal(
            set(unpack(await box.pull("t", exclude=["keep/*", "cache*", "*.log"]))), {"a.txt", "keep"}, "members left"
        )
        expect_equal(len(unpack(await box.pull("t"))), 9, "number of members without exclusion")


async def check_exclude_patterns_match_across_directories(provider: Provider) -> None:
    """A pattern is held against a whole name and its last part; `*` and `?` match "/" as well, and case matters."""
    rows: dict[str, set[str]] = {
        "a*g": {"d", "d/A.log", "d/e", "d/e/b", "[x]"},  # by the last part, in every directory
        "*/*": {"a.log", "d", "[x]"},
        "d/*b": {"a.log", "d", "d/a.log", "d/A.log", "d/e", "[x]"},
        "d?e": {"a.log", "d", "d/a.log", "d/A.log", "[x]"},
        "d/[!e]*": {"a.log", "d", "d/e", "d/e/b", "[x]"},
        "[[]x]": {"a.log", "d", "d/a.log", "d/A.log", "d/e", "d/e/b"},
        "/d": {"a.log", "d", "d/a.log", "d/A.log", "d/e", "d/e/b", "[x]"},  # names have no "/" in front
    }
    async with fresh(provider) as box:
        await sh(box, "mkdir -p t/d/e; touch t/a.log t/d/a.log t/d/A.log t/d/e/b 't/[x]'")
        for pattern, left in rows.items():
            expect_equal(set(unpack(await box.pull("t", exclude=[pattern]))), left, f"members left by {pattern}")


async def check_pull_over_the_limit_raises(provider: Provider) -> None:
    """A tree larger than `max_bytes` is TooLarge, naming the limit, told without reading all of it."""
    async with fresh(provider) as box:
        await sh(box, "mkdir t; head -c 3000000 /dev/zero > t/file; mkdir s; truncate -s 100G s/sparse")
        for path in ("t", "t/file", "s"):
            with expect_raises(f"pulling {path}", TooLarge) as caught:
                await soon(box.pull(path, max_bytes=MIB), f"pulling {path} with a limit of 1 MiB")
            caught.expect_named(str(MIB), f"{MIB:,}", "1 MiB", "1.0 MiB")
        expect_equal(len(unpack(await box.pull("t", max_bytes=4 * MIB))["file"][1]), 3_000_000, "size within the limit")


async def check_pull_does_not_hang_on_special_files(provider: Provider) -> None:
    """A FIFO in a tree holds nobody up, and the rest of the tree comes."""
    async with fresh(provider) as box:
        await sh(box, "mkdir t; mkfifo t/pipe; printf content > t/file")
        found = unpack(await soon(box.pull("t"), "pulling a tree with a FIFO"))
        expect_equal(found["file"][1], b"content", "content of the file beside the FIFO")
        expect("pipe" not in found or found["pipe"][0].isfifo(), "a FIFO should be left out or be a FIFO")


async def check_pull_survives_a_deep_tree(provider: Provider) -> None:
    """A tree 2,200 directories deep comes whole or is a SandboxError; it can be closed, and the sandbox goes on."""
    async with fresh(provider) as box:
        await sh(box, DEEP_TREE)
        try:
            found = unpack(await soon(box.pull("t"), "pulling a deep tree", within=30))
        except SandboxError:
            found = None
        if found is not None:
            expect(max(found, key=len).endswith("/bottom"), "a deep tree should come whole, its bottom is missing")
        expect_equal(await sh(box, "echo fine"), "fine\n", "the next command")


async def check_hard_links_travel(provider: Provider) -> None:
    """Names of one file are one file again after a pull and a push; the first is the file, the others link to it."""
    async with fresh(provider) as box:
        await sh(box, "mkdir -p t/sub; printf content > t/a; ln t/a t/sub/b; ln t/a t/c; printf other > t/d")
        archive = await box.pull("t")
        found = unpack(archive)
        links = {name: info.linkname for name, (info, _) in found.items() if info.islnk()}
        expect_equal(links, {"c": "a", "sub/b": "a"}, "hard links and what they link to")
        alone = unpack(await box.pull("t", exclude=["a"]))
        expect_equal((alone["c"][1], alone["sub/b"][0].linkname), (b"content", "c"), "links without the first name")
        await box.push(archive, "copy")
        expect_equal(await sh(box, "printf X >> a; cat c sub/b; stat -c %h a d", cwd="copy"), "contentXcontentX3\n1\n",
                     "the names of one file after a change")  # fmt: skip


async def check_extended_attributes_travel(provider: Provider) -> None:
    """Extended attributes of users go in and come out as they are, or not at all; those of overlays never do."""
    value = b"bytes \xff\0=\n".decode("utf-8", "surrogateescape")
    attributes = {"user.note": value, "user.overlay.opaque": "y", "user.overlay.redirect": "/etc"}
    headers = {f"SCHILY.xattr.{name}": content for name, content in attributes.items()}
    async with fresh(provider) as box:
        await box.push(pack([member("d", pax_headers=headers), member("d/f", b"content", pax_headers=headers)]), "t")
        for name, (info, _) in unpack(await box.pull("t")).items():
            got = {key: found for key, found in info.pax_headers.items() if key.startswith("SCHILY.xattr.")}
            expect(got in ({}, {"SCHILY.xattr.user.note": value}), f"attributes of {name} should be note, got {got}")


async def check_push_keeps_names_that_mean_something_in_layers(provider: Provider) -> None:
    """Without `layer` a member called as whiteouts are is a file like any other, and deletes nothing."""
    async with fresh(provider) as box:
        await sh(box, "mkdir -p d/sub; printf kept > d/file; printf kept > d/sub/other")
        await box.push(pack([member(".wh.file", b"w"), member("sub/.wh..wh..opq", b"o")]), "d")
        expect_equal(set(unpack(await box.pull("d"))), {".wh.file", "file", "sub", "sub/.wh..wh..opq", "sub/other"},
                     "names in the directory")  # fmt: skip


async def check_push_replaces_files(provider: Provider) -> None:
    """Unpacking replaces files and links that are in the way and keeps the other content of directories."""
    async with fresh(provider) as box:
        await sh(
            box,
            "mkdir -p d/sub outside; printf old > d/file; printf kept > d/sub/other; ln -s ../outside/target d/link",
        )
        await box.push(
            pack([member("sub"), member("file", b"new"), member("link", b"a file"), member("sub/x", b"y")]), "d"
        )
        expect_equal(await sh(box, "cat d/file d/link d/sub/other d/sub/x; ls outside"), "newa filekepty", "contents")
