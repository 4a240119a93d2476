"""What is the subprocess provider's own, beside the contract."""

import asyncio
import io
import os
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.contract.promise import alive_on_host, new_mark
from forkyard.sandbox.subprocess import SubprocessProvider, SubprocessSandbox

MAKES_ONE = """
import asyncio
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.subprocess import SubprocessProvider

async def main():
    box = await SubprocessProvider().create(SandboxSpec(name="x"))
    await box.stop()

asyncio.run(main())
"""


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[SubprocessProvider]:
    async with SubprocessProvider(tmp_path) as made:
        yield made


@pytest.fixture
async def box(provider: SubprocessProvider) -> SubprocessSandbox:
    return await provider.create(SandboxSpec())


async def test_an_error_of_on_output_ends_the_command_and_reaches_the_caller(box: SubprocessSandbox) -> None:
    mark = new_mark()

    def fail(stream: str, piece: bytes) -> None:
        raise KeyError(stream)

    with pytest.raises(KeyError, match="stdout"):
        await box.run(f"setsid sleep {mark} & echo x; sleep {mark}", on_output=fail)
    assert not alive_on_host(mark)


async def test_a_command_that_is_cancelled_twice_is_dead(box: SubprocessSandbox) -> None:
    mark = new_mark()
    heard = asyncio.Event()
    run = asyncio.create_task(box.run(f"echo x; sleep {mark}", on_output=lambda *_: heard.set()))
    await heard.wait()
    run.cancel()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not alive_on_host(mark)


async def test_arguments_that_are_too_large_together_are_refused_naming_the_limit(box: SubprocessSandbox) -> None:
    with pytest.raises(ValueError, match="larger than the kernel takes"):
        await box.run(["true", *["x" * 100_000] * 40])
    assert (await box.run("echo fine")).stdout == "fine\n"


async def test_many_commands_leave_no_descriptor_open(box: SubprocessSandbox) -> None:
    await box.run("true")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    await asyncio.gather(*(box.run("cat", stdin=b"x") for _ in range(20)))
    await box.run("no-such-command")
    await box.run(["no-such-command"])
    await box.run("sleep 9", timeout=0.1)
    await box.write("d/e/file", b"x")
    await box.push(await box.pull("d"), "copy")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


async def test_listening_is_refused_saying_what_is_missing(box: SubprocessSandbox) -> None:
    with pytest.raises(SandboxError, match="no network of its own"):
        await box.listen(8000)


async def test_another_image_or_user_is_a_config_error(provider: SubprocessProvider) -> None:
    with pytest.raises(ConfigError, match="debian:12"):
        await provider.create(SandboxSpec(image="debian:12"))
    with pytest.raises(ConfigError, match="someone"):
        await provider.create(SandboxSpec(user="someone"))
    assert await provider.sandboxes() == []


async def test_paths_of_files_end_in_the_directory_however_links_twist(box: SubprocessSandbox, tmp_path: Path) -> None:
    await box.write("/etc/target", b"inside")
    await box.run(
        "ln -s /etc/target abs; ln -s ../../../../etc/target up; ln -s loop loop; ln -s etc dir; ln -s /dir/target far"
    )
    for path in ("abs", "up", "dir/target", "far", "/../etc/target", "dir/../etc/target"):
        assert await box.read(path) == b"inside", path
    with pytest.raises(SandboxError, match="loop"):
        await box.read("loop")


async def test_a_failed_write_leaves_nothing_behind(box: SubprocessSandbox) -> None:
    await box.write("folder/file", b"")
    with pytest.raises(IsADirectoryError):
        await box.write("folder", b"x")
    assert (await box.run("ls -A . folder")).stdout.split() == [".:", "folder", "folder:", "file"]


async def test_fifos_travel_and_sockets_stay(box: SubprocessSandbox) -> None:
    await box.run("mkdir t; mkfifo -m 640 t/pipe")
    archive = await box.pull("t")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert [(info.name, info.isfifo(), info.mode) for info in tar] == [("pipe", True, 0o640)]
    await box.push(archive, "u")
    assert (await box.run("stat -c %F u/pipe")).stdout == "fifo\n"


async def test_hard_links_within_an_archive_are_made(box: SubprocessSandbox) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        file = tarfile.TarInfo("d/file")
        file.size = 4
        tar.addfile(file, io.BytesIO(b"same"))
        link = tarfile.TarInfo("d/twin")
        link.type, link.linkname = tarfile.LNKTYPE, "d/file"
        tar.addfile(link)
    await box.push(buffer.getvalue(), "dest")
    assert (await box.run("cat dest/d/twin; stat -c %h dest/d/twin")).stdout == "same2\n"


async def test_the_home_of_the_environment_is_used_by_default(tmp_path: Path) -> None:
    box = await SubprocessProvider(tmp_path / "other").create(SandboxSpec())
    result = await box.run([sys.executable, "-c", MAKES_ONE], {"FORKYARD_HOME": str(tmp_path / "home")}, timeout=30)
    assert result.ok, result.stderr
    async with SubprocessProvider(tmp_path / "home" / "subprocess") as provider:
        assert [info.name for info in await provider.sandboxes()] == ["x"]
    await box.close()
