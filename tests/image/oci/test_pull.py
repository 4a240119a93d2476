from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from forkyard.errors import ConfigError
from forkyard.image import ImageSourceError, ensure_image, pull, push, ways_in
from forkyard.image.oci.documents import OCI_INDEX, OCI_MANIFEST, architecture, digest_of
from forkyard.image.oci.install import LAYER_PREFIX
from forkyard.image.oci.reference import parse_reference
from forkyard.image.oci.registry import open_registry
from forkyard.sandbox import ImageConfig, Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from tests.image.oci.conftest import PASSWORD, USER
from tests.image.oci.parts import cut_line, link, listing, made, member, port_of_ours, publish, tar

LOWER = tar(
    member("etc"),
    member("etc/motd", b"hello"),
    member("opt/old/deep/file", b"x"),
    member("opt/kept", b"k"),
    member("full/a", b"a"),
    member("full/sub/b", b"b"),
    member("was-a-link-target"),
    link("was-a-link", "was-a-link-target"),
    member("was-a-directory/with/content", b"c"),
)
UPPER = tar(
    member("full/new", b"n"),
    member("full/.wh..wh..opq", b""),
    member("opt/.wh.old", b""),
    member("opt/.wh.never-there", b""),
    member("no/such/.wh.place", b""),
    member("was-a-link", mode=0o711),
    member("was-a-link/file", b"f"),
    member("was-a-directory", b"now a file"),
    link("etc/again", "etc/motd", tarfile.LNKTYPE),
)


async def started(provider: LocalProvider, image: str) -> Sandbox:
    return await provider.create(SandboxSpec(image=image))


def blobs_left() -> list[str]:
    directory = Path(os.environ["FORKYARD_HOME"]) / "blobs"
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


async def test_layers_are_applied_over_each_other(provider: LocalProvider, registry: str) -> None:
    config = {"Env": ["A=1", "B=x=y"], "WorkingDir": "/made/for/it", "User": "7", "Entrypoint": ["/e"], "Cmd": ["c"]}
    name = f"{registry}/team/image:1"
    await publish(name, made(LOWER, UPPER, config=config))
    image = await pull(provider, name)
    wanted = ImageConfig({"A": "1", "B": "x=y"}, "/made/for/it", "7", ("/e",), ("c",))
    assert (image.name, image.config, image.notes, image.applied) == (name, wanted, (), 2)
    sandbox = await started(provider, name)
    found = await listing(sandbox)
    assert sorted(found) == [
        "etc", "etc/again", "etc/motd", "full", "full/new", "made", "made/for", "made/for/it", "opt", "opt/kept",
        "was-a-directory", "was-a-link", "was-a-link-target", "was-a-link/file",
    ]  # fmt: skip
    assert found["was-a-link"].mode == 0o711
    assert await sandbox.read("/was-a-directory") == b"now a file"
    assert await sandbox.read("/etc/again") == b"hello"
    await sandbox.close()
    assert blobs_left() == []
    assert await provider.sandboxes() == []


async def test_what_is_here_is_not_asked_for_again(provider: LocalProvider, registry: str) -> None:
    name = f"{registry}/cached:1"
    await publish(name, made(LOWER))
    async with cut_line(registry) as line:
        mine = f"{line.address}/cached:1"
        await pull(provider, mine)
        asked = len(line.requests)
        assert (await pull(provider, mine)).applied == 0
        assert (await ensure_image(provider, mine)).name == mine
        assert len(line.requests) == asked
        await publish(name, made(tar(member("other", b""))))
        assert (await pull(provider, mine, refresh=True)).applied == 1
    sandbox = await started(provider, mine)
    assert list(await listing(sandbox)) == ["other"]
    await sandbox.close()


async def test_layers_may_be_packed_with_zstd(provider: LocalProvider, registry: str) -> None:
    def frames(data: bytes) -> bytes:  # several, as parallel packers write them
        return b"".join(zstandard.compress(data[start : start + 4096]) for start in range(0, len(data), 4096))

    name = f"{registry}/zstd:1"
    image = made(LOWER, UPPER, pack=frames)
    image.layers = [replace(layer, media_type="application/vnd.oci.image.layer.v1.tar+zstd") for layer in image.layers]
    await publish(name, image)
    assert (await pull(provider, name)).applied == 2
    sandbox = await started(provider, name)
    assert await sandbox.read("/etc/again") == b"hello"
    await sandbox.close()


