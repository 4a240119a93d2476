"""A home on each kind of file system: forks share blocks where it can, bounds are kept, and nothing is left."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.sandbox import Limits, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.examine import file_system_of
from forkyard.values import MIB
from tests.support.leftovers import NOTHING, mounts_of, processes_of, stray_directories

MAKE = {"xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"], "btrfs": ["mkfs.btrfs", "-q"]}
SIZE = 1024 * MIB  # of which a file takes what is written to it

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.getuid() != 0, reason="mounts file systems")]


def make(kind: str, at: Path, image: Path) -> None:
    """Mount an empty file system of this kind, or skip with what there is none for."""
    if kind == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", at], check=True)
        return
    if not shutil.which(MAKE[kind][0]):
        pytest.skip(f"{MAKE[kind][0]} is not installed (apt-get install xfsprogs btrfs-progs)")
    image.touch()
    os.truncate(image, SIZE)
    subprocess.run([*MAKE[kind], image], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(["mount", "-o", "loop", image, at], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{kind} cannot be mounted from a file here: {done.stderr.strip()}")


@pytest.fixture(params=["xfs", "btrfs", "tmpfs"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Iterator[Path]:
    """A home alone on a file system of this kind."""
    at = tmp_path / "at"
    at.mkdir()
    make(kind, at, tmp_path / "image")
    try:
        yield at / "home"
    finally:
        subprocess.run(["umount", at], check=True)


def used(provider: LocalProvider) -> int:
    """The bytes that the file system has given away, once everything is written."""
    provider.store.settle()
    found = os.statvfs(provider.yard.home)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


async def test_a_home_lives_on_it_from_the_first_sandbox_to_the_last_sweep(kind: str, place: Path) -> None:
    assert file_system_of(place.parent) == kind
    async with LocalProvider(place) as provider:
        said = {finding.name: finding for finding in await provider.findings()}
        assert said["FORKYARD_HOME"].detail == f"{place} on {kind}"
        assert said["reflink"].ok == (kind != "tmpfs")

        template = await provider.create(SandboxSpec(name="template"))
        assert (await template.run("mkdir /work; echo one > /work/file; rm /etc/shells; echo x > /usr/share/mine")).ok
        await template.stop()
        fork = await template.fork()
        seen = await fork.run("cat /work/file /usr/share/mine; test -e /etc/shells || echo removed")
        assert seen.stdout == "one\nx\nremoved\n"
        assert (await fork.run("echo two > /work/file; mv /work /moved; ln /moved/file /moved/link")).ok
        told = {(change.kind, change.path) for change in await fork.changes()}
        assert {("deleted", "/work"), ("added", "/moved/file"), ("added", "/moved/link")} <= told
        deep = await fork.fork()
        assert (await deep.run("stat -c %h /moved/link; cat /moved/link")).stdout == "2\ntwo\n"
        with tarfile.open(fileobj=io.BytesIO(await deep.pull("/moved"))) as archive:
            assert {"file", "link"} <= {name.rpartition("/")[2] for name in archive.getnames()}
        await template.start()
        assert await template.read("/work/file") == b"one\n"
        for box in (deep, fork, template):
            await box.close()
        assert await provider.sweep() == []
        engine = provider.store.engine
    assert stray_directories(place) == NOTHING
    assert (mounts_of(place), processes_of(place, engine)) == ([], [])


async def test_a_fork_of_a_running_sandbox_copies_no_data_where_blocks_can_be_shared(kind: str, place: Path) -> None:
    async with LocalProvider(place) as provider:
        source = await provider.create(SandboxSpec())
        assert (await source.run("head -c 100M /dev/urandom > /big; sha256sum /big > /sum")).ok
        before = used(provider)
        fork = await source.fork()
        copied = used(provider) - before
        assert copied > 90 * MIB if kind == "tmpfs" else copied < 2 * MIB
        change = "printf %s | dd of=/big conv=notrunc bs=1 seek=50000000 status=none"
        assert (await fork.run(change % "fork")).ok
        assert not (await fork.run("sha256sum -c --status /sum")).ok
        assert (await source.run("sha256sum -c --status /sum")).ok
        assert (await source.run(change % "mine")).ok
        theirs = [await box.run("tail -c +50000001 /big | head -c 4") for box in (source, fork)]
        assert [said.stdout for said in theirs] == ["mine", "fork"]
        await source.close()
        assert (await fork.run("wc -c < /big")).stdout == "104857600\n"
        await fork.close()
    assert stray_directories(place) == NOTHING


@pytest.mark.parametrize("kind", ["xfs"])
async def test_a_bound_of_the_disk_counts_what_is_written_and_not_what_is_set_aside(place: Path) -> None:
    grows = "exec 3>/usr/share/big; for n in 1 2 3 4 5 6 7 8; do head -c 10M /dev/zero >&3; sleep 0.1; done; echo whole"
    async with LocalProvider(place) as provider:
        sandbox = await provider.create(SandboxSpec(limits=Limits(disk_mb=100)))
        result = await sandbox.run(grows, timeout=60)
        assert (result.ended_by, result.stdout) == (None, "whole\n")
        result = await sandbox.run("head -c 300M /dev/zero > /srv/more; sleep 30", timeout=60)
        assert result.ended_by == "disk"
        await sandbox.close()


@pytest.mark.parametrize("kind", ["xfs"])
async def test_a_removed_file_on_another_file_system_than_the_machines_usr_is_counted(place: Path) -> None:
    async with LocalProvider(place) as provider:
        sandbox = await provider.create(SandboxSpec(limits=Limits(disk_mb=20)))
        hides = "exec 3>/usr/share/hidden; rm /usr/share/hidden; head -c 60M /dev/zero >&3; sleep 30"
        assert (await sandbox.run(hides, timeout=60)).ended_by == "disk"
        await sandbox.close()


@pytest.mark.parametrize("kind", ["xfs"])
async def test_room_beyond_the_end_of_a_file_is_not_free(place: Path) -> None:
    async with LocalProvider(place) as provider:
        sandbox = await provider.create(SandboxSpec(limits=Limits(disk_mb=20)))
        takes = "echo x > /srv/f; fallocate --keep-size --length 60M /srv/f && sleep 30"
        assert (await sandbox.run(takes, timeout=60)).ended_by == "disk"
        await sandbox.close()
