"""What `run` promises of arguments, environment, input, exit codes, directories and users."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forkyard.errors import SandboxError
from forkyard.sandbox.contract.promise import (
    PATIENCE,
    expect,
    expect_equal,
    expect_raises,
    fresh,
    needs,
    sh,
    spec,
)
from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import Feature

KIB = 1024
LIMIT_NAMES = ("131072", "131,072", "131071", "131,071", "128 KiB")  # with or without the final zero byte
NASTY = "  two  words \"q\" 'a' $HOME `id` \\n a=b;*\nline 2\ttab é 中 😀 "


async def check_run_returns_streams_and_code(provider: Provider) -> None:
    """A command's two streams, their sizes and its exit code come back, kept apart."""
    async with fresh(provider) as box:
        expect(isinstance(box, Sandbox), f"a sandbox should have every method of the protocol, {type(box)} has not")
        result = await box.run("printf out; printf error >&2; exit 3", timeout=PATIENCE)
        expect_equal(result.stdout_bytes, b"out", "standard output")
        expect_equal(result.stderr_bytes, b"error", "standard error")
        expect_equal((result.stdout_total, result.stderr_total), (3, 5), "bytes written to the streams")
        expect_equal(result.exit_code, 3, "exit code")
        expect_equal((result.timed_out, result.truncated, result.ok), (False, False, False), "timed_out, truncated, ok")


async def check_a_process_left_behind_is_no_quiet(provider: Provider) -> None:
    """A sandbox is not quiet while a detached process of an ended command lives."""
    async with fresh(provider) as box:
        await box.run("setsid sleep 60 </dev/null >/dev/null 2>&1 &", timeout=PATIENCE)
        expect_equal(await box.is_quiet(), False, "whether a sandbox with a process left behind is quiet")


@needs(Feature.PAUSE)
async def check_without_processes_it_is_quiet(provider: Provider) -> None:
    """A sandbox whose commands have all ended, and what they started, is quiet."""
    async with fresh(provider) as box:
        expect_equal(await box.is_quiet(), True, "whether a fresh sandbox is quiet")
        await box.run("sleep 60 </dev/null >/dev/null 2>&1 & kill $!; wait", timeout=PATIENCE)
        expect_equal(await box.is_quiet(), True, "whether a sandbox whose commands have ended is quiet")


async def check_argv_is_never_a_shell(provider: Provider) -> None:
    """A list of arguments arrives as it is: nothing is split, expanded or dropped."""
    words = ["a  b", "", "c'd", "$HOME", "*", "x;y", "é", '"q"', "back\\slash", "new\nline", "-n", "&&", "`id`"]
    async with fresh(provider) as box:
        result = await box.run(["printf", "[%s]", *words], timeout=PATIENCE)
        expect_equal(result.stdout, "".join(f"[{word}]" for word in words), "arguments as the command saw them")
        script = await box.run(["sh", "-c", 'printf "%s|" "$0" "$@"', "zero", "one two", ""], timeout=PATIENCE)
        expect_equal(script.stdout, "zero|one two||", "arguments of a script")


async def check_a_string_is_a_shell_script(provider: Provider) -> None:
    """A string is given to `sh -c`: variables, pipes and several lines work."""
    async with fresh(provider) as box:
        result = await box.run(
            "x='a  b'\nprintf '%s\\n' \"$x\" | cat; for i in 1 2; do printf $i; done", timeout=PATIENCE
        )
        expect_equal(result.stdout, "a  b\n12", "output of a script")


async def check_env_values_arrive_byte_for_byte(provider: Provider) -> None:
    """Environment values keep blanks, quotes, newlines and any size up to 100 KiB."""
    values = {"X": NASTY, "EMPTY": "", "LONG": "x" * (100 * KIB), "with_lower": "1"}
    async with fresh(provider) as box:
        for name, value in values.items():
            result = await box.run(["sh", "-c", f'printf %s "${{{name}-unset}}"'], values, timeout=PATIENCE)
            expect_equal(result.stdout, value, f"value of {name}")


async def check_env_is_added_to_the_sandboxes_own(provider: Provider) -> None:
    """`env` of a run is added to the environment of the sandbox, wins over it, and lasts for that run only."""
    async with fresh(provider, spec(env={"A": NASTY, "B": "sandbox"})) as box:
        result = await box.run('printf "%s|%s|%s" "$A" "$B" "$C"', {"B": "run", "C": "new"}, timeout=PATIENCE)
        expect_equal(result.stdout, f"{NASTY}|run|new", "A, B and C in the run")
        expect_equal(
            await sh(box, 'printf "%s|%s|%s" "$A" "$B" "$C"'), f"{NASTY}|sandbox|", "A, B and C in the next run"
        )


