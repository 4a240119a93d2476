"""What the contract does not ask: what is seen inside and in the Engine, what is left, images of Docker's own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.dockerd import Docker, started_docker
from forkyard.errors import ConfigError, ProviderLost, SandboxError
from forkyard.image import build
from forkyard.sandbox import Feature, ImageConfig, SandboxSpec
from forkyard.sandbox.docker import DockerProvider
from forkyard.sandbox.registry import make_provider
from tests.docker.parts import BASE, containers, killed_after, nameless_images

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEFT_BEHIND = """
import asyncio, pathlib, sys
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.docker import DockerProvider

async def main():
    provider = DockerProvider(pathlib.Path(sys.argv[1]), sys.argv[2])
    kept = await provider.create(SandboxSpec("base:1", name="put-aside"))
    await kept.stop()
    running = await provider.create(SandboxSpec("base:1", name="running"))
    source = await provider.create(SandboxSpec("base:1"))
    await source.stop()
    fork = await source.fork()
    for box in (running, source, fork):
        print(box.id)
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_without_an_engine_nothing_begins_and_it_is_said_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"apt-get install docker\.io"):
        make_provider("docker", {"home": tmp_path, "host": f"unix://{tmp_path}/none.sock"})
    with pytest.raises(ConfigError, match="on this machine"):
        make_provider("docker", {"home": tmp_path, "host": "tcp://127.0.0.1:2375"})


async def test_it_promises_walls_forks_and_images(docker: DockerProvider) -> None:
    assert {Feature.ISOLATED, Feature.NO_NETWORK, Feature.LISTEN, Feature.FORK, Feature.IMAGES} <= docker.features
    assert not {Feature.CHANGES, Feature.LIMIT_DISK} & docker.features


async def test_nothing_of_ours_is_seen_inside(docker: DockerProvider, home: Path) -> None:
    box = await docker.create(SandboxSpec(BASE))
    mounts = (await box.run("cat /proc/mounts; ls -A /; cat /proc/1/environ")).stdout
    assert ".forkyard" not in mounts and str(home / "docker/run") not in mounts
    assert (await box.run("cat /etc/hosts")).stdout.startswith("127.0.0.1\tlocalhost")
    status = (await box.run("cat /proc/self/status")).stdout
    assert "CapBnd:\t00000000200405fb" in status and "NoNewPrivs:\t1" in status
    for refused in ("mount -t tmpfs none /tmp", "umount /proc/sys", "unshare -U true", "cat /proc/1/mem"):
        assert not (await box.run(refused)).ok, refused
    await box.close()


async def test_files_that_docker_mounts_can_be_replaced_and_are_forked(docker: DockerProvider) -> None:
    box = await docker.create(SandboxSpec(BASE))
    await box.write("/etc/hosts", b"127.0.0.1 localhost\n192.0.2.7 seven\n")
    await box.write("/etc/resolv.conf", b"nameserver 192.0.2.1\n")
    assert (await box.run("ls -A /")).stdout.split()[:2] == [".dockerenv", "bin"]
    fork = await box.fork()
    assert (await box.run("ls -A /")).stdout.split()[:2] == [".dockerenv", "bin"]
    await box.run("rm -rf /.forkyard; ln -s /etc /.forkyard; echo 192.0.2.8 eight >> /etc/hosts")
    await box.stop()
    second = await box.fork()
    for each, word in ((fork, b"seven\n"), (second, b"eight\n")):
        assert (await each.read("/etc/hosts")).endswith(word)
        assert await each.read("/etc/resolv.conf") == b"nameserver 192.0.2.1\n"
        assert (await each.run("ls -A /")).stdout.split()[:2] == [".dockerenv", "bin"]
        await each.close()
    await box.close()


