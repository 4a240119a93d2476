"""Layers made to do harm, and layers that are merely odd."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import zstandard

from forkyard.image import ImageSourceError, pull
from forkyard.image.oci.ahead import Ahead
from forkyard.image.oci.blob import Arrival, Blob
from forkyard.image.oci.documents import digest_of
from forkyard.image.oci.layer import Layer
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.values import MIB
from tests.image.oci.parts import link, listing, made, member, publish, tar


def layer_of(path: Path, data: bytes, packed: bytes | None = None) -> Layer:
    path.write_bytes(data if packed is None else packed)
    return Layer(Blob(path, 0, path.stat().st_size), digest_of(data), "the layer")


def names_in(archives: Iterable[bytes]) -> list[list[str]]:
    found = []
    for archive in archives:
        assert len(archive) < 65 * MIB
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            found.append(opened.getnames())
    return found


def extended(size: int, record: bytes = b"") -> bytes:
    """A header that says of the next member what a record says."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, size
    return info.tobuf(tarfile.GNU_FORMAT) + (record.ljust(512, b"\0") if record else b"")


FINE = tar(member("a", b"x" * 5000))

# what is said of it; the bytes, and as they come
REFUSED: list[tuple[str, bytes, bytes | None]] = [
    ("points outside", tar(member("../a", b"x")), None),
    ("points outside", tar(member("a/../../b", b"x")), None),
    ("points outside", tar(member("/etc/passwd", b"x")), None),
    ("points outside", tar(member("..")), None),
    ("points outside", tar(link("a", "../../etc/passwd", tarfile.LNKTYPE)), None),
    ("points outside", tar(member("a/../.wh.b", b"")), None),
    ("a header of 1099511627776 bytes", extended(1 << 40), None),
    ("can be read", extended(12, b"12 path=aaa\n") * 2000, None),
    ("sparse", tar(member("a", b"", type=tarfile.GNUTYPE_SPARSE), format=tarfile.GNU_FORMAT), None),
    ("can be read", FINE, gzip.compress(FINE)[:-12]),
    ("can be read", FINE, gzip.compress(FINE)[:40]),
    ("can be read", FINE[:3000], None),
    ("can be read", FINE, b"\x28\xb5\x2f\xfd" + b"no frame at all" * 10),
    ("can be read", FINE, zstandard.compress(FINE)[:40]),
    ("refused: unpacked it has the digest", FINE, zstandard.compress(FINE + b"\0")),
    ("can be read", b"no archive at all" * 100, None),
    ("refused: unpacked it has the digest", FINE, gzip.compress(FINE + b"\0")),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_hostile_layer_is_refused(tmp_path: Path, number: int) -> None:
    complaint, data, packed = REFUSED[number]
    layer = layer_of(tmp_path / "layer", data, packed)
    for archives in (layer.archives(), layer.archives_carefully()):
        with pytest.raises(ImageSourceError, match=complaint):
            next(archives)


BIG = bytes(40 * MIB)


def test_pieces_hold_every_member_in_the_order_of_the_layer(tmp_path: Path) -> None:
    data = tar(
        member("d", mode=0o700),
        member("d/.wh..wh..opq", b""),
        member("d/one", BIG),
        member("d/.wh.gone", b""),
        member("é" * 120, BIG),
        member("last", b"l"),
    )
    layer = layer_of(tmp_path / "layer", data, gzip.compress(data, 1))
    wanted = [["d", "d/.wh..wh..opq"], ["d/one"], ["d/.wh.gone"], ["é" * 120], ["last"], ["d"]]
    assert names_in(layer.archives()) == wanted


def test_whiteouts_come_first_where_they_would_delete_what_is_in_the_layer(tmp_path: Path) -> None:
    data = tar(
        member("d"),
        member("d/one", BIG),
        member("d/.wh.gone", b""),
        member("d/.wh..wh..opq", b""),
        member("two", BIG),
        member("last", b"l"),
    )
    layer = layer_of(tmp_path / "layer", data)
    with pytest.raises(ImageSourceError, match=r"'d/.wh..wh..opq' after what that would delete"):
        list(layer.archives())
    pieces = names_in(layer.archives_carefully())
    assert pieces == [["d/.wh.gone", "d/.wh..wh..opq"], ["d"], ["d/one"], ["two"], ["last"], ["d"]]


@pytest.mark.parametrize("name", ["a/.wh.b", ".wh.a", "a/b/.wh..wh..opq"])
def test_what_a_whiteout_would_delete_is_known_whatever_its_depth(tmp_path: Path, name: str) -> None:
    layer = layer_of(tmp_path / "layer", tar(member("a/./b/c", b""), member(name, b"")))
    with pytest.raises(ImageSourceError, match="after what that would delete"):
        list(layer.archives())
    other = layer_of(tmp_path / "layer", tar(member("a/b/c", b""), member(f"x/{name}", b""), member("a/.wh.x", b"")))
    assert len(list(other.archives())) == 1


async def test_a_layer_is_read_while_it_arrives(tmp_path: Path) -> None:
    data = tar(member("one", BIG), member("two", BIG), member("three", b"3"))
    half = len(data) // 2
    path = tmp_path / "layer"
    path.write_bytes(data)
    arrival = Arrival()
    arrival.tell(half + MIB)
    layer = Layer(Blob(path, 0, len(data), arrival), digest_of(data), "the layer")
    async with Ahead(layer.archives(), layer.blob.leave) as ahead:
        first = await anext(ahead)
        assert names_in([first]) == [["one"]]
        arrival.tell(len(data))
        assert names_in([archive async for archive in ahead]) == [["two"], ["three"]]


async def test_nobody_waits_for_a_layer_that_does_not_arrive(tmp_path: Path) -> None:
    path = tmp_path / "layer"
    path.write_bytes(FINE)
    arrival = Arrival()
    layer = Layer(Blob(path, 0, len(FINE), arrival), digest_of(FINE), "the layer")
    async with Ahead(layer.archives(), layer.blob.leave):
        pass  # somebody else failed
    again = Layer(Blob(path, 0, len(FINE), arrival), digest_of(FINE), "the layer")
    with pytest.raises(ImageSourceError, match="nobody wants it"):
        list(again.archives())


async def applied(provider: LocalProvider, registry: str, *data: bytes) -> dict[str, tarfile.TarInfo]:
    name = f"{registry}/odd:{digest_of(b''.join(data))[7:20]}"
    await publish(name, made(*data))
    await pull(provider, name)
    sandbox = await provider.create(SandboxSpec(image=name))
    found = await listing(sandbox)
    await sandbox.close()
    return found


async def test_a_layer_cannot_write_through_a_link_to_the_host(
    provider: LocalProvider, registry: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("of the host")
    below = tar(link("out", str(tmp_path)), link("up", "../../../.."))
    above = tar(member("out/evil", b"e"), member("up/evil", b"e"), member("out/.wh.secret", b""))
    found = await applied(provider, registry, below, above)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert "evil" in found  # "up" leads to the root, which is the sandbox's own


async def test_whiteouts_name_what_is_beside_them_only(provider: LocalProvider, registry: str) -> None:
    below = tar(member("kept", b""), member("d/kept", b""))
    for name in ("d/.wh...", "d/.wh..", "d/.wh."):
        with pytest.raises(ImageSourceError, match="names nothing"):
            await applied(provider, registry, below, tar(member(name, b"")))
    found = await applied(provider, registry, below, tar(member(".wh..wh.plnk", b""), member("proc/.wh.x", b"")))
    assert sorted(found) == ["d", "d/kept", "kept"]


async def test_an_opaque_root_leaves_what_every_sandbox_has(provider: LocalProvider, registry: str) -> None:
    below = tar(member("old/deep", b""), member("file", b""))
    found = await applied(provider, registry, below, tar(member("new", b""), member(".wh..wh..opq", b"")))
    assert sorted(found) == ["new"]


async def test_device_nodes_are_left_out_and_counted(provider: LocalProvider, registry: str) -> None:
    data = tar(
        member("dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("srv/disk", type=tarfile.BLKTYPE, devmajor=8),
        link("dev/stdin", "/proc/self/fd/0"),
        link("sys", "/elsewhere"),
        member("kept", b""),
    )
    await publish(f"{registry}/devices:1", made(data))
    image = await pull(provider, f"{registry}/devices:1")
    assert image.notes == (f"2 device nodes of {image.name} left out: a sandbox has its own /dev",)


@pytest.mark.usefixtures("many_users")
async def test_owners_modes_times_and_names_are_kept(provider: LocalProvider, registry: str) -> None:
    odd = b"line\nbreak \xff \xc3\xa9".decode("utf-8", "surrogateescape")
    long = "n" * 200 + "/" + "m" * 200
    data = tar(
        member("closed", mode=0o500, uid=5, gid=6, mtime=1000),
        member("closed/su", b"s", mode=0o6755, uid=0, gid=42, mtime=2000),
        member(odd, b"o", uid=65534, mtime=3000),
        member(long, b"l", mtime=-5),
        link("soft", "nowhere"),
        member("never", b"", pax_headers={"mtime": "inf"}),
    )
    found = await applied(provider, registry, data)
    told = {name: (i.mode, i.uid, i.gid, i.mtime) for name, i in found.items() if i.isdir() or i.isreg()}
    assert told["closed"] == (0o500, 5, 6, 1000)
    assert told["closed/su"] == (0o6755, 0, 42, 2000)
    assert told[odd][1:] == (65534, 0, 3000)
    assert told[long][3] == -5
    assert told["never"][3] == 0
    assert found["soft"].linkname == "nowhere"


async def test_attributes_are_kept_where_they_may_be_set(provider: LocalProvider, registry: str) -> None:
    headers = {"SCHILY.xattr.user.note": "kept", "SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.trusted.x": "y"}
    name = f"{registry}/attributes:1"
    await publish(name, made(tar(member("file", b"", pax_headers=headers))))
    await pull(provider, name)
    box = provider.store.find("image", name)
    assert box is not None
    paths = [provider.store.home / "disks" / disk / "u" / "file" for disk in box.stack]
    (path,) = [path for path in paths if path.exists()]
    kept = {key: os.getxattr(path, key) for key in os.listxattr(path)}
    assert kept.pop("user.note") == b"kept"
    assert not [key for key in kept if key.startswith(("user.overlay.opaque", "trusted.x"))]
