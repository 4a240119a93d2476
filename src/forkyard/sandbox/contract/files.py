"""What `read` and `write` promise."""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

from forkyard.errors import NotAFile, SandboxError, TooLarge
from forkyard.sandbox.contract.promise import (
    PATIENCE,
    Stopwatch,
    expect,
    expect_equal,
    expect_raises,
    fresh,
    needs,
    new_mark,
    sh,
)
from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import Feature
from forkyard.values import MIB

T = TypeVar("T")
ODD_NAMES = (
    "a b",
    "new\nline",
    "-rf",
    'it\'s "q"',
    "p|q\\z",
    "out & more",
    "héé-中-😀",
    "*",
    "$HOME",
    " lead",
    "tail ",
)
CLIMB = "../" * 24


async def soon(awaited: Awaitable[T], what: str, within: float = PATIENCE) -> T:
    """The awaited value; Broken when it does not come within `within` seconds."""
    try:
        async with asyncio.timeout(within):
            return await awaited
    except TimeoutError:
        expect(False, f"{what} should answer within {within:g} s, it did not")
        raise


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """The caller's umask, for the body; what enters a sandbox must not depend on it."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@asynccontextmanager
async def host_secret() -> AsyncIterator[Path]:
    """A file of the host, by its real path, that no sandbox may read or change."""
    with tempfile.TemporaryDirectory(prefix="forkyard-contract-") as folder:
        path = Path(folder).resolve() / "secret"
        path.write_bytes(b"host secret")
        yield path


async def check_write_then_read_round_trips_bytes(provider: Provider) -> None:
    """What is written is read back byte for byte: every byte value, nothing at all, line ends, 5 MB."""
    contents = {"all": bytes(range(256)), "empty": b"", "lines": b"a\r\nb\rc\n\n", "big": os.urandom(5 * MIB)}
    async with fresh(provider) as box:
        for name, data in contents.items():
            await box.write(name, data)
            expect(await box.read(name) == data, f"{name}: reading should return the {len(data)} bytes written")
            expect_equal((await sh(box, f"wc -c < {name}")).strip(), str(len(data)), f"size of {name} for a command")
        expect_equal(await sh(box, "cat lines"), "a\r\nb\rc\n\n", "content for a command")
        await sh(box, "printf 'from inside' > made")
        expect_equal(await box.read("made"), b"from inside", "a file made by a command")


async def check_odd_names_are_only_names(provider: Provider) -> None:
    """Blanks, newlines, quotes, dashes and wildcards in a path mean nothing."""
    async with fresh(provider) as box:
        for name in ODD_NAMES:
            await box.write(f"odd/{name}", name.encode())
            expect_equal(await box.read(f"odd/{name}"), name.encode(), f"content of {name!r}")
            result = await box.run(["cat", "--", name], cwd="odd", timeout=PATIENCE)
            expect_equal(result.stdout, name, f"content of {name!r} for a command")
        expect_equal((await sh(box, "ls -A odd | wc -l")).strip(), str(len(ODD_NAMES) + 1), "lines of a listing")


async def check_write_creates_parents(provider: Provider) -> None:
    """Writing makes the directories on the way, and they can be used."""
    async with fresh(provider) as box:
        await box.write("a/b/c/file", b"deep")
        await box.write("/srv/x y/file", b"absolute")
        expect_equal(
            await sh(box, "cat a/b/c/file; touch a/b/c/other"), "deep", "content of the file in new directories"
        )
        expect_equal(await box.read("/srv/x y/file"), b"absolute", "content by absolute path")


async def check_write_applies_its_mode(provider: Provider) -> None:
    """A file gets the mode asked for, 644 by default, whatever the umask of the caller; parents can be entered."""
    async with fresh(provider) as box:
        with umask(0o077):
            await box.write("new/plain", b"")
            for mode in (0o755, 0o750, 0o644, 0o600, 0o444):
                await box.write(f"new/{mode:o}", b"#!/bin/sh\necho ran\n", mode=mode)
        expect_equal(
            await sh(box, "stat -c %a new/plain new"), "644\n755\n", "mode of a file and of a parent made on the way"
        )
        for mode in (0o755, 0o750, 0o644, 0o600, 0o444):
            expect_equal(
                await sh(box, f"stat -c %a new/{mode:o}"), f"{mode:o}\n", f"mode of a file written with {mode:o}"
            )
        expect_equal((await box.run(["./new/755"], timeout=PATIENCE)).stdout, "ran\n", "output of a written script")


async def check_write_replaces_a_file(provider: Provider) -> None:
    """An existing file is replaced whole, its mode too, also when it is a link or a program that runs."""
    async with fresh(provider) as box:
        await box.write("file", b"a long old content", mode=0o755)
        await box.write("file", b"new")
        expect_equal(await box.read("file"), b"new", "content after a second write")
        expect_equal(await sh(box, "stat -c %a file"), "644\n", "mode after a second write")
        await sh(box, f'cp "$(command -v sleep)" busy; ./busy {new_mark()} >/dev/null 2>&1 &')
        await box.write("busy", b"replaced")
        expect_equal(await box.read("busy"), b"replaced", "content of a program replaced while it ran")
        await sh(box, "printf target > target; ln -s target link")
        await box.write("link", b"replaced")
        expect_equal(
            await sh(box, "cat target link"), "targetreplaced", "target of a replaced link, and what replaced it"
        )


async def check_a_write_is_seen_whole_or_not_at_all(provider: Provider) -> None:
    """Whoever looks while a file is replaced sees the old one or the new one, never a part of either."""
    look = "while [ ! -e stop ]; do wc -c < file; done | sort -u"
    async with fresh(provider) as box:
        await box.write("file", b"old")
        looking = asyncio.ensure_future(box.run(look, timeout=PATIENCE))
        for _ in range(4):
            await box.write("file", bytes(8 * MIB))
            await box.write("file", b"old")
        await box.write("stop", b"")
        seen = {int(size) for size in (await looking).stdout.split()}
        expect(seen <= {3, 8 * MIB}, f"only sizes 3 and {8 * MIB} should be seen, seen were {sorted(seen)}")


async def check_a_write_that_fails_leaves_what_was_there(provider: Provider) -> None:
    """A write that fails half way leaves the old file, and nothing beside it."""
    async with fresh(provider) as box:
        await box.write("folder/file", b"old", mode=0o600)
        with _large_files_fail():
            try:
                await box.write("folder/file", bytes(4 * MIB))
                left = bytes(4 * MIB)  # somebody else did the writing, who may
            except SandboxError:
                left = b"old"
        expect(await box.read("folder/file") == left, "the old file should be there, or the new one, it is not")
        expect_equal(await sh(box, "ls -A folder"), "file\n", "names in the folder")


@contextmanager
def _large_files_fail() -> Iterator[None]:
    """While it lasts, this process cannot write more than 1 MiB to a file, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def check_write_never_replaces_a_directory(provider: Provider) -> None:
    """Writing to the path of a directory is an error and leaves it as it was."""
    async with fresh(provider) as box:
        await box.write("folder/file", b"kept")
        with expect_raises("writing over a directory", IsADirectoryError, SandboxError):
            await box.write("folder", b"x")
        expect_equal(await box.read("folder/file"), b"kept", "content of the directory")


