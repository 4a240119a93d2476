"""What a provider with limits promises."""

from __future__ import annotations

import asyncio
import re

from forkyard.errors import ConfigError
from forkyard.sandbox.contract.promise import (
    PATIENCE,
    closing,
    expect,
    expect_equal,
    expect_raises,
    fresh,
    needs,
    new_mark,
    sh,
    spec,
)
from forkyard.sandbox.protocol import Provider
from forkyard.sandbox.values import BOUNDS, Feature, Limits, ProgramResult
from forkyard.values import MIB

_SPIN = "timeout 2 sh -c 'while :; do :; done'"


async def check_a_bound_that_is_not_kept_is_refused(provider: Provider) -> None:
    """A sandbox is not made with a bound that the provider does not declare."""
    for name in [name for name, bound in BOUNDS.items() if bound.feature not in provider.features]:
        with expect_raises(f"creating a sandbox with {name}", ConfigError) as caught:
            async with fresh(provider, spec(limits=Limits(**{name: 1024}))):
                pass
        caught.expect_named(name)


@needs(Feature.LIMIT_PIDS)
async def check_pids_limit_stops_a_fork_bomb(provider: Provider) -> None:
    """A command cannot start more processes than `pids`; other sandboxes do not notice, and the deadline cleans up."""
    # bounded, so that a provider that breaks this promise does not take the machine down
    bomb = f"i=0; while [ $i -lt 400 ]; do sleep {new_mark()} & i=$((i+1)); echo $i; done"
    async with fresh(provider, spec(limits=Limits(pids=320))) as box, fresh(provider) as other:
        result = await box.run(bomb, timeout=5)
        started = int(result.stdout.split()[-1]) if result.stdout else 0
        expect(started <= 320, f"at most 320 processes should start, {started} did")
        expect_equal(await sh(other, "echo fine"), "fine\n", "a command in another sandbox")
        recursive = await box.run("f() { f & f & sleep 1; }; f", timeout=2)
        expect(recursive.exit_code != 0 or recursive.timed_out, "a fork bomb should fail or end at its deadline")
        expect_equal(await sh(other, "echo fine"), "fine\n", "a command in another sandbox")
        await box.stop()
        await box.start()
        expect_equal(await sh(box, "echo fine"), "fine\n", "a command after stop and start")


@needs(Feature.LIMIT_MEMORY)
async def check_memory_limit_kills_only_this_sandbox(provider: Provider) -> None:
    """A process that takes more than `memory_mb` is killed; its sandbox goes on, and others do not notice."""
    hog = "head -c 400000000 /dev/zero | tail > /dev/null; echo rc=$?"  # tail holds a line without end in memory
    async with fresh(provider, spec(limits=Limits(memory_mb=64))) as box, fresh(provider) as other:
        beside = await other.run("head -c 100000000 /dev/zero | tail | wc -c", timeout=PATIENCE)
        expect_equal(beside.stdout.strip(), "100000000", "bytes through a sandbox without that limit")
        result = await box.run(["sh", "-c", hog], timeout=PATIENCE)
        expect("rc=0" not in result.stdout, "a process of 400 MB should not fit into 64 MB, it did")
        expect_equal(await sh(box, "echo fine"), "fine\n", "the next command in the sandbox")
        expect_equal(await sh(other, "echo fine"), "fine\n", "a command in another sandbox")


@needs(Feature.LIMIT_MEMORY)
async def check_memory_limit_is_told_from_failure(provider: Provider) -> None:
    """A command that failed while memory was full says `oom`; one that failed by itself, or coped, says nothing."""
    hog = "head -c 400000000 /dev/zero | tail > /dev/null"
    async with fresh(provider, spec(limits=Limits(memory_mb=64))) as box:
        _expect_ended_by(await box.run(hog, timeout=PATIENCE), "oom", "a command that fills the memory")
        _expect_ended_by(await box.run("exit 137", timeout=PATIENCE), None, "a command that fails by itself")
        _expect_ended_by(await box.run(f"{hog}; true", timeout=PATIENCE), None, "a command that copes")


@needs(Feature.LIMIT_MEMORY)
async def check_memory_limit_is_for_all_processes_together(provider: Provider) -> None:
    """Processes that would fit one by one are bounded in sum."""
    part = "head -c 30000000 /dev/zero | tail > /dev/null"
    async with fresh(provider, spec(limits=Limits(memory_mb=64))) as box:
        expect_equal(await sh(box, f"{part} && echo fits"), "fits\n", "30 MB in 64 MB")
        held = "(head -c 30000000 /dev/zero; sleep 2) | tail > /dev/null"
        result = await box.run(f"for i in 1 2 3 4; do {held} & done; wait; exit 1", timeout=PATIENCE)
        _expect_ended_by(result, "oom", "four times 30 MB in 64 MB")


