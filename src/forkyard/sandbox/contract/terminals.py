"""What `spawn` promises of terminals."""

from __future__ import annotations

from forkyard.sandbox.contract.processes import heard, whole, within
from forkyard.sandbox.contract.promise import (
    expect,
    expect_equal,
    expect_gone,
    expect_raises,
    fresh,
    needs,
    new_mark,
)
from forkyard.sandbox.protocol import Provider
from forkyard.sandbox.values import Feature, Terminal

_USER = "nobody"


@needs(Feature.TERMINALS)
async def check_a_terminal_is_one_to_the_command(provider: Provider) -> None:
    """With a terminal all three streams are one of the sandbox's own, of the size asked for, and its session's."""
    script = (
        "for fd in 0 1 2; do test -t $fd || echo $fd is none; done; name=$(tty); test -c $name || echo $name is none; "
        "stty size; echo err >&2; echo tty > /dev/tty; exit 3"
    )
    async with fresh(provider) as box:
        for user in (None, _USER) if Feature.USERS in provider.features else (None,):
            process = await box.spawn(script, terminal=Terminal(91, 33), user=user)
            out, err, result = await whole(process)
            expect_equal((out, err), (b"33 91\r\nerr\r\ntty\r\n", b""), "what came through a terminal")
            expect_equal((result.exit_code, result.stdout_total), (3, len(out)), "exit code and bytes counted")
        out, _, _ = await whole(await box.spawn("test -t 0 || echo none"))
        expect_equal(out, b"none\n", "standard input of a process without a terminal")


@needs(Feature.TERMINALS)
async def check_a_terminal_can_be_resized(provider: Provider) -> None:
    """A new size is seen, and the command is told of it by its signal; a size that is none is a ValueError."""
    async with fresh(provider) as box:
        script = "trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.05; done"
        process = await box.spawn(script, terminal=Terminal())
        await heard(process, b"ready\r\n")
        for cols, rows in ((0, 24), (80, 65_536)):
            with expect_raises(f"a terminal of {cols} x {rows}", ValueError):
                await process.resize(cols, rows)
        await process.resize(120, 50)
        out, _, result = await whole(process)
        expect_equal((out, result.exit_code), (b"50 120\r\n", 4), "size told and exit code")
        await process.resize(100, 40)  # it has ended
        plain = await box.spawn("cat")
        with expect_raises("a new size without a terminal", ValueError):
            await plain.resize(80, 24)
        await plain.kill()


@needs(Feature.TERMINALS)
async def check_keys_of_a_terminal_act(provider: Provider) -> None:
    """A terminal echoes what is typed, Ctrl-C interrupts what runs at it, and the end of input is Ctrl-D."""
    async with fresh(provider) as box:
        process = await box.spawn("trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done",
                                  terminal=Terminal())  # fmt: skip
        await heard(process, b"ready\r\n")
        await process.write(b"\x03")
        out, _, result = await whole(process)
        expect(b"caught\r\n" in out and result.exit_code == 5, f"Ctrl-C should interrupt a command, it wrote {out!r}")
        process = await box.spawn("exec cat", terminal=Terminal())
        await process.write(b"typed\n")
        await heard(process, b"typed\r\ntyped\r\n")
        await process.close_stdin()
        expect_equal((await whole(process))[2].exit_code, 0, "exit code of a command whose input ended")


@needs(Feature.TERMINALS)
async def check_output_through_a_terminal_is_whole(provider: Provider) -> None:
    """All that is written to a terminal before the end comes through it, however slowly it is pulled."""
    wanted = "".join(f"{number}\r\n" for number in range(1, 30_001)).encode()
    async with fresh(provider) as box:
        out, _, result = await whole(await box.spawn("seq 30000", terminal=Terminal()))
        expect_equal((out, result.exit_code), (wanted, 0), "what came through a terminal")
        process = await box.spawn("echo last words", terminal=Terminal())
        await within(process.wait(), "the end of a process that is not read")
        expect_equal((await whole(process))[0], b"last words\r\n", "what was pulled after the end")


@needs(Feature.TERMINALS)
async def check_kill_ends_what_runs_at_a_terminal(provider: Provider) -> None:
    """`kill` ends the whole tree at a terminal, also what left it."""
    mark = new_mark()
    async with fresh(provider) as box:
        script = f"(setsid sleep {mark} &); trap '' HUP; sleep {mark} & echo begun; sleep {mark}"
        process = await box.spawn(script, terminal=Terminal())
        await heard(process, b"begun\r\n")
        await within(process.kill(), "the end of a process that was killed")
        expect_equal((await whole(process))[2].exit_code, -9, "exit code of a killed process")
        await expect_gone(box, mark, "what ran at a terminal")