@needs(Feature.USERS)
async def check_written_files_belong_to_root(provider: Provider) -> None:
    """Files and the directories made for them belong to root, whoever the sandbox's user is."""
    async with fresh(provider) as box:
        await box.write("new/file", b"")
        expect_equal(await sh(box, "stat -c %u:%g new new/file"), "0:0\n0:0\n", "owners of directory and file")


async def check_read_over_the_limit_raises(provider: Provider) -> None:
    """A file larger than `max_bytes` is TooLarge, naming size and limit, told without reading it."""
    async with fresh(provider) as box:
        await box.write("ten", b"0123456789")
        expect_equal(await box.read("ten", max_bytes=10), b"0123456789", "a file of exactly max_bytes")
        with expect_raises("reading 10 bytes with a limit of 9", TooLarge) as caught:
            await box.read("ten", max_bytes=9)
        caught.expect_named("10")
        caught.expect_named("9")
        await sh(box, "truncate -s 2147483648 sparse")
        watch = Stopwatch()
        for limit in (MIB, 32 * MIB):
            with expect_raises("reading a file of 2 GiB", TooLarge) as caught:
                await box.read("sparse", max_bytes=limit)
            caught.expect_named("2147483648", "2,147,483,648", "2048 MiB", "2.0 GiB", "2 GiB")
        watch.expect_under(PATIENCE / 2, "refusing a file of 2 GiB twice")


async def check_missing_file_raises_file_not_found_error(provider: Provider) -> None:
    """Reading or pulling what is not there raises FileNotFoundError naming the path."""
    async with fresh(provider) as box:
        await sh(box, "ln -s nowhere dangling")
        for path in ("missing", "/no/such/file", "dangling"):
            with expect_raises(f"reading {path}", FileNotFoundError) as caught:
                await box.read(path)
            caught.expect_named(path)
        for path in ("missing", "/no/such/tree"):
            with expect_raises(f"pulling {path}", FileNotFoundError) as caught:
                await box.pull(path)
            caught.expect_named(path)