async def test_what_is_in_a_volume_of_an_image_is_forked(
    docker: DockerProvider, engine: Docker, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN mkdir /data && echo of-image > /data/file\nVOLUME /data\n")
    client = ["docker", "-H", engine.address, "build", "-q", "--network=none", "-t", "with-volume", str(tmp_path)]
    subprocess.run(client, check=True, capture_output=True, env={"DOCKER_BUILDKIT": "0", "PATH": "/usr/bin:/bin"})
    image = await docker.image("with-volume")
    assert image is not None and image.config.volumes == ("/data",)
    box = await docker.create(SandboxSpec("with-volume"))
    await box.run("echo written >> /data/file")
    fork = await box.fork()
    assert await fork.read("/data/file") == b"of-image\nwritten\n"
    await fork.close()
    await box.close()
    await docker.remove_image("with-volume")
    assert json.loads(engine.call("GET", "/volumes"))["Volumes"] in (None, [])


async def test_an_image_of_ours_is_one_of_dockers(docker: DockerProvider, engine: Docker) -> None:
    box = await docker.create(SandboxSpec(BASE))
    await box.write("/said", b"hello")
    await box.stop()
    config = ImageConfig(env={"A": "1"}, workdir="/tmp", entrypoint=("cat",), cmd=("/said",), labels={"l": "m"})
    await docker.commit(box, "ours/said:2", config)
    await box.close()
    command = ["docker", "-H", engine.address, "run", "--rm", "--network=none", "ours/said:2"]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b"hello"
    found = await docker.image("ours/said:2")
    assert found is not None and found.config == config
    await docker.remove_image("ours/said:2")


async def test_any_name_can_be_an_images(docker: DockerProvider) -> None:
    box = await docker.create(SandboxSpec(BASE))
    await box.stop()
    names = ("Mixed/Case:1", "layer:" + "ab" * 32, "with blank", "a" * 250, "deadbeefdead", "plain")
    for name in names:
        await docker.commit(box, name, ImageConfig(env={"N": name}))
    await box.close()
    assert set(names) <= {image.name for image in await docker.images()}
    for name in names:
        found = await docker.image(name)
        assert found is not None and found.config.env == {"N": name}
        await docker.remove_image(name)
        assert await docker.image(name) is None


async def test_images_that_something_stands_on_are_not_pruned(docker: DockerProvider) -> None:
    box = await docker.create(SandboxSpec(BASE))
    await box.stop()
    await docker.commit(box, "cache/one", ImageConfig())
    await docker.commit(box, "cache/two", ImageConfig())
    upper = await docker.create(SandboxSpec("cache/one"))
    await upper.stop()
    await docker.commit(upper, "cache/three", ImageConfig())
    user = await docker.create(SandboxSpec("cache/three"))
    assert await docker.prune_images("cache/") == ["cache/two"]
    for each in (user, upper, box):
        await each.close()
    assert sorted(await docker.prune_images("cache/")) == ["cache/one", "cache/three"]


async def test_a_dockerfile_is_built_over_it(docker: DockerProvider, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(
        f"FROM {BASE}\nENV A=1\nWORKDIR /app\nCOPY f .\nRUN cat f > g && echo $A >> g && id -u >> g\nUSER worker\n"
    )
    (tmp_path / "f").write_text("copied\n")
    built = await build(docker, tmp_path)
    box = await docker.create(SandboxSpec(built.name))
    assert (await box.run("cat g; pwd; id -un; echo $A")).stdout == "copied\n1\n0\n/app\nworker\n1\n"
    await box.close()
    again = await build(docker, tmp_path)
    assert again.name == built.name


async def test_forks_leave_nothing_in_the_engine(docker: DockerProvider, engine: Docker) -> None:
    box = await docker.create(SandboxSpec(BASE))
    await box.stop()
    one, two = await box.fork(), await box.fork()
    assert len(nameless_images(engine)) == 1  # both stand on the same
    await box.close()
    await one.stop()
    grandchild = await one.fork()
    for each in (one, two, grandchild):
        await each.close()
    assert (containers(engine), nameless_images(engine)) == ([], [])


async def test_a_sweep_removes_what_a_killed_owner_left(engine: Docker, tmp_path: Path) -> None:
    ids = killed_after(LEFT_BEHIND, str(tmp_path), engine.address)
    async with DockerProvider(tmp_path, engine.address) as provider:
        removed = await provider.sweep()
        assert len([line for line in removed if "container" in line]) == 3, removed
        assert not set(ids) & {container["Id"] for container in containers(engine)}
        assert nameless_images(engine) == []
        kept = await provider.open("put-aside")
        await kept.start()
        assert (await kept.run("echo kept")).stdout == "kept\n"
        await kept.close()
        assert (await provider.sweep(), containers(engine)) == ([], [])


async def test_another_home_is_left_alone(docker: DockerProvider, engine: Docker, tmp_path: Path) -> None:
    box = await docker.create(SandboxSpec(BASE, name="same"))
    async with DockerProvider(tmp_path, engine.address) as other:
        assert (await other.sweep(), await other.sandboxes()) == ([], [])
        namesake = await other.create(SandboxSpec(BASE, name="same"))
        await namesake.close()
    assert (await box.run("echo fine")).stdout == "fine\n"
    await box.close()


@pytest.mark.slow
async def test_an_engine_that_is_killed_is_no_fault_of_the_sandboxes(tmp_path: Path, base_archive: Path) -> None:
    with started_docker(tmp_path) as daemon:
        if daemon is None:
            pytest.skip("no Docker is to be had here (apt-get install docker.io)")
        client = ["docker", "-H", f"unix://{daemon.socket}", "import", str(base_archive), BASE]
        subprocess.run(client, check=True, capture_output=True)
        provider = DockerProvider(tmp_path / "home", f"unix://{daemon.socket}")
        box = await provider.create(SandboxSpec(BASE))
        daemon.kill()
        with pytest.raises(ProviderLost, match="does not answer"):
            await provider.create(SandboxSpec(BASE))
        with pytest.raises(SandboxError):
            await box.close()
        await provider.close()
        with started_docker(tmp_path) as again:
            assert again is not None
            async with DockerProvider(tmp_path / "home", f"unix://{again.socket}") as later:
                assert len(await later.sweep()) == 1
                assert await later.sandboxes() == []


async def test_a_container_that_comes_up_without_its_disk_is_started_again(
    docker: DockerProvider, engine: Docker
) -> None:
    sandbox = await docker.create(SandboxSpec(BASE))
    await sandbox.write("/kept", b"kept")
    await sandbox.stop()
    driver = json.loads(engine.call("GET", f"/containers/{sandbox.id}/json"))["GraphDriver"]
    if driver["Name"] != "overlay2" or not Path(driver["Data"]["MergedDir"]).parent.is_dir():
        pytest.skip("this Engine has its containers' disks elsewhere")
    taking = asyncio.create_task(asyncio.to_thread(_taken_away_once, driver["Data"]["MergedDir"]))
    await asyncio.gather(sandbox.start(), taking)
    assert await sandbox.read("/kept") == b"kept"
    await sandbox.close()


def _taken_away_once(place: str) -> None:
    """Unmount what the Engine mounts for a container before its processes get to it."""
    while not os.path.ismount(place):
        time.sleep(0.002)
    subprocess.run(["umount", "--lazy", place], check=True)
