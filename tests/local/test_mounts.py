"""Directories of the host in sandboxes of the local provider: what a guest, or a changed host, could make of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox import ImageConfig, Mount, Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from tests.support.ordinary_user import home_of_the_user, run_as_user

AT = "/mnt/here"
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "source"
    path.mkdir()
    (path / "old").write_text("old\n")
    return path


def _spec(source: Path, name: str | None = None) -> SandboxSpec:
    return SandboxSpec(name=name, mounts=(Mount(source, AT),))


async def _said(box: Sandbox, script: str, user: str | None = None) -> str:
    result = await box.run(script, user=user, timeout=100)
    return result.stdout + result.stderr


async def test_a_mount_has_neither_setuid_nor_devices_nor_propagation(local: LocalProvider, source: Path) -> None:
    box = await local.create(_spec(source))
    (line,) = [line for line in (await _said(box, "cat /proc/self/mountinfo")).splitlines() if f" {AT} " in line]
    before, _, _ = line.partition(" - ")
    assert {"nosuid", "nodev"} <= set(before.split()[5].split(","))
    assert len(before.split()) == 6  # no "shared:" or "master:" behind the options
    await box.close()


@AS_ROOT
async def test_a_device_and_a_setuid_program_of_the_host_are_of_no_use_inside(
    local: LocalProvider, source: Path
) -> None:
    os.mknod(source / "zero", 0o666 | 0o020000, os.makedev(1, 5))
    (source / "zero").chmod(0o666)
    shutil.copy("/usr/bin/id", source / "id")
    (source / "id").chmod(0o4755)
    box = await local.create(_spec(source))
    assert "Permission denied" in await _said(box, f"head -c 1 {AT}/zero")
    assert (await _said(box, f"{AT}/id -u", user="daemon")).strip() == "1"
    await box.close()


@AS_ROOT
async def test_users_inside_are_the_same_users_of_the_host_on_a_mount(local: LocalProvider, source: Path) -> None:
    os.chown(source / "old", 1234, 1235)
    box = await local.create(_spec(source))
    assert await _said(box, f"stat -c %u:%g {AT}/old") == "1234:1235\n"
    await _said(box, f"echo > {AT}/roots; echo > {AT}/others; chown 33:100 {AT}/others; chmod 777 {AT}")
    await _said(box, f"echo > {AT}/daemons", user="daemon")
    owners = {name: ((source / name).stat().st_uid, (source / name).stat().st_gid) for name in _names(source)}
    assert owners == {"old": (1234, 1235), "roots": (0, 0), "others": (33, 100), "daemons": (1, 1)}
    await box.close()


def _names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


async def test_a_guests_link_in_a_mount_leads_nowhere_on_the_host(local: LocalProvider, source: Path) -> None:
    secret = source.parent / "secret"
    secret.write_text("host secret")
    box = await local.create(_spec(source))
    await _said(box, f"ln -s {secret} {AT}/link; ln -s ../secret {AT}/climbs")
    for path in (f"{AT}/link", f"{AT}/climbs", f"{AT}/../secret", f"{AT}/../../..{secret}"):
        assert "host secret" not in await _said(box, f"cat {path}")
        with pytest.raises(FileNotFoundError):
            await box.read(path)
    await box.close()


async def test_a_source_that_became_a_link_is_not_followed_at_the_next_start(
    local: LocalProvider, source: Path, tmp_path: Path
) -> None:
    """Whoever may write in the directory above, as a guest of another sandbox may, could choose any of the host's."""
    other = tmp_path / "other"
    other.mkdir()
    box = await local.create(_spec(source))
    await box.stop()
    source.rename(tmp_path / "moved")
    source.symlink_to(other)
    with pytest.raises(SandboxError, match=f"{source} cannot be mounted on {AT}: its path leads over a link"):
        await box.start()
    with pytest.raises(SandboxError, match="its path leads over a link"):
        await box.fork()
    assert box.info.state == "stopped"
    source.unlink()
    (tmp_path / "moved").rename(source)
    await box.start()
    assert await _said(box, f"cat {AT}/old") == "old\n"
    await box.close()
    with pytest.raises(ConfigError, match="its path leads over a link"):
        source.rename(tmp_path / "moved")
        source.symlink_to(other)
        await local.create(_spec(source))


@pytest.mark.parametrize("system", ["/proc", "/dev", "/sys/fs", "/usr/lib"])
async def test_a_link_to_a_system_directory_is_no_target(local: LocalProvider, source: Path, system: str) -> None:
    box = await local.create(SandboxSpec(mounts=(Mount(source, "/data/here"),)))
    assert await _said(box, f"mv /data /moved; mkdir /data; ln -s {system} /data/here") == ""
    await box.stop()
    with pytest.raises(SandboxError, match="nothing can be mounted on /data/here: a link leads"):
        await box.start()
    await box.close()
    assert _names(source) == ["old"]