async def check_a_file_in_the_way_raises_not_a_directory_error(provider: Provider) -> None:
    """Reading, writing or pulling beneath a file raises NotADirectoryError, pushing SandboxError; the path is named."""
    async with fresh(provider) as box:
        await box.write("file", b"kept")
        calls: dict[str, Callable[[str], Awaitable[object]]] = {
            "read": box.read,
            "write": lambda path: box.write(path, b""),
            "pull": box.pull,
        }
        for what, call in calls.items():
            for path in ("file/below", "file/below/that"):
                with expect_raises(f"{what} {path}", NotADirectoryError) as caught:
                    await call(path)
                caught.expect_named(path)
        for path in ("file", "file/below", "file/below/that"):
            with expect_raises(f"push {path}", SandboxError) as caught:
                await box.push(b"\0" * 10240, path)
            caught.expect_named(path)
        expect_equal(await box.read("file"), b"kept", "content of the file")


async def check_reading_a_directory_raises_is_a_directory_error(provider: Provider) -> None:
    """Reading a directory raises IsADirectoryError."""
    async with fresh(provider) as box:
        await sh(box, "mkdir folder; ln -s folder link")
        for path in ("folder", "link", "/"):
            with expect_raises(f"reading {path}", IsADirectoryError):
                await box.read(path)


async def check_a_fifo_is_refused_at_once(provider: Provider) -> None:
    """A FIFO can neither be read nor hold anyone up; writing to its path replaces it or is refused."""
    async with fresh(provider) as box:
        await sh(box, "mkfifo pipe other; ln -s pipe link")
        for path in ("pipe", "link"):
            with expect_raises(f"reading {path}", NotAFile, FileNotFoundError):  # it may be on no disk
                await soon(box.read(path), "reading a FIFO")
        try:
            await soon(box.write("other", b"content"), "writing to a FIFO's path")
        except SandboxError:
            return
        expect_equal(await box.read("other"), b"content", "content where a FIFO was")


@needs(Feature.ISOLATED)
async def check_devices_and_kernel_files_are_refused_at_once(provider: Provider) -> None:
    """Endless devices cannot be read as files, nor can a process's memory."""
    async with fresh(provider) as box:
        for path in ("/dev/zero", "/dev/urandom", "/dev/tty", "/proc/1/mem", "/proc/self/mem"):
            with expect_raises(f"reading {path}", SandboxError, OSError):
                await soon(box.read(path, max_bytes=MIB), f"reading {path}")


async def _links_to_host(box: Sandbox, secret: Path) -> None:
    """Links named abs, rel, dir and twice that lead a careless reader to the host's file."""
    await sh(
        box,
        f"ln -s '{secret}' abs; ln -s '{CLIMB}{secret}' rel; ln -s '{secret.parent}' dir; ln -s abs twice; "
        f"mkdir -p sub; ln -s '{CLIMB}' sub/up",
    )


def _paths_to_host(secret: Path) -> tuple[str, ...]:
    return ("abs", "rel", "dir/secret", "twice", f"sub/up{secret}", f"{CLIMB}{secret}", str(secret))


async def check_a_link_cannot_lead_read_to_the_host(provider: Provider) -> None:
    """A link or `..` in a path ends inside the sandbox: no byte of the host is read or pulled."""
    async with fresh(provider) as box, host_secret() as secret:
        await _links_to_host(box, secret)
        for path in _paths_to_host(secret):
            for what, call in (("read", box.read), ("pull", box.pull)):
                try:
                    data = await call(path)
                except (OSError, SandboxError):
                    continue
                expect(
                    b"host secret" not in data,
                    f"{what} of {path} should stay in the sandbox, it brought the host's file",
                )


async def check_a_link_cannot_lead_write_to_the_host(provider: Provider) -> None:
    """A link or `..` in a path ends inside the sandbox: nothing of the host is written or made."""
    async with fresh(provider) as box, host_secret() as secret:
        await _links_to_host(box, secret)
        new = secret.parent / "new"
        for path in (*_paths_to_host(secret), "dir/new", f"sub/up{new}", str(new)):
            try:
                await box.write(path, b"from the sandbox")
            except (OSError, SandboxError):
                continue
        expect_equal(secret.read_bytes(), b"host secret", "the host's file after writes through links")
        expect(not new.exists(), "no file should be made on the host through a link, one was")
