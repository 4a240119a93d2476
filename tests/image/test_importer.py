import bz2
import gzip
import io
import lzma
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from forkyard.errors import ConfigError
from forkyard.image import import_archive
from forkyard.image.members import Member
from forkyard.image.pieces import pieces
from forkyard.sandbox import ImageConfig, Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.values import MIB

PLAIN = ImageConfig()
LONG = "n" * 150 + "/" + "m" * 150 + "é"


def member(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **fields: object) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info, io.BytesIO(content) if kind == tarfile.REGTYPE else None


def tar(*members: Member, format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for info, content in members:
            archive.addfile(info, content)
    return buffer.getvalue()


SMALL = tar(
    member("./", tarfile.DIRTYPE, mode=0o700),
    member("./etc/", tarfile.DIRTYPE),
    member("./etc/motd", content=b"hello"),
)


async def imported(provider: LocalProvider, path: Path, data: bytes) -> tuple[str, ...]:
    """Import as "it"; what was said of it."""
    path.write_bytes(data)
    return (await import_archive(provider, path, "it", PLAIN)).notes


async def started(provider: LocalProvider, image: str = "it") -> Sandbox:
    return await provider.create(SandboxSpec(image=image))


async def listing(sandbox: Sandbox, path: str = "/") -> dict[str, tarfile.TarInfo]:
    """Everything beneath a directory of a sandbox, without what every sandbox has."""
    exclude = ("dev", "proc", "sys")
    with tarfile.open(fileobj=io.BytesIO(await sandbox.pull(path, exclude=exclude))) as archive:
        return {info.name.rstrip("/"): info for info in archive}


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        ("tar", bytes),
        ("tar.gz", gzip.compress),
        ("tar.bz2", bz2.compress),
        ("tar.xz", lzma.compress),
        ("tar.zst", zstandard.compress),
    ],
)
async def test_an_archive_becomes_an_image(
    provider: LocalProvider, tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    archive = tmp_path / f"root.{suffix}"
    archive.write_bytes(pack(SMALL))
    config = ImageConfig(env={"A": "1"}, workdir="/etc", user="7")
    image = await import_archive(provider, archive, "my/root:1", config)
    assert (image.name, image.config, image.notes) == ("my/root:1", config, ())
    assert [info.name for info in await provider.images()] == ["my/root:1"]
    sandbox = await started(provider, "my/root:1")
    assert await sandbox.read("motd") == b"hello"
    await sandbox.close()
    assert await provider.sandboxes() == []


async def test_the_suffix_of_a_name_decides_nothing(provider: LocalProvider, tmp_path: Path) -> None:
    assert await imported(provider, tmp_path / "odd.zip", gzip.compress(SMALL)) == ()


@pytest.mark.usefixtures("many_users")
async def test_owners_modes_links_and_times_are_kept(provider: LocalProvider, tmp_path: Path) -> None:
    data = tar(
        member("closed", tarfile.DIRTYPE, mode=0o500, uid=5, gid=6, mtime=1000),
        member("closed/deep/file", content=b"x", mode=0o4711, uid=1000, gid=1001, mtime=2000),
        member("closed/deep", tarfile.DIRTYPE, mode=0o2770, uid=1000, gid=1001, mtime=3000),
        member("empty", tarfile.DIRTYPE, mode=0o1777),
        member("hard", tarfile.LNKTYPE, linkname="./closed/deep/file"),
        member("soft", tarfile.SYMTYPE, linkname="/nowhere/../else"),
        member("/absolute", content=b"a"),
        member(LONG, content=b"long", pax_headers={"mtime": "inf"}),
    )
    await imported(provider, tmp_path / "root.tar", data)
    sandbox = await started(provider)
    found = await listing(sandbox)
    told = {name: (f"{i.mode:o}", i.uid, i.gid, int(i.mtime)) for name, i in found.items() if name.startswith("closed")}
    assert told == {
        "closed": ("500", 5, 6, 1000),
        "closed/deep": ("2770", 1000, 1001, 3000),
        "closed/deep/file": ("4711", 1000, 1001, 2000),
    }
    assert (found["empty"].isdir(), found["empty"].mode) == (True, 0o1777)
    assert (found["soft"].issym(), found["soft"].linkname) == (True, "/nowhere/../else")
    assert await sandbox.read("/hard") == b"x"
    assert (found["hard"].mode, found["hard"].uid) == (0o4711, 1000)
    assert await sandbox.read("/absolute") == b"a"
    assert found[LONG].mtime == 0
    await sandbox.close()


async def test_a_mode_of_the_root_does_not_shut_others_out(provider: LocalProvider, tmp_path: Path) -> None:
    await imported(provider, tmp_path / "root.tar", SMALL)
    sandbox = await started(provider)
    (root,) = {info.mode for name, info in (await listing(sandbox, "/etc/..")).items() if name == "etc"}
    assert root == 0o755
    await sandbox.close()


async def test_a_large_archive_comes_in_pieces_that_belong_together(provider: LocalProvider, tmp_path: Path) -> None:
    big = bytes(40 * MIB)
    data = tar(
        member("bin", tarfile.SYMTYPE, linkname="usr/bin"),
        member("usr/bin", tarfile.DIRTYPE, mode=0o711),
        member("usr/bin/first", content=b"target", mode=0o755),
        member("big1", content=big),
        member("big2", content=big),
        member("bin/second", tarfile.LNKTYPE, linkname="bin/first"),
        member("usr/bin/third", content=b"late"),
    )
    await imported(provider, tmp_path / "root.tar.gz", gzip.compress(data, 1))
    sandbox = await started(provider)
    found = await listing(sandbox, "/usr")
    assert (found["bin"].mode, found["bin/second"].mode) == (0o711, 0o755)
    assert await sandbox.read("/usr/bin/second") == b"target"
    assert await sandbox.read("/big2", max_bytes=64 * MIB) == big
    await sandbox.close()


def test_pieces_are_whole_archives_of_bounded_size() -> None:
    rng = random.Random(5)
    members = [member(f"f{i}", content=rng.randbytes(rng.choice([0, 10, 5000, 60_000]))) for i in range(60)]
    members.insert(30, member("huge", content=bytes(500_000)))
    made = list(pieces(members, limit=100_000))
    assert len(made) > 5
    (large,) = [piece for piece in made if len(piece) > 100_000]
    with tarfile.open(fileobj=io.BytesIO(large)) as archive:
        assert archive.getnames() == ["huge"]
    names = []
    for piece in made:
        with tarfile.open(fileobj=io.BytesIO(piece)) as archive:
            names += archive.getnames()
    assert names == [info.name for info, _ in members]
    assert list(pieces([])) == []


async def test_devices_are_left_out_and_counted(provider: LocalProvider, tmp_path: Path) -> None:
    data = tar(
        member("dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("dev/sda", tarfile.BLKTYPE, devmajor=8),
        member("run/pipe", tarfile.FIFOTYPE),
        member("kept", content=b""),
    )
    (note,) = await imported(provider, tmp_path / "root.tar", data)
    assert note.startswith("2 device nodes of ")
    sandbox = await started(provider)
    found = await listing(sandbox)
    assert "kept" in found and found["run/pipe"].isfifo()
    assert "dev/sda" not in found
    await sandbox.close()


async def test_extended_attributes_are_kept_whatever_the_names_are(provider: LocalProvider, tmp_path: Path) -> None:
    note = {"SCHILY.xattr.user.note": "kept é", "SCHILY.xattr.user.long": "x" * 3000, "comment": "not"}
    data = tar(
        member("d", tarfile.DIRTYPE, pax_headers=note),
        member("d/f", content=b"1", pax_headers=note),
        member("d/raw\udcff", content=b"2", pax_headers=note),
        member("plain", content=b""),
    )
    await imported(provider, tmp_path / "root.tar", data)
    sandbox = await started(provider)
    found = await listing(sandbox)
    await sandbox.close()
    kept = {name: value for name, value in note.items() if name != "comment"}
    for name in ("d", "d/f", "d/raw\udcff"):
        assert {key: found[name].pax_headers.get(key) for key in kept} == kept, name
    assert "SCHILY.xattr.user.note" not in found["plain"].pax_headers


HASH = "0123456789abcdef" * 4

# the bytes of a file, what is said of it
REFUSED: list[tuple[bytes, str]] = [
    (b"", "not a tar archive that can be read"),
    (b"no archive at all" * 100, "not a tar archive that can be read"),
    (tar(), "the archive is empty"),
    (gzip.compress(b""), "not a tar archive that can be read"),
    (gzip.compress(SMALL)[:-20], "not a tar archive that can be read"),
    (lzma.compress(SMALL)[:-20], "not a tar archive that can be read"),
    (tar(member("a", content=bytes(100_000)))[:50_000], "not a tar archive that can be read"),
    (b"\x28\xb5\x2f\xfd rest", "not a tar archive that can be read"),
    (b"PK\x03\x04 rest", "zip archives are not supported"),
    (tar(member("../a", content=b"x")), "'../a' points outside"),
    (tar(member("a/../../b", content=b"x")), "points outside"),
    (tar(member("a", tarfile.LNKTYPE, linkname="../etc/passwd")), "'../etc/passwd' points outside"),
    (tar(member(f"blobs/sha256/{HASH}", content=b"{}")), "neither index.json nor manifest.json"),
    (
        tar(member(f"{HASH}/", tarfile.DIRTYPE), member(f"{HASH}/layer.tar", content=b"x")),
        "neither index.json nor manifest.json",
    ),
    (tar(member("./oci-layout", content=b"{}")), "no whole image archive"),
]


async def test_what_is_no_root_file_system_is_refused_and_leaves_nothing(
    provider: LocalProvider, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    for data, complaint in REFUSED:
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=complaint) as caught:
            await import_archive(provider, path, "it", PLAIN)
        assert str(caught.value).startswith(str(path))
    with pytest.raises(ConfigError, match="missing cannot be read: No such file"):
        await import_archive(provider, tmp_path / "missing", "it", PLAIN)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        await import_archive(provider, tmp_path, "it", PLAIN)
    assert await provider.images() == []
    assert await provider.sandboxes() == []


@pytest.mark.parametrize("name", ["", "host", "scratch", "build:1", "cache:1", "a b", "-a", "a\n", "/a", "a" * 300])
async def test_some_names_are_not_free_to_choose(provider: LocalProvider, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of an"):
        await import_archive(provider, tmp_path / "never read", name, PLAIN)


async def test_an_image_of_the_same_name_is_replaced(provider: LocalProvider, tmp_path: Path) -> None:
    await imported(provider, tmp_path / "root.tar", SMALL)
    await imported(provider, tmp_path / "root.tar", tar(member("new", content=b"")))
    sandbox = await started(provider)
    assert "new" in (found := await listing(sandbox))
    assert "etc/motd" not in found
    await sandbox.close()
    assert [info.name for info in await provider.images()] == ["it"]
