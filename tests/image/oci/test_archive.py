"""Images saved in files: theirs read, ours written."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard

from forkyard.errors import ConfigError
from forkyard.image import export, import_archive
from forkyard.image.oci.documents import OCI_INDEX, OCI_MANIFEST, digest_of
from forkyard.image.oci.flat import trees
from forkyard.sandbox import ImageConfig, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from tests.image.oci.parts import Made, link, listing, made, member, tar

PLAIN = ImageConfig()
LOWER = tar(member("etc/motd", b"hello"), member("gone", b""))
UPPER = tar(member("new", b"n"), member(".wh.gone", b""))
IMAGE = made(LOWER, UPPER, config={"Env": ["A=1"], "WorkingDir": "/srv", "User": "5"})


def files(contents: Mapping[str, bytes], *more: tuple[tarfile.TarInfo, bytes]) -> bytes:
    return tar(*(member(name, data) for name, data in contents.items()), *more)


def layout(image: Made, **names: Made) -> dict[str, bytes]:
    """An OCI layout of one image, or of several under names."""
    images = list(names.items()) or [("", image)]
    found = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
    entries = []
    for name, one in images:
        blobs = {**one.blobs, digest_of(one.manifest): one.manifest}
        found |= {f"blobs/{digest.replace(':', '/')}": data for digest, data in blobs.items()}
        entry = {"mediaType": OCI_MANIFEST, "digest": digest_of(one.manifest), "size": len(one.manifest)}
        entries.append({**entry, "annotations": {"org.opencontainers.image.ref.name": name}} if name else entry)
    found["index.json"] = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}).encode()
    return found


def saved(image: Made) -> dict[str, bytes]:
    """What an older `docker save` writes."""
    layers = [f"{layer.digest[7:]}/layer.tar" for layer in image.layers]
    config = f"{image.config.digest[7:]}.json"
    entry = {"Config": config, "RepoTags": ["it:1"], "Layers": layers}
    found = {"manifest.json": json.dumps([entry]).encode(), config: image.blobs[image.config.digest]}
    return found | {f"{layer.digest[7:]}/layer.tar": image.blobs[layer.digest] for layer in image.layers}


async def check(provider: LocalProvider, path: Path, data: bytes) -> None:
    path.write_bytes(data)
    image = await import_archive(provider, path, "it:1", PLAIN)
    assert image.config == ImageConfig({"A": "1"}, "/srv", "5")
    sandbox = await provider.create(SandboxSpec(image="it:1"))
    assert sorted(await listing(sandbox)) == ["etc", "etc/motd", "new", "srv"]
    await sandbox.close()


async def test_saved_images_of_every_kind_are_imported(provider: LocalProvider, tmp_path: Path) -> None:
    plain = made(LOWER, UPPER, config={"Env": ["A=1"], "WorkingDir": "/srv", "User": "5"}, pack=bytes)
    for data in (
        files(layout(IMAGE)),
        files(layout(plain)),
        files(saved(IMAGE)),
        files(saved(plain)),
        gzip.compress(files(saved(plain))),
        gzip.compress(files(layout(IMAGE))),
        bz2.compress(files(saved(IMAGE))),
        lzma.compress(files(layout(IMAGE))),
        zstandard.compress(files(layout(IMAGE))),
    ):
        await check(provider, tmp_path / "archive", data)


async def test_a_layer_that_occurs_twice_is_a_link_in_an_archive(provider: LocalProvider, tmp_path: Path) -> None:
    twice = made(LOWER, UPPER, LOWER, pack=bytes)
    contents = saved(twice)
    entry = json.loads(contents["manifest.json"])
    entry[0]["Layers"][2] = "second/layer.tar"
    contents["manifest.json"] = json.dumps(entry).encode()
    (tmp_path / "archive").write_bytes(
        files(contents, link("second/layer.tar", f"../{twice.layers[0].digest[7:]}/layer.tar"))
    )
    await import_archive(provider, tmp_path / "archive", "it", PLAIN)
    sandbox = await provider.create(SandboxSpec(image="it"))
    assert "gone" in await listing(sandbox)
    await sandbox.close()


async def test_what_is_said_at_the_import_replaces_what_the_image_says(provider: LocalProvider, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(files(layout(IMAGE)))
    image = await import_archive(provider, tmp_path / "archive", "it", ImageConfig({"B": "2"}, "/", "6"))
    assert image.config == ImageConfig({"A": "1", "B": "2"}, "/srv", "6")


async def test_of_several_images_the_one_of_that_name_is_taken(provider: LocalProvider, tmp_path: Path) -> None:
    other = made(tar(member("other", b"")))
    (tmp_path / "archive").write_bytes(files(layout(IMAGE, one=IMAGE, two=other)))
    await import_archive(provider, tmp_path / "archive", "two", PLAIN)
    sandbox = await provider.create(SandboxSpec(image="two"))
    assert list(await listing(sandbox)) == ["other"]
    await sandbox.close()
    with pytest.raises(ConfigError, match=r"holds several images: .* one of them \(one, two\)"):
        await import_archive(provider, tmp_path / "archive", "three", PLAIN)


def broken() -> list[tuple[str, bytes]]:
    """What is said of archives that are not whole, or lie."""
    blob = f"blobs/{IMAGE.layers[0].digest.replace(':', '/')}"
    config = f"blobs/{IMAGE.config.digest.replace(':', '/')}"
    manifest = f"blobs/{digest_of(IMAGE.manifest).replace(':', '/')}"
    whole, old = layout(IMAGE), saved(IMAGE)
    first = f"{IMAGE.layers[0].digest[7:]}/layer.tar"
    lacking = {name: data for name, data in whole.items() if name != blob}
    return [
        ("lacks the blob", files(lacking)),
        ("lacks the blob", files({**whole, blob: whole[blob][:-1]})),
        ("can be read|refused", files({**whole, blob: bytes(len(whole[blob]))})),
        ("other bytes than those of", files({**whole, config: b" " * len(whole[config])})),
        ("other bytes than those of", files({**whole, manifest: b" " * len(whole[manifest])})),
        ("no JSON object", files({**whole, "index.json": b"[]"})),
        ("nothing for linux", files({**whole, "index.json": b'{"manifests": []}'})),
        ("not as `docker save` writes", files({**old, "manifest.json": b"{}"})),
        ("not as `docker save` writes", files({**old, "manifest.json": b"[" * 100_000})),
        ("lacks a layer", files({**old, "manifest.json": old["manifest.json"].replace(b"layer.tar", b"../../etc")})),
        ("lacks .*passwd", files({**old, "manifest.json": b'[{"Config": "/etc/passwd", "Layers": []}]'})),
        ("lacks a layer", files({name: data for name, data in old.items() if name != first}, link(first, "layer.tar"))),
        ("can be read", gzip.compress(files(whole))[:-20]),
    ]


async def test_archives_that_are_not_whole_or_lie_are_refused(provider: LocalProvider, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    for complaint, data in broken():
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=complaint):
            await import_archive(provider, path, "it", PLAIN)
    assert await provider.images() == []
    assert await provider.sandboxes() == []


async def test_an_export_is_the_same_each_time_and_comes_back(provider: LocalProvider, tmp_path: Path) -> None:
    await check(provider, tmp_path / "archive", files(layout(IMAGE)))
    one, two = tmp_path / "one.tar", tmp_path / "two.tar"
    digest = await export(provider, "it:1", one)
    assert await export(provider, "it:1", two) == digest
    assert one.read_bytes() == two.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "one.tar", "two.tar"]
    with tarfile.open(one) as archive:
        content = archive.extractfile("manifest.json")
        assert content is not None
        assert json.load(content)[0]["RepoTags"] == ["it:1"]
    await provider.remove_image("it:1")
    await check(provider, one, one.read_bytes())


async def test_a_disk_larger_than_one_archive_is_exported_piece_by_piece(
    provider: LocalProvider, tmp_path: Path
) -> None:
    path = tmp_path / "root.tar"
    path.write_bytes(tar(*(member(f"a/b{n}/c/file", bytes(100)) for n in range(3)), member("a/top", b"t")))
    await import_archive(provider, path, "it", PLAIN)
    sandbox = await provider.create(SandboxSpec(image="it"))
    names = []
    async for prefix, archive in trees(sandbox, 25_000):
        with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
            names += [prefix + name for name in tree.getnames()]
    await sandbox.close()
    assert sorted(set(names) - {"dev", "proc", "sys"}) == sorted(
        ["a", "a/top", *(f"a/b{n}{rest}" for n in range(3) for rest in ("", "/c", "/c/file"))]
    )
    assert len(names) == len(set(names))


async def test_an_export_that_fails_leaves_no_file(provider: LocalProvider, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no image 'none'"):
        await export(provider, "none", tmp_path / "file")
    with pytest.raises(OSError, match="No such file"):
        await export(provider, "scratch", tmp_path / "missing" / "file")
    assert list(tmp_path.iterdir()) == []