async def test_layers_are_shared_and_go_when_nobody_needs_them(provider: LocalProvider, registry: str) -> None:
    one, two = f"{registry}/share:one", f"{registry}/share:two"
    await publish(one, made(LOWER, tar(member("one", b"1"))))
    await publish(two, made(LOWER, tar(member("two", b"2"))))
    assert (await pull(provider, one)).applied == 2
    assert (await pull(provider, two)).applied == 1
    layers = [image.name for image in await provider.images() if image.name.startswith(LAYER_PREFIX)]
    assert len(layers) == 3
    await provider.remove_image(one)
    assert len(await provider.prune_images(LAYER_PREFIX)) == 1
    await provider.remove_image(two)
    assert len(await provider.prune_images(LAYER_PREFIX)) == 2
    assert await provider.images() == []
    assert provider.store.orphan_disks() == []


async def test_a_layer_stays_as_long_as_a_sandbox_stands_on_it(provider: LocalProvider, registry: str) -> None:
    name = f"{registry}/held:1"
    await publish(name, made(LOWER))
    await pull(provider, name)
    sandbox = await started(provider, name)
    await provider.remove_image(name)
    assert await provider.prune_images(LAYER_PREFIX) == []
    assert await sandbox.read("/etc/motd") == b"hello"
    await sandbox.close()
    assert len(await provider.prune_images(LAYER_PREFIX)) == 1


async def test_pulls_at_the_same_time_are_one(provider: LocalProvider, registry: str) -> None:
    name = f"{registry}/at-once:1"
    await publish(name, made(LOWER, UPPER))
    pulled = await asyncio.gather(*(pull(provider, name) for _ in range(5)))
    assert sorted(image.applied for image in pulled) == [0, 0, 0, 0, 2]


async def test_this_machines_platform_is_chosen(provider: LocalProvider, registry: str) -> None:
    ours, other = made(tar(member("ours", b""))), made(tar(member("other", b"")), architecture="other")
    entries = []
    for image, name in ((other, "other"), (ours, architecture())):
        where = f"{registry}/multi@{digest_of(image.manifest)}"
        await publish(where, image)
        entry = {"mediaType": OCI_MANIFEST, "digest": digest_of(image.manifest), "size": len(image.manifest)}
        entries.append({**entry, "platform": {"os": "linux", "architecture": name}})
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
    async with await open_registry(parse_reference(f"{registry}/multi")) as client:
        await client.put_manifest("all", json.dumps(index).encode(), OCI_INDEX)
        index["manifests"] = entries[:1]
        await client.put_manifest("none", json.dumps(index).encode(), OCI_INDEX)
    await pull(provider, f"{registry}/multi:all")
    sandbox = await started(provider, f"{registry}/multi:all")
    assert list(await listing(sandbox)) == ["ours"]
    await sandbox.close()
    with pytest.raises(ImageSourceError, match=f"nothing for linux/{architecture()}: it lists linux/other"):
        await pull(provider, f"{registry}/multi:none")
    with pytest.raises(ImageSourceError, match="is an image for linux/other"):
        await pull(provider, f"{registry}/multi@{digest_of(other.manifest)}")


async def test_a_digest_names_one_image_for_ever(provider: LocalProvider, registry: str) -> None:
    digest = await publish(f"{registry}/pinned:1", made(LOWER))
    await publish(f"{registry}/pinned:1", made(UPPER))
    image = await pull(provider, f"{registry}/pinned:1@{digest}")
    sandbox = await started(provider, image.name)
    assert await sandbox.read("/etc/motd") == b"hello"
    await sandbox.close()


async def test_a_cut_download_goes_on_where_it_was(provider: LocalProvider, registry: str) -> None:
    content = random.Random(1).randbytes(300_000)
    await publish(f"{registry}/cut:1", made(tar(member("big", content))))
    async with cut_line(registry, 1 << 60, 100_000, 50_000) as line:  # the first blob is the configuration
        image = await pull(provider, f"{line.address}/cut:1")
        ranges = [request for request in line.requests if b"range: bytes=" in request.lower()]
    assert len(ranges) == 2
    sandbox = await started(provider, image.name)
    assert await sandbox.read("/big") == content
    await sandbox.close()
    assert blobs_left() == []


async def test_a_download_given_up_is_gone_on_with_by_the_next(provider: LocalProvider, registry: str) -> None:
    content = random.Random(2).randbytes(300_000)
    image = made(tar(member("big", content)))
    await publish(f"{registry}/later:1", image)
    async with cut_line(registry, 1 << 60, 100_000, for_good=True) as line:
        with pytest.raises(ImageSourceError, match="cannot be reached"):
            await pull(provider, f"{line.address}/later:1")
    assert blobs_left() == [image.layers[0].digest.replace(":", "-")]
    async with cut_line(registry) as line:
        await pull(provider, f"{line.address}/later:1")
        assert sum(b"range: bytes=" in request.lower() for request in line.requests) == 1
    assert blobs_left() == []