async def check_an_oversized_argument_is_refused(provider: Provider) -> None:
    """An argument or environment value of 150 KiB, more than the kernel takes, is an error naming the limit."""
    long = "x" * (150 * KIB)
    async with fresh(provider) as box:
        with expect_raises("an environment value of 150 KiB", ValueError, SandboxError) as caught:
            await box.run(["true"], {"X": long}, timeout=PATIENCE)
        caught.expect_named(*LIMIT_NAMES)
        with expect_raises("an argument of 150 KiB", ValueError, SandboxError) as caught:
            await box.run(["true", long], timeout=PATIENCE)
        caught.expect_named(*LIMIT_NAMES)
        expect_equal(await sh(box, "echo fine"), "fine\n", "the next command")


async def check_an_empty_command_raises_value_error(provider: Provider) -> None:
    """No arguments at all, or one with a NUL byte, raise ValueError, and the sandbox goes on."""
    async with fresh(provider) as box:
        for argv in ([], ["echo", "a\0b"]):
            with expect_raises(f"the command {argv}", ValueError):
                await box.run(argv, timeout=PATIENCE)
        expect_equal(await sh(box, "echo fine"), "fine\n", "the next command")


async def check_stdin_reaches_the_command(provider: Provider) -> None:
    """300 KiB of input arrive unchanged and are followed by end of file."""
    data = bytes(range(256)) * (300 * KIB // 256)
    async with fresh(provider) as box:
        result = await box.run(["cat"], stdin=data, timeout=PATIENCE)
        expect(
            result.stdout_bytes == data, f"cat should return its {len(data)} bytes of input, got {result.stdout_total}"
        )
        expect(not result.timed_out, "cat should see the end of its input, it waited for more")


async def check_stdin_may_be_left_unread(provider: Provider) -> None:
    """A command that does not read its input is not disturbed by it."""
    async with fresh(provider) as box:
        result = await box.run("echo done", stdin=b"x" * (300 * KIB), timeout=PATIENCE)
        expect_equal((result.stdout, result.exit_code), ("done\n", 0), "output and exit code")


async def check_stdin_is_at_its_end_by_default(provider: Provider) -> None:
    """Without input a command that reads sees end of file at once; the caller's own input is never read."""
    async with fresh(provider) as box:
        with _own_stdin_holds(b"SECRET\n") as left:
            result = await box.run("n=$(cat | wc -c); read x; echo $((n)) rc=$?", timeout=5)
            remaining = left()
        expect_equal((result.stdout, result.timed_out), ("0 rc=1\n", False), "bytes read and code of `read`")
        expect_equal(remaining, b"SECRET\n", "what is left of the caller's own input")


@contextmanager
def _own_stdin_holds(data: bytes) -> Iterator[Callable[[], bytes]]:
    """Make this process's standard input an open, silent pipe holding `data`; yields what tells how much is left."""
    reading, writing = os.pipe()
    os.write(writing, data)
    kept = os.dup(0)
    os.dup2(reading, 0)
    try:
        yield lambda: os.read(reading, len(data))
    finally:
        os.dup2(kept, 0)
        for fd in (reading, writing, kept):
            os.close(fd)


async def check_exit_codes_arrive(provider: Provider) -> None:
    """Exit codes from 0 to 255 arrive as they are, those a shell uses for signals too."""
    async with fresh(provider) as box:
        for code in (0, 1, 2, 63, 64, 124, 125, 126, 127, 128, 129, 137, 139, 143, 254, 255):
            result = await box.run(["sh", "-c", f"exit {code}"], timeout=PATIENCE)
            expect_equal(result.exit_code, code, f"exit code of `exit {code}`")


async def check_death_by_signal_is_a_negative_code(provider: Provider) -> None:
    """A command ended by a signal has its negative number as exit code, and is no timeout however fast it dies."""
    async with fresh(provider) as box:
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
            result = await box.run(["sh", "-c", f"kill -{number.value} $$"], timeout=PATIENCE)
            expect_equal(
                (result.exit_code, result.timed_out), (-number, False), f"exit code and timed_out of {number.name}"
            )
            expect_equal(result.signal, number, "signal")


async def check_missing_command_is_127(provider: Provider) -> None:
    """A command that does not exist exits 127, however it is named, and the sandbox goes on."""
    async with fresh(provider) as box:
        await box.write("plain", b"")
        for command in ("no-such-command-here", "/no/such/command", "./no-such", "./plain/below", f"./{'x' * 300}"):
            result = await box.run([command, "x"], timeout=PATIENCE)
            expect_equal(result.exit_code, 127, f"exit code of {command}")
        expect_equal((await box.run("no-such-command-here", timeout=PATIENCE)).exit_code, 127, "exit code in a script")
        expect_equal(await sh(box, "echo fine"), "fine\n", "the next command")


async def check_not_executable_is_126(provider: Provider) -> None:
    """A file without exec bit, a directory, or a file no system can execute exits 126, and the sandbox goes on."""
    async with fresh(provider) as box:
        await box.write("tools/plain.sh", b"#!/bin/sh\necho ran\n")
        await box.write("tools/garbage", b"\x00\x01\x02 no program\n", mode=0o755)
        for command in ("./tools/plain.sh", "./tools", "./tools/garbage"):
            result = await box.run([command], timeout=PATIENCE)
            expect_equal(result.exit_code, 126, f"exit code of {command}")
        expect_equal(await sh(box, "echo fine"), "fine\n", "the next command")


async def check_cwd_is_honoured(provider: Provider) -> None:
    """A relative `cwd` is taken from the working directory, an absolute one from the root; blanks are no matter."""
    async with fresh(provider) as box:
        await box.write("one/two/here", b"relative")
        await box.write("/srv/my work/here", b"absolute")
        expect_equal(await sh(box, "cat here", cwd="one/two"), "relative", "file in the relative cwd")
        expect_equal(await sh(box, "cat ../one/two/here", cwd="one"), "relative", "file beside the relative cwd")
        expect_equal(await sh(box, "cat here", cwd="/srv/my work"), "absolute", "file in the absolute cwd")
        expect_equal(await sh(box, "cat one/two/here"), "relative", "file from the working directory afterwards")


async def check_workdir_is_where_commands_and_paths_start(provider: Provider) -> None:
    """The sandbox's working directory is where commands start and what relative paths are taken from."""
    async with fresh(provider, spec(workdir="/srv/my work")) as box:
        await box.write("sub/file", b"content")
        expect_equal(await box.read("/srv/my work/sub/file"), b"content", "the file by its absolute path")
        expect_equal(await sh(box, "cat sub/file"), "content", "the file as a command sees it")
        expect_equal(await sh(box, "cat file", cwd="sub"), "content", "the file with a relative cwd")


async def check_missing_cwd_is_an_error_naming_it(provider: Provider) -> None:
    """A missing `cwd` raises FileNotFoundError naming it, one that is a file NotADirectoryError; no command fails."""
    async with fresh(provider) as box:
        await box.write("file", b"")
        for cwd, error in (
            ("no/such/dir", FileNotFoundError),
            ("/no-such-dir", FileNotFoundError),
            ("file", NotADirectoryError),
        ):
            with expect_raises(f"cwd {cwd}", error) as caught:
                await box.run(["true"], cwd=cwd, timeout=PATIENCE)
            caught.expect_named(cwd)
        expect_equal(await sh(box, "echo fine"), "fine\n", "the next command")


async def check_user_is_honoured_or_refused(provider: Provider) -> None:
    """A command runs as the user asked for or is refused with ValueError; it never runs as another."""
    async with fresh(provider) as box:
        for user in ("65534", "1", "0"):
            try:
                result = await box.run(["id", "-u"], user=user, timeout=PATIENCE)
            except ValueError:
                continue
            expect_equal(result.stdout.strip(), user, f"id of a command run as {user}")


async def check_unknown_user_raises_value_error(provider: Provider) -> None:
    """A user that does not exist is a ValueError naming it."""
    async with fresh(provider) as box:
        with expect_raises("an unknown user", ValueError) as caught:
            await box.run(["true"], user="no-such-user-here", timeout=PATIENCE)
        caught.expect_named("no-such-user-here")


@needs(Feature.USERS)
async def check_commands_run_as_any_user(provider: Provider) -> None:
    """Commands run as a user given by name or number, without root's rights, and root stays the default."""
    async with fresh(provider) as box:
        await box.write("secret", b"root only", mode=0o600)
        expect_equal(await sh(box, "id -u"), "0\n", "id by default")
        for user, wanted in (("65534", "65534"), ("nobody", "65534"), ("65534:1", "65534"), ("root", "0")):
            expect_equal((await sh(box, "id -u", user=user)).strip(), wanted, f"id of a command run as {user}")
        expect_equal((await sh(box, "id -g", user="65534:1")).strip(), "1", "group of a command run as 65534:1")
        denied = await box.run(["cat", "secret"], user="65534", timeout=PATIENCE)
        expect(not denied.ok, "a user should not read a file only root may read, it did")
    async with fresh(provider, spec(user="65534")) as box:
        expect_equal(await sh(box, "id -u"), "65534\n", "id in a sandbox made with user 65534")
        expect_equal(await sh(box, "id -u", user="0"), "0\n", "id when a run asks for root")


async def check_commands_run_side_by_side(provider: Provider) -> None:
    """16 commands in one sandbox run at the same time, and each result is its own."""
    count = 16
    meet = (
        f'touch "at.$N"; while [ "$(ls -d at.* | wc -l)" -lt {count} ]; do sleep 0.02; done; printf %s "$N"; exit "$N"'
    )
    async with fresh(provider) as box:
        runs = [box.run(meet, {"N": str(n)}, timeout=2 * PATIENCE) for n in range(count)]
        results = await asyncio.gather(*runs)
        got = [(result.stdout, result.exit_code, result.timed_out) for result in results]
        expect_equal(got, [(str(n), n, False) for n in range(count)], "output, exit code and timed_out of each")
