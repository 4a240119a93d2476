"""What mounts of directories of the host promise."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox.contract.promise import (
    PATIENCE,
    closing,
    expect,
    expect_equal,
    expect_raises,
    fresh,
    needs,
    sh,
    spec,
)
from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import Feature, Mount, SandboxSpec

TARGET = "/data/here"


@contextmanager
def _host_directory() -> Iterator[Path]:
    """A directory of the host with the file `old` in it."""
    path = Path(tempfile.mkdtemp(prefix="forkyard-contract-")).resolve()
    try:
        (path / "old").write_text("old\n")
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _mounted(source: Path, read_only: bool = False) -> SandboxSpec:
    return spec(mounts=(Mount(source, TARGET, read_only),))


@needs(Feature.MOUNTS)
async def check_a_mounted_directory_is_the_hosts(provider: Provider) -> None:
    """Root inside reads, writes and removes the host's files at the target, which is made; both see it at once."""
    with _host_directory() as source:
        (source / "private").write_text("private\n")
        (source / "private").chmod(0o600)
        async with fresh(provider, _mounted(source)) as box:
            expect_equal(await sh(box, f"cd {TARGET} && cat old private"), "old\nprivate\n", "files of the host")
            await sh(box, f"cd {TARGET} && echo more >> old && rm private && mkdir -p new/deep && echo 1 > new/deep/x")
            await box.write(f"{TARGET}/written", b"written")
            (source / "late").write_text("late\n")
            expect_equal(await sh(box, f"cat {TARGET}/late"), "late\n", "a file made on the host meanwhile")
        found = {name: (source / name).read_text() for name in ("old", "new/deep/x", "written")}
        expect_equal(found, {"old": "old\nmore\n", "new/deep/x": "1\n", "written": "written"}, "the host's files")
        expect(not (source / "private").exists(), "a file removed inside should be gone on the host, it is not")


@needs(Feature.MOUNTS)
async def check_a_read_only_mount_cannot_be_written(provider: Provider) -> None:
    """Root inside can neither change what is mounted read-only, nor make the mount another, nor take it away."""
    with _host_directory() as source:
        before = (source / "old").stat()
        async with fresh(provider, _mounted(source, read_only=True)) as box:
            expect_equal(await sh(box, f"cat {TARGET}/old"), "old\n", "a file of the host")
            for script in (
                f"echo x > {TARGET}/new",
                f"echo x >> {TARGET}/old",
                f"rm {TARGET}/old",
                f"touch {TARGET}/old",
                f"mount -o remount,rw {TARGET} && echo x > {TARGET}/new",
                f"mount -o remount,bind,rw {TARGET} && echo x > {TARGET}/new",
                f"umount {TARGET}",
            ):
                result = await box.run(script, timeout=PATIENCE)
                expect(not result.ok, f"{script!r} should be refused, it is not")
            await box.run(f"chmod 777 {TARGET}/old; chown 1:1 {TARGET}/old", timeout=PATIENCE)
            with expect_raises("a write", SandboxError, PermissionError):
                await box.write(f"{TARGET}/new", b"new")
            with expect_raises("a push", SandboxError, PermissionError):
                await box.push(_archive("new"), TARGET)
            expect_equal(await sh(box, f"cat {TARGET}/old"), "old\n", "the file afterwards")
        expect_equal(_files(source), {"old": "old\n"}, "the host's files")
        after = (source / "old").stat()
        expect_equal(
            (after.st_mode, after.st_uid), (before.st_mode, before.st_uid), "mode and owner of the host's file"
        )


@needs(Feature.MOUNTS, Feature.FORK)
async def check_mounts_stay_with_a_sandbox_and_its_forks(provider: Provider) -> None:
    """A fork has the mounts of its source, and a sandbox that is started again its own."""
    with _host_directory() as source:
        async with fresh(provider, _mounted(source)) as box:
            await sh(box, f"echo 1 > {TARGET}/one")
            await box.stop()
            async with closing(await box.fork()) as fork:
                await sh(fork, f"cat {TARGET}/one && echo 2 > {TARGET}/two")
            await box.start()
            expect_equal(await sh(box, f"cat {TARGET}/one {TARGET}/two"), "1\n2\n", "files after a start")


@needs(Feature.MOUNTS, Feature.FORK)
async def check_mounted_files_are_not_on_the_sandboxes_disk(provider: Provider) -> None:
    """An archive of what is around a mount has none of its files, nor have changes; asked for itself, it is packed."""
    with _host_directory() as source:
        async with fresh(provider, _mounted(source)) as box:
            await sh(box, f"echo 1 > {TARGET}/new; echo 1 > /data/own")
            names = _names(await box.pull("/data"))
            expect_equal(names, {"here", "own"}, "an archive of what is around")
            expect_equal(_names(await box.pull(TARGET)), {"old", "new"}, "an archive of the mount")
            await box.push(_archive("pushed"), TARGET)
            if Feature.CHANGES in provider.features:
                await _expect_unchanged(box)
            await box.stop()
            if Feature.CHANGES in provider.features:
                await _expect_unchanged(box)
        expect_equal(set(_files(source)), {"old", "new", "pushed"}, "the host's files after the end of the sandbox")


async def _expect_unchanged(box: Sandbox) -> None:
    beneath = [change.path for change in await box.changes() if change.path.startswith(f"{TARGET}/")]
    expect_equal(beneath, [], "changes beneath the mount")


@needs(Feature.MOUNTS)
async def check_a_link_cannot_lead_a_mount_to_the_host(provider: Provider) -> None:
    """A link in the way of a target is taken from the sandbox's own root, and nothing is made on the host."""
    with _host_directory() as source, _host_directory() as other:
        async with fresh(provider, _mounted(source)) as box:
            await sh(box, f"mv /data /moved && mkdir -p {other} && ln -s {other} /data")
            await box.stop()
            await box.start()
            expect_equal(await sh(box, f"cat {TARGET}/old; cat /data/old 2>/dev/null || :"), "old\n", "what is there")
        expect_equal(_files(other), {"old": "old\n"}, "files where the link would lead on the host")


@needs(Feature.MOUNTS)
async def check_mounts_that_cannot_be_are_refused(provider: Provider) -> None:
    """A missing source, a file, a path over a link, and targets in each other's way are a ConfigError naming them."""
    with _host_directory() as source:
        (source / "directory").mkdir()
        (source / "link").symlink_to("directory")
        for wrong in ("missing", "old", "link"):
            with expect_raises(f"the source {wrong!r}", ConfigError) as caught:
                await (await provider.create(_mounted(source / wrong))).close()
            caught.expect_named(str(source / wrong))
        for one, other in (("/data", "/data"), ("/data", "/data/deep"), ("/data/deep", "/data")):
            with expect_raises(f"mounts on {one} and {other}", ConfigError) as caught:
                wanted = spec(mounts=(Mount(source, one), Mount(source, other)))
                await (await provider.create(wanted)).close()
            caught.expect_named(one)
        for target in ("/", "/proc", "/sys/fs", "/dev/x", "/usr", "/etc/x", "data", "/data/../etc", "/data/", ""):
            with expect_raises(f"the target {target!r}", ConfigError):
                Mount(source, target)


def _files(top: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in top.iterdir() if path.is_file()}


def _archive(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


def _names(archive: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return set(tar.getnames())