async def test_a_wrong_beginning_left_by_another_is_not_kept(provider: LocalProvider, registry: str) -> None:
    image = made(LOWER)
    await publish(f"{registry}/wrong-start:1", image)
    directory = Path(os.environ["FORKYARD_HOME"]) / "blobs"
    directory.mkdir()
    (directory / image.layers[0].digest.replace(":", "-")).write_bytes(b"something else")
    await pull(provider, f"{registry}/wrong-start:1")
    assert blobs_left() == []


async def test_lies_about_a_layer_are_refused(provider: LocalProvider, registry: str) -> None:
    lying = made(LOWER, diff_ids=[digest_of(UPPER)])
    await publish(f"{registry}/lie:unpacked", lying)
    with pytest.raises(ImageSourceError, match="refused: unpacked it has the digest"):
        await pull(provider, f"{registry}/lie:unpacked")
    assert await provider.images() == []
    assert await provider.sandboxes() == []
    assert blobs_left() == []


async def test_other_bytes_than_the_digest_promises_are_refused(provider: LocalProvider) -> None:
    image = made(LOWER)
    answers = {f"/v2/lie/blobs/{digest}": data for digest, data in image.blobs.items()}
    answers["/v2/lie/manifests/1"] = image.manifest
    layer = f"/v2/lie/blobs/{image.layers[0].digest}"
    config = f"/v2/lie/blobs/{image.config.digest}"
    packed = answers[layer]
    for path, data, complaint in (
        (layer, packed[:-1] + b"?", "gave bytes with the digest .*: refused"),
        (layer, packed + b"more", "gave more than .* bytes .*: refused"),
        (config, b"{}", "gave other bytes than those of"),
        (f"/v2/lie/manifests/{digest_of(b'other')}", image.manifest, "gave a manifest that is not"),
    ):
        async with served({**answers, path: data}) as address:
            wanted = path.rpartition("/")[2] if "/manifests/" in path else ""
            with pytest.raises(ImageSourceError, match=complaint):
                await pull(provider, f"{address}/lie@{wanted}" if wanted else f"{address}/lie:1")
    assert await provider.images() == []
    assert blobs_left() == []


async def test_a_registry_that_is_busy_is_asked_again(provider: LocalProvider) -> None:
    image = made(LOWER)
    answers = {f"/v2/busy/blobs/{digest}": data for digest, data in image.blobs.items()}
    answers["/v2/busy/manifests/1"] = image.manifest
    async with served(answers, busy=[429, 503]) as address:
        assert (await pull(provider, f"{address}/busy:1")).applied == 1


async def test_a_login_of_dockers_configuration_is_used_and_never_shown(
    provider: LocalProvider, closed_registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{closed_registry}/secret:1"
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(ImageSourceError, match="refused .*: it knows no such image or wants a login: `docker login"):
        await pull(provider, name)
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {closed_registry: {"auth": auth}}}))
    await publish(name, made(LOWER))
    assert (await pull(provider, name)).applied == 1
    wrong = base64.b64encode(f"{USER}:wrong-{PASSWORD}".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {closed_registry: {"auth": wrong}}}))
    with pytest.raises(ImageSourceError, match="the login in docker's configuration may not do that") as caught:
        await pull(provider, name, refresh=True)
    assert PASSWORD not in str(caught.value) and wrong not in str(caught.value)