@needs(Feature.LIMIT_MEMORY)
async def check_a_sandbox_outlives_many_small_processes_that_fill_its_memory(provider: Provider) -> None:
    """However small the processes are that fill the memory, it is they that go, and not the sandbox."""
    small = "sh -c 'x=$(head -c 4000000 /dev/zero | tr \\\\0 a); sleep 1; : $x'"
    async with fresh(provider, spec(limits=Limits(memory_mb=64))) as box:
        result = await box.run(f"i=0; while [ $i -lt 24 ]; do {small} & i=$((i+1)); done; wait; exit 1", timeout=40)
        _expect_ended_by(result, "oom", "24 processes of 4 MB and more in 64 MB")
        expect_equal(await sh(box, "echo fine"), "fine\n", "the next command in the sandbox")


@needs(Feature.LIMIT_CPU)
async def check_cpu_limit_holds_for_all_processes_together(provider: Provider) -> None:
    """Processes that never rest get no more than `cpus` seconds of processor time a second, whatever their number."""
    async with fresh(provider, spec(limits=Limits(cpus=0.25))) as box:
        times = await sh(box, f"{_SPIN} & {_SPIN} & wait; times")
        used = sum(int(minutes) * 60 + float(seconds) for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", times))
        expect(used < 1.0, f"two busy loops of 2 s should get about 0.5 s at 0.25 cpus, they got {used:.2f} s")


@needs(Feature.LIMIT_DISK)
async def check_disk_limit_ends_what_fills_it(provider: Provider) -> None:
    """What writes more than `disk_mb` is killed and says `disk`; the sandbox can be cleared up, others go on."""
    fill = "head -c 300000000 /dev/zero > /full; sleep 60"
    async with fresh(provider, spec(limits=Limits(disk_mb=40))) as box, fresh(provider) as other:
        expect_equal(await sh(box, "head -c 20000000 /dev/zero > /part && echo fits"), "fits\n", "20 MB in 40 MB")
        _expect_ended_by(await box.run(fill, timeout=PATIENCE), "disk", "a command that fills the disk")
        expect_equal(await sh(box, "rm /full && echo fine"), "fine\n", "clearing up")
        expect_equal(await sh(box, "sleep 0.3; echo fine"), "fine\n", "a command after clearing up")
        result = await other.run("head -c 60000000 /dev/zero > /x && sleep 0.3 && rm /x", timeout=PATIENCE)
        expect(result.ok, "a sandbox without that limit should not notice")


@needs(Feature.LIMIT_DISK)
async def check_disk_limit_counts_small_and_unnamed_files(provider: Provider) -> None:
    """Thousands of small files, empty ones too, and files that were removed but are held open, are counted."""
    # slowly enough to be stopped before it is so much that the sandbox itself has to go
    small = "mkdir /s; i=0; while :; do echo x > /s/$i; i=$((i+1)); [ $((i % 500)) = 0 ] && sleep 0.02; done"
    empty = "mkdir /e; cd /e; n=0; while :; do n=$((n+1)); seq -f $n-%g 500 | xargs touch; sleep 0.02; done"
    removed = "exec 3>/gone; rm /gone; head -c 120000000 /dev/zero >&3; sleep 60"
    for what, script in (("small files", small), ("empty files", empty), ("a removed file", removed)):
        async with fresh(provider, spec(limits=Limits(disk_mb=20))) as box:
            _expect_ended_by(await box.run(script, timeout=40), "disk", f"a command that fills the disk with {what}")


@needs(Feature.LIMIT_DISK)
async def check_disk_limit_counts_only_what_is_written(provider: Provider) -> None:
    """Holes, further names of a file, what was there before, and /dev/shm do not count."""
    async with fresh(provider, spec(limits=Limits(disk_mb=40))) as box:
        await sh(box, "truncate -s 5G /hole; head -c 10000000 /dev/zero > /f; mkdir /d")
        await sh(box, "i=0; while [ $i -lt 100 ]; do ln /f /d/$i; i=$((i+1)); done")
        await sh(box, "head -c 50000000 /dev/zero > /dev/shm/x; sleep 0.5; echo fine")


@needs(Feature.LIMIT_DISK, Feature.FORK)
async def check_a_fork_has_the_limits_of_its_source(provider: Provider) -> None:
    """A fork may write as much again as its source could, and no more."""
    async with fresh(provider, spec(limits=Limits(disk_mb=40))) as box:
        await sh(box, "head -c 30000000 /dev/zero > /f")
        await box.stop()
        async with closing(await box.fork()) as fork:
            await sh(fork, "head -c 30000000 /dev/zero > /g; sleep 0.3")
            result = await fork.run("head -c 100000000 /dev/zero > /h; sleep 60", timeout=PATIENCE)
            _expect_ended_by(result, "disk", "a command that fills the fork's disk")


@needs(Feature.LIMIT_FILES)
async def check_open_files_and_the_size_of_a_file_are_bounded(provider: Provider) -> None:
    """A process opens at most `open_files`, writes no file larger than `file_mb`, and cannot raise either."""
    async with fresh(provider, spec(limits=Limits(open_files=100, file_mb=5))) as box:
        many = await box.run("paste $(yes /dev/null | head -n 200)", timeout=PATIENCE)
        expect("open files" in many.stderr, f"200 files at once should be too many of 100; it said {many.stderr!r}")
        await sh(box, "paste $(yes /dev/null | head -n 50)")
        big = await box.run("head -c 20000000 /dev/zero > /f", timeout=PATIENCE)
        expect(not big.ok, "writing 20 MB to a file should fail at 5 MB")
        expect(int(await sh(box, "stat -c %s /f")) <= 5 << 20, "the file should not have grown over 5 MB")
        raised = await box.run("ulimit -n 200 || ulimit -f 100000", timeout=PATIENCE)
        expect(not raised.ok, "a process should not raise its own limits")


@needs(Feature.LIMIT_OUTPUT)
async def check_output_limit_ends_what_writes_too_much(provider: Provider) -> None:
    """All commands together write `output_mb`, kept or not; beyond, they are killed, and the next end at once."""
    async with fresh(provider, spec(limits=Limits(output_mb=2))) as box, fresh(provider) as other:
        part = await box.run("head -c 900000 /dev/zero; head -c 900000 /dev/zero >&2", timeout=PATIENCE, output_limit=9)
        expect(part.ok, "1.8 MB should fit into 2 MB")
        mark = new_mark()
        waiting = asyncio.ensure_future(box.run(["sleep", mark], timeout=PATIENCE))
        _expect_ended_by(await box.run("yes", timeout=PATIENCE, output_limit=0), "output", "a command without end")
        _expect_ended_by(await waiting, "output", "another, which waited beside it")
        for _ in range(2):
            _expect_ended_by(await box.run("touch /ran", timeout=PATIENCE), "output", "the next command")
            await box.stop()
            await box.start()
        with expect_raises("reading what a command that should not run makes", FileNotFoundError):
            await box.read("/ran")
        await box.write("/file", bytes(3 * MIB))
        expect_equal(len(await box.read("/file")), 3 * MIB, "bytes of a file, which are no output")
        expect(len(await box.pull("/file")) > 3 * MIB, "an archive is no output either")
        result = await other.run("head -c 4000000 /dev/zero", timeout=PATIENCE)
        expect(result.ok, "a sandbox without that limit should not notice")


@needs(Feature.LIMIT_OUTPUT)
async def check_output_limit_counts_what_children_write_after_their_command(provider: Provider) -> None:
    """A child that outlives its command is counted as well, and killed with everything else."""
    async with fresh(provider, spec(limits=Limits(output_mb=1))) as box:
        mark = new_mark()
        await sh(box, "mkfifo /go; (read x < /go; exec yes) & :")
        waiting = asyncio.ensure_future(box.run(f"echo > /go; sleep {mark}", timeout=PATIENCE))
        _expect_ended_by(await waiting, "output", "a command beside a child that writes without end")


@needs(Feature.LIMIT_OUTPUT, Feature.FORK)
async def check_a_fork_has_an_output_of_its_own(provider: Provider) -> None:
    """What a sandbox wrote does not count against its forks, which are bounded as it was."""
    async with fresh(provider, spec(limits=Limits(output_mb=1))) as box:
        _expect_ended_by(await box.run("yes", timeout=PATIENCE), "output", "a command without end")
        await box.stop()
        async with closing(await box.fork()) as fork:
            expect_equal(await sh(fork, "echo fine"), "fine\n", "a command in the fork")
            _expect_ended_by(await fork.run("yes", timeout=PATIENCE), "output", "a command without end in the fork")


@needs(Feature.LIMIT_PIDS, Feature.LIMIT_MEMORY, Feature.LIMIT_CPU, Feature.LIMIT_DISK)
async def check_every_limit_at_once(provider: Provider) -> None:
    """A sandbox with all limits works like any other, and many of them at a time."""
    limits = Limits(cpus=0.5, memory_mb=256, pids=64, disk_mb=100, open_files=256, file_mb=50)

    async def play(number: int) -> None:
        async with fresh(provider, spec(limits=limits)) as box:
            await box.write("/note", b"%d" % number)
            expect_equal(await sh(box, "cat /note"), str(number), "a file of a limited sandbox")

    await asyncio.gather(*(play(number) for number in range(8)))


def _expect_ended_by(result: ProgramResult, wanted: str | None, what: str) -> None:
    expect_equal(result.ended_by, wanted, f"`ended_by` of {what} (exit code {result.exit_code})")
