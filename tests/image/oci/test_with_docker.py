"""What Docker makes of the same images: it loads what we export, and pulls the same files we pull."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.dockerd import Docker, running_docker
from forkyard.image import export, import_archive, pull
from forkyard.sandbox import ImageConfig, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from tests.image.oci.parts import link, listing, made, member, publish, tar

pytestmark = pytest.mark.slow

LAYERS = (
    tar(
        member("bin", mode=0o755),
        member("bin/su", b"s", mode=0o4755, mtime=1000),
        member("d/old/deep", b"x"),
        member("d/kept", b"k", uid=7, gid=8),
        member("swap/inside", b"i"),
        link("to", "d"),
        # In the same layer, since Docker cannot link to what is in another; with its mode, which Docker sets again.
        member("hard", type=tarfile.LNKTYPE, linkname="bin/su", mode=0o4755),
    ),
    tar(
        member("d/.wh.old", b""),
        member("d/new", b"n"),
        member("swap", b"a file now"),
        member("to", mode=0o700),
        member("to/own", b"o"),
    ),
    tar(member("d/.wh..wh..opq", b""), member("d/last", b"l"), member("é" * 60 + "/x", b"u")),
)


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    archive = tmp_path_factory.mktemp("docker") / "empty.tar"
    archive.write_bytes(tar(member("x", b"")))
    with running_docker(archive, "empty") as found:
        if found is None:
            pytest.skip("no Docker is to be had here (apt-get install docker.io)")
        yield found


def seen(members: dict[str, tarfile.TarInfo]) -> dict[str, tuple[Any, ...]]:
    """What has to be equal; of a hard link the other name is a matter of order."""
    return {
        name.rstrip("/"): ("l", i.linkname) if i.issym() else (i.isdir(), i.mode, i.uid, i.gid)
        for name, i in members.items()
    }


def of_docker(docker: Docker, image: str) -> dict[str, tarfile.TarInfo]:
    container = json.loads(docker.call("POST", "/containers/create", {"Image": image, "Cmd": ["x"]}))["Id"]
    try:
        with tarfile.open(fileobj=io.BytesIO(docker.call("GET", f"/containers/{container}/export"))) as archive:
            found = {info.name.rstrip("/"): info for info in archive}
    finally:
        docker.delete(container)
    own = ("dev", "proc", "sys", "etc", ".dockerenv")  # what Docker puts into every container
    found = {name: info for name, info in found.items() if name.split("/")[0] not in own}
    for info in found.values():
        info.mode &= 0o7777  # Docker writes the kind of a file there, too
    for info in found.values():
        if info.islnk():
            info.mode = found[info.linkname].mode
    return found


async def test_docker_pulls_the_same_files(provider: LocalProvider, registry: str, docker: Docker) -> None:
    name = f"{registry}/compared:1"
    await publish(name, made(*LAYERS, config={"Cmd": ["x"]}))
    await pull(provider, name)
    sandbox = await provider.create(SandboxSpec(image=name))
    ours = seen(await listing(sandbox))
    await sandbox.close()
    said = docker.call("POST", f"/images/create?fromImage={registry}/compared&tag=1")
    assert b"errorDetail" not in said, said
    assert ours == seen(of_docker(docker, name))


async def test_docker_loads_what_we_export(provider: LocalProvider, docker: Docker, tmp_path: Path) -> None:
    (tmp_path / "root.tar").write_bytes(LAYERS[0])
    await import_archive(provider, tmp_path / "root.tar", "ours:1", ImageConfig({"A": "1"}, cmd=("x",)))
    await export(provider, "ours:1", tmp_path / "saved.tar")
    sandbox = await provider.create(SandboxSpec(image="ours:1"))
    ours = seen(await listing(sandbox))
    await sandbox.close()
    command = ["docker", "-H", f"unix://{docker._path}", "load", "-i", str(tmp_path / "saved.tar")]
    subprocess.run(command, check=True, capture_output=True)
    assert ours == seen(of_docker(docker, "ours:1"))