async def test_a_mirror_stands_in_for_a_registry(
    provider: LocalProvider, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(f"{registry}/library/tiny:latest", made(LOWER))
    monkeypatch.setenv("FORKYARD_MIRRORS", f"docker.io=http://{registry}")
    image = await ensure_image(provider, "tiny")
    assert image.name == "tiny:latest"
    assert (await ensure_image(provider, "docker.io/library/tiny")).created == image.created


async def test_an_image_that_cannot_be_had_is_told_with_the_mends(
    provider: LocalProvider, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with port_of_ours() as port:
        monkeypatch.setenv("FORKYARD_MIRRORS", f"docker.io=http://127.0.0.1:{port}")
        with pytest.raises(ConfigError) as caught:
            await ensure_image(provider, "debian:12")
    said = str(caught.value)
    assert said.startswith("there is no image 'debian:12'")
    for part in ("docker.io", "cannot be reached", "image import", "image bootstrap", "--base host"):
        assert part in said
    with pytest.raises(ConfigError, match=f"{registry} has no {registry}/none:1"):
        await ensure_image(provider, f"{registry}/none:1")
    with pytest.raises(ConfigError, match="is no reference"):
        await ensure_image(provider, "no reference")


@pytest.mark.parametrize(
    ("name", "made_of_packages"),
    [
        ("debian:12", "debian:12"),
        ("docker.io/library/debian:trixie-slim", "debian:trixie-slim"),
        ("debian", None),
        ("python:3.13-slim", None),
        ("ghcr.io/team/debian:12", None),
        ("No Reference", None),
    ],
)
def test_only_an_image_that_can_be_made_of_packages_is_said_to_be(name: str, made_of_packages: str | None) -> None:
    said = ways_in(name)
    assert f"`forkyard image import ARCHIVE {name}`" in said
    assert said.partition("image bootstrap ")[2].strip("`") == (made_of_packages or "")


async def test_a_missing_image_is_told_with_the_registry_it_comes_from(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with port_of_ours() as port:
        monkeypatch.setenv("FORKYARD_MIRRORS", f"docker.io=http://127.0.0.1:{port}")
        with pytest.raises(ConfigError) as caught:
            await ensure_image(provider, "python:3.13-slim")
    said = str(caught.value)
    for part in (
        "It would come from docker.io",
        "`forkyard image pull python:3.13-slim`",
        "FORKYARD_MIRRORS",
        "`--base NAME`",
    ):
        assert part in said
    assert "bootstrap" not in said


async def test_pushed_and_pulled_it_is_the_same(provider: LocalProvider, registry: str) -> None:
    name, copy = f"{registry}/there:1", f"{registry}/back:1"
    odd = b"odd \xff\n name".decode("utf-8", "surrogateescape")
    files = tar(member("bin/su", b"s", mode=0o4755), member(odd, b"o", mtime=1234), link("soft", "/bin/su"))
    await publish(name, made(files, config={"Env": ["X=1"], "Cmd": ["sh"]}))
    before = await pull(provider, name)
    digest = await push(provider, name, copy)
    assert await push(provider, name, copy) == digest
    after = await pull(provider, f"{registry}/back:1@{digest}")
    assert after.config == before.config
    one, two = [await started(provider, image.name) for image in (before, after)]
    seen = [
        {name: (i.type, i.mode, i.uid, i.mtime, i.linkname) for name, i in (await listing(box)).items()}
        for box in (one, two)
    ]
    assert seen[0] == seen[1]
    assert seen[0][odd][3] == 1234 and seen[0]["bin/su"][1] == 0o4755
    await one.close()
    await two.close()


async def test_hard_links_and_extended_attributes_are_pushed_along(provider: LocalProvider, registry: str) -> None:
    note = {"SCHILY.xattr.user.note": "of \N{SNOWMAN}\0=", "SCHILY.xattr.user.overlay.opaque": "y"}
    name, copy = f"{registry}/exact:1", f"{registry}/exact:2"
    await publish(name, made(tar(
        member("usr", pax_headers=note),
        member("usr/bin/serve", b"s", mode=0o755),
        member("usr/odd \udcff", b"o", pax_headers=note),
        link("usr/same", "usr/bin/serve", tarfile.LNKTYPE),
    )))  # fmt: skip
    await pull(provider, name)
    await push(provider, name, copy)
    await pull(provider, copy)
    for image in (name, copy):
        sandbox = await started(provider, image)
        found = await listing(sandbox)
        assert found["usr"].pax_headers == {"SCHILY.xattr.user.note": note["SCHILY.xattr.user.note"]}
        assert found["usr/odd \udcff"].pax_headers["SCHILY.xattr.user.note"] == note["SCHILY.xattr.user.note"]
        assert found["usr/bin/serve"].pax_headers == {}
        assert (found["usr/same"].type, found["usr/same"].linkname) == (tarfile.LNKTYPE, "usr/bin/serve")
        await sandbox.close()


async def test_a_push_says_what_is_wrong(provider: LocalProvider, registry: str) -> None:
    with pytest.raises(ConfigError, match="there is no image"):
        await push(provider, f"{registry}/nothing:1")
    with pytest.raises(ConfigError, match="pushed under a tag"):
        await push(provider, "scratch", f"{registry}/a@{digest_of(b'')}")


@asynccontextmanager
async def served(answers: dict[str, bytes], busy: Sequence[int] = ()) -> AsyncIterator[str]:
    """A registry that gives what it is told to, after the statuses of `busy`."""
    left = list(busy)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        status, data = (left.pop(0), b"") if left else (200 if path in answers else 404, answers.get(path, b""))
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(data)) + data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
