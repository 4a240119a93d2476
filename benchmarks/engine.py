"""What forks cost when there are many, when they stand on much, and when they carry much: the engine by itself.

    python -m benchmarks.engine [live] [templates] [chains] [delete] [files] [commands] [--live 1000]

live       many idle sandboxes at once: memory of each, forks a second while they live, a command among them
templates  a fork of templates of 50 MB, 1 GB and 50,000 files, beside one of an empty template
chains     a fork of a fork of a fork ..., 1 to 100 deep
delete     closing a sandbox that wrote 50,000 files, and a fork made at once afterwards
files      reading and writing 1 KB and 100 MB
commands   commands a second, 32 in flight in one sandbox and in 32, beside the bare host

Without a name all of them run. Every table compares within one run; numbers are milliseconds unless a column says
otherwise, median and 99th percentile.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from benchmarks.memory import in_use
from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider

IMAGE = "host"
ROUNDS = 60
PYTHON = "import sys; n, size = map(int, sys.argv[1:]); "
FILL = PYTHON + (
    "import os\nfor i in range(n):\n"
    "    if i % 500 == 0: os.makedirs(f'/data/{i // 500}')\n"
    "    open(f'/data/{i // 500}/{i}', 'wb').write(bytes(size))"
)


async def timed(work: Callable[[], Awaitable[object]], rounds: int = ROUNDS) -> list[float]:
    """Milliseconds of each of `rounds` calls, one after another."""
    took = []
    for _ in range(rounds):
        started = time.perf_counter()
        await work()
        took.append((time.perf_counter() - started) * 1000)
    return took


def told(took: Sequence[float]) -> str:
    """Median and 99th percentile."""
    return f"{statistics.median(took):.2f} ({sorted(took)[min(len(took) - 1, int(0.99 * len(took)))]:.1f})"


def show(*cells: object) -> None:
    """One row of a table."""
    print(f"  {cells[0]!s:32}" + "".join(f"  {cell!s:>18}" for cell in cells[1:]), flush=True)


async def cycle(template: Sandbox) -> None:
    """Fork, run one command, close."""
    fork = await template.fork()
    assert (await fork.run(["true"])).ok
    await fork.close()


async def stopped(provider: LocalProvider, *fill: int) -> Sandbox:
    """A template that holds `fill` = number of files, bytes of each."""
    sandbox = await provider.create(SandboxSpec(image=IMAGE))
    if fill:
        result = await sandbox.run(["python3", "-c", FILL, *map(str, fill)], timeout=600)
        assert result.ok, result.stderr
    await sandbox.stop()
    return sandbox


async def live(provider: LocalProvider, count: int) -> None:
    """Many idle sandboxes."""
    template = await stopped(provider)
    before = in_use()
    started = time.perf_counter()
    sandboxes = [await template.fork() for _ in range(count)]
    took = time.perf_counter() - started
    each = (in_use() - before) / count
    show("", "memory each", "forks/s, first", "forks/s, among them", "true among them")
    started = time.perf_counter()
    more = [await template.fork() for _ in range(100)]
    rate = 100 / (time.perf_counter() - started)
    command = await timed(lambda: sandboxes[count // 2].run(["true"]))
    show(f"{count} idle sandboxes", f"{each / 1e6:.2f} MB", f"{count / took:.0f}", f"{rate:.0f}", told(command))
    started = time.perf_counter()
    await asyncio.gather(*(sandbox.close() for sandbox in [*sandboxes, *more]))
    show("all closed", f"{time.perf_counter() - started:.2f} s")
    await template.close()


def bytes_used(path: Path) -> int:
    """Bytes on disk of a tree."""
    return sum(
        (Path(top) / name).lstat().st_blocks * 512 for top, dirs, files in os.walk(path) for name in dirs + files
    )


async def templates(provider: LocalProvider, home: Path) -> None:
    """Forks of large templates."""
    show("template", "fork, true, delete", "disk of one fork")
    for name, fill in (
        ("empty", ()),
        ("50 MB", (50, 1 << 20)),
        ("1 GB", (1024, 1 << 20)),
        ("50,000 files", (50_000, 10)),
    ):
        template = await stopped(provider, *fill)
        await cycle(template)
        took = await timed(lambda template=template: cycle(template))  # type: ignore[misc]
        before = {path.name for path in (home / "disks").iterdir()}
        fork = await template.fork()
        await fork.run(["true"])
        (disk,) = {path.name for path in (home / "disks").iterdir()} - before
        show(name, told(took), f"{bytes_used(home / 'disks' / disk) / 1024:.0f} KiB")
        await fork.close()
        await template.close()


async def chains(provider: LocalProvider, depths: Sequence[int] = (1, 10, 32, 100)) -> None:
    """Forks of forks."""
    show("depth of the chain", "fork, true, delete")
    template = await stopped(provider)
    chain = [template]
    for depth in range(1, max(depths) + 1):
        fork = await chain[-1].fork()
        await fork.write(f"/{depth}", b"x")
        await fork.stop()
        chain.append(fork)
        if depth in depths:
            await cycle(fork)
            show(depth, told(await timed(lambda fork=fork: cycle(fork))))  # type: ignore[misc]
    for sandbox in reversed(chain):
        await sandbox.close()


async def delete(provider: LocalProvider) -> None:
    """Closing a large sandbox."""
    empty, large = await stopped(provider), await stopped(provider, 50_000, 10)
    show("", "close", "fork, true, delete at once afterwards")
    for name, template in (("an empty one", await empty.fork()), ("50,000 files", large)):
        took = await timed(template.close, 1)
        show(name, told(took), told(await timed(lambda: cycle(empty))))
    await empty.close()


async def files(provider: LocalProvider) -> None:
    """Single files in and out."""
    sandbox = await provider.create(SandboxSpec(image=IMAGE))
    show("size", "write", "read")
    for name, size, rounds in (("1 KB", 1000, ROUNDS), ("100 MB", 100_000_000, 8)):
        data = os.urandom(size)
        write = await timed(lambda data=data: sandbox.write("/f", data), rounds)  # type: ignore[misc]
        read = await timed(lambda size=size: sandbox.read("/f", size), rounds)  # type: ignore[misc]
        show(name, told(write), told(read))
    await sandbox.close()


async def rate(work: Callable[[], Awaitable[object]], total: int, in_flight: int) -> float:
    """Calls a second, `in_flight` at a time."""
    left = iter(range(total))

    async def worker() -> None:
        for _ in left:
            await work()

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return total / (time.perf_counter() - started)


async def commands(provider: LocalProvider) -> None:
    """Throughput of `true`."""

    async def on_host() -> None:
        process = await asyncio.create_subprocess_exec("true")
        await process.wait()

    sandboxes = [await provider.create(SandboxSpec(image=IMAGE)) for _ in range(32)]
    turns = iter(range(1_000_000))
    show("32 in flight", "commands/s")
    one = await rate(lambda: sandboxes[0].run(["true"]), 2000, 32)
    show("in one sandbox", f"{one:.0f}")
    each = await rate(lambda: sandboxes[next(turns) % 32].run(["true"]), 2000, 32)
    show("in 32 sandboxes", f"{each:.0f}")
    host = await rate(on_host, 2000, 32)
    show("asyncio on the bare host", f"{host:.0f}", f"{one / host:.2f}x, {each / host:.2f}x")
    for sandbox in sandboxes:
        await sandbox.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("live", "templates", "chains", "delete", "files", "commands")
    parser.add_argument("what", nargs="*", choices=[*names, []], help="which tables (default: all)")
    parser.add_argument("--live", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forkyard-bench-") as directory:
        home = Path(directory) / "home"
        async with LocalProvider(home) as provider:
            tables: dict[str, Callable[[], Awaitable[None]]] = {
                "live": lambda: live(provider, options.live),
                "templates": lambda: templates(provider, home),
                "chains": lambda: chains(provider),
                "delete": lambda: delete(provider),
                "files": lambda: files(provider),
                "commands": lambda: commands(provider),
            }
            for name in options.what or names:
                print(name)
                await tables[name]()


if __name__ == "__main__":
    asyncio.run(main())
