"""What `run` promises of output: bytes, bounds, and when they arrive."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from forkyard.sandbox.contract.promise import (
    PATIENCE,
    Stopwatch,
    expect,
    expect_equal,
    expect_gone,
    expect_raises,
    fresh,
    new_mark,
    patience_in_use,
    sh,
)
from forkyard.sandbox.protocol import Provider
from forkyard.sandbox.values import OUTPUT_LIMIT
from forkyard.values import MIB

FLOOD = 100 * MIB
FLAT = 48 * MIB  # what the caller may grow by while a flood passes


async def check_output_is_capped_at_the_tail(provider: Provider) -> None:
    """Output past the limit loses its oldest bytes; the full count is told, and nothing else is called truncated."""
    limit = 10_000
    async with fresh(provider) as box:
        for size in (9_999, 10_000, 10_001, 16_384):
            script = f"head -c {size - 4} /dev/zero | tr '\\0' x; printf tail"
            result = await box.run(script, output_limit=limit, timeout=PATIENCE)
            wanted = (b"x" * (size - 4) + b"tail")[-limit:]
            expect_equal(result.stdout_bytes, wanted, f"the last {limit} of {size} bytes")
            expect_equal(result.stdout_total, size, f"stdout_total of {size} bytes")
            expect_equal(
                (result.truncated, result.exit_code), (size > limit, 0), f"truncated and exit code of {size} bytes"
            )


async def check_each_stream_has_its_own_limit(provider: Provider) -> None:
    """The limit holds for each stream by itself, standard error too."""
    async with fresh(provider) as box:
        script = "printf 0123456789; printf abcdefghijkl >&2"
        result = await box.run(script, output_limit=10, timeout=PATIENCE)
        expect_equal((result.stdout_bytes, result.stdout_total), (b"0123456789", 10), "standard output and its total")
        expect_equal((result.stderr_bytes, result.stderr_total), (b"cdefghijkl", 12), "standard error and its total")
        expect(result.truncated, "a cut standard error should be called truncated, it is not")


async def check_output_bytes_are_kept(provider: Provider) -> None:
    """Output need not be UTF-8: every byte arrives, and as text the bad ones are replaced."""
    async with fresh(provider) as box:
        result = await box.run(r"printf 'a\377\376b\ncut \342\202'; printf '\000\r\n'", timeout=PATIENCE)
        expect_equal(result.stdout_bytes, b"a\xff\xfeb\ncut \xe2\x82\x00\r\n", "bytes")
        expect_equal(result.stdout, "a\ufffd\ufffdb\ncut \ufffd\x00\r\n", "text")
        expect_equal(result.exit_code, 0, "exit code")


async def check_a_flood_of_output_needs_no_memory(provider: Provider) -> None:
    """100 MB of output are counted and their tail kept, and the caller does not grow with them."""
    async with fresh(provider) as box, _flat_memory():
        script = f"head -c {FLOOD} /dev/zero; printf end"
        result = await box.run(script, timeout=3 * PATIENCE)
        expect_equal((result.stdout_total, result.timed_out), (FLOOD + 3, False), "bytes written and timed_out")
        expect_equal(len(result.stdout_bytes), OUTPUT_LIMIT, "bytes kept")
        expect_equal(result.stdout_bytes[-4:], b"\0end", "the last bytes")


@asynccontextmanager
async def _flat_memory() -> AsyncIterator[None]:
    """Raise Broken when this process's resident memory grows by more than `FLAT` in the body."""
    start = peak = _resident()

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, _resident())
            await asyncio.sleep(0.005)

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
    peak = max(peak, _resident())
    expect(
        peak - start < FLAT,
        f"the caller should grow by less than {FLAT // MIB} MB, it grew by {(peak - start) // MIB} MB",
    )


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def check_output_streams_while_the_command_runs(provider: Provider) -> None:
    """`on_output` hears output while the command still runs, not when it has ended."""
    async with fresh(provider) as box:
        heard = asyncio.Event()
        script = "echo first; while [ ! -e go ]; do sleep 0.02; done; ls go"
        run = asyncio.create_task(box.run(script, timeout=2 * PATIENCE, on_output=lambda stream, piece: heard.set()))
        try:
            async with asyncio.timeout(patience_in_use.get()):
                await heard.wait()
        except TimeoutError:
            expect(False, "on_output should hear the first line while the command runs, it heard nothing")
        finally:
            await box.write("go", b"")
            result = await run
        expect_equal(result.stdout, "first\ngo\n", "output")


async def check_on_output_hears_everything(provider: Provider) -> None:
    """`on_output` hears every byte of both streams by their names, also what the limit drops from the result."""
    async with fresh(provider) as box:
        pieces: dict[str, bytes] = {"stdout": b"", "stderr": b""}

        def hear(stream: str, piece: bytes) -> None:
            pieces[stream] += piece

        script = "i=0; while [ $i -lt 500 ]; do echo out $i; echo error $i >&2; i=$((i+1)); done"
        await box.run(script, output_limit=10, timeout=PATIENCE, on_output=hear)
        for stream, word in (("stdout", "out"), ("stderr", "error")):
            wanted = "".join(f"{word} {i}\n" for i in range(500)).encode()
            expect_equal(pieces[stream], wanted, f"what was heard of {stream}")


async def check_an_error_of_on_output_ends_the_command(provider: Provider) -> None:
    """When `on_output` raises, the command and what it started are killed and `run` raises that error."""
    mark = new_mark()

    def fail(stream: str, piece: bytes) -> None:
        raise KeyError(stream)

    async with fresh(provider) as box:
        watch = Stopwatch()
        with expect_raises("a run whose on_output raises", KeyError) as caught:
            await box.run(f"sleep {mark} & echo x; sleep {mark}", timeout=PATIENCE, on_output=fail)
        caught.expect_named("stdout")
        watch.expect_under(PATIENCE / 2, "a run whose on_output raises")
        await expect_gone(box, mark, "the command")
        with expect_raises("a run whose on_output raises at its last piece", KeyError) as caught:
            await box.run("echo x >&2", timeout=PATIENCE, on_output=fail)
        caught.expect_named("stderr")
        expect_equal(await sh(box, "echo fine"), "fine\n", "the next command")


async def check_chatty_output_is_not_slow(provider: Provider) -> None:
    """100,000 lines written one by one take about as long as when they go to a file."""
    loop = "i=0; while [ $i -lt 100000 ]; do echo line $i; i=$((i+1)); done"
    async with fresh(provider) as box:
        clock = asyncio.get_running_loop().time

        async def took(script: str) -> float:
            start = clock()
            await sh(box, script, timeout=3 * PATIENCE)
            return clock() - start

        for _ in range(3):  # the machine may do other things, now more and now less
            to_file, to_us = await took(f"({loop}) > lines.txt"), await took(loop)
            if to_us < 3 * to_file + 2:
                return
        expect(False, f"a script that takes {to_file:.1f} s when it writes to a file takes {to_us:.1f} s, three times")