async def test_what_is_made_of_a_sandbox_has_neither_its_mounts_nor_their_files(
    local: LocalProvider, source: Path
) -> None:
    box = await local.create(_spec(source))
    await _said(box, f"echo 1 > {AT}/new; echo 1 > /own")
    await box.stop()
    await local.commit(box, "made:1", ImageConfig())
    await local.keep_disk(box, "kept-one")
    for made in (await local.create(SandboxSpec(image="made:1")), await local.from_kept("kept-one", SandboxSpec())):
        assert await _said(made, f"cat /own; ls -A {AT}") == "1\n"
        await made.close()
    start = await box.pristine()
    assert await _said(start, f"ls -A {AT} 2>/dev/null") == ""
    await start.close()
    await box.close()
    await local.remove_image("made:1")
    assert _names(source) == ["new", "old"]


async def test_forks_of_a_running_and_of_a_paused_sandbox_have_its_mounts(local: LocalProvider, source: Path) -> None:
    box = await local.create(_spec(source))
    await _said(box, f"echo 1 > {AT}/new")
    running = await box.fork()
    await box.pause()
    paused = await box.fork()
    for fork in (running, paused):
        assert await _said(fork, f"cat {AT}/new") == "1\n"
        await fork.close()
    await box.close()


async def test_another_process_finds_a_stopped_sandbox_with_its_mounts(home: Path, source: Path) -> None:
    async with LocalProvider(home) as provider:
        await (await provider.create(_spec(source, "with-mounts"))).stop()
    async with LocalProvider(home) as provider:
        box = await provider.open("with-mounts")
        await box.start()
        assert await _said(box, f"cat {AT}/old") == "old\n"
        await box.close()


@AS_ROOT
async def test_what_is_mounted_beneath_a_source_is_not_seen_inside(local: LocalProvider, source: Path) -> None:
    beneath = source / "beneath"
    beneath.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", beneath], check=True)
    try:
        (beneath / "secret").write_text("of another file system")
        box = await local.create(_spec(source))
        assert await _said(box, f"ls -A {AT}/beneath") == ""
        later = source / "later"
        later.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", later], check=True)
        try:
            (later / "secret").write_text("mounted since")
            assert await _said(box, f"ls -A {AT}/later") == ""
        finally:
            subprocess.run(["umount", later], check=True)
        await box.close()
    finally:
        subprocess.run(["umount", beneath], check=True)


@AS_ROOT
async def test_a_file_system_that_cannot_shift_owners_is_refused_by_name(local: LocalProvider) -> None:
    source = Path("/proc/sys")
    with pytest.raises(SandboxError, match="/proc/sys cannot be mounted on /mnt/here: its file system cannot shift"):
        await local.create(_spec(source))
    assert await local.sandboxes() == []


async def test_mounts_leave_no_descriptors(local: LocalProvider, source: Path) -> None:
    async def once() -> None:
        box = await local.create(SandboxSpec(mounts=tuple(Mount(source, f"/mnt/{n}") for n in range(20))))
        assert (await _said(box, "cat /mnt/*/old | wc -l")).strip() == "20"
        inside = await _said(box, "ls /proc/1/fd 2>/dev/null | wc -l")
        assert int(inside) < 20
        await box.close()

    await once()
    before = _descriptors()
    for _ in range(3):
        await once()
    with pytest.raises(SandboxError):
        await local.create(_spec(Path("/proc/sys")))
    assert len(_descriptors()) <= len(before) + 8  # of blanks that wait ready: two each


def _descriptors() -> list[Path]:
    return list(Path("/proc/self/fd").iterdir())


_OF_THE_USER = """
import asyncio, sys
from pathlib import Path
from forkyard.sandbox import Mount, SandboxSpec
from forkyard.sandbox.contract import Outcome, checks, run_check
from forkyard.sandbox.local import LocalProvider

async def main():
    source = Path(sys.argv[1]).resolve() / "source"
    source.mkdir()
    (source / "mine").write_text("mine")
    async with LocalProvider(Path(sys.argv[1]) / "home") as provider:
        for check in checks():
            if check.topic == "mounts":
                result = await run_check(check, provider)
                assert result.outcome is Outcome.KEPT, (check.name, result.message)
        box = await provider.create(SandboxSpec(mounts=(Mount(source, "/mnt/here"), Mount(source, "/mnt/ro", True))))
        script = "stat -c %u /mnt/here/mine; echo > /mnt/here/new; echo > /mnt/ro/x; cat /proc/self/mountinfo"
        done = await box.run(script)
        assert done.stdout.startswith("0\\n"), done
        lines = [line.split(" - ")[0].split() for line in done.stdout.splitlines() if " /mnt/" in line]
        assert len(lines) == 2 and all(len(line) == 6 for line in lines), lines
        assert all({"nosuid", "nodev"} <= set(line[5].split(",")) for line in lines), lines
        assert "Read-only" in done.stderr, done
        assert (source / "new").stat().st_uid == source.stat().st_uid
        await box.close()

asyncio.run(main())
"""


@AS_ROOT
@pytest.mark.parametrize("subordinate_ids", [False, True], ids=["single", "range"])
def test_mounts_of_an_ordinary_user(subordinate_ids: bool) -> None:
    if subordinate_ids and not shutil.which("newuidmap"):
        pytest.skip("newuidmap is not installed (apt-get install uidmap)")
    with home_of_the_user() as home:
        arguments = [sys.executable, "-c", _OF_THE_USER, str(home)]
        done = run_as_user(*arguments, home=home, subordinate_ids=subordinate_ids)
        assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def nothing_is_left_mounted(tmp_path: Path) -> Iterator[None]:
    yield
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
