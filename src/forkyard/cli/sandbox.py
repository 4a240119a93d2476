"""`forkyard sandbox`: named sandboxes that stay on this machine between commands."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from forkyard.cli.options import Provider, option
from forkyard.cli.output import columns, complain, say, utc
from forkyard.errors import ConfigError
from forkyard.interrupt import Interrupt
from forkyard.sandbox import Sandbox, SandboxSpec, default_home, patch
from forkyard.sandbox.keeping import KeepsDisks, keep_policy, told
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.provider import YardProvider
from forkyard.sandbox.registry import DEFAULT_PROVIDER, make_provider
from forkyard.values import counted, one_line, printable

app = typer.Typer(help="Make, run, fork and remove named sandboxes.", no_args_is_help=True)

SERVED = "server-"
"""What the provider's names of a server's sandboxes begin with."""
Name = Annotated[str, typer.Argument(metavar="NAME", help="The sandbox's name.")]


@app.command()
def create(
    name: Name,
    image: Annotated[str, option("--image", metavar="IMAGE", help="The image it starts from.")] = "host",
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """Make a stopped sandbox."""
    asyncio.run(_create(provider, name, image))


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    name: Name,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run in it.")],
    provider: Provider = DEFAULT_PROVIDER,
) -> int:
    """Start a sandbox, run a command in it, and stop it, keeping what changed.

    Standard input is read to its end first, unless it is a terminal. The exit code is the command's.
    """
    command = command[1:] if command[0] == "--" else command
    stdin = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    return asyncio.run(_run(provider, name, command, stdin))


@app.command()
def fork(
    name: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The name of the copy.")],
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """Copy a stopped sandbox."""
    asyncio.run(_fork(provider, name, new))


@app.command()
def ls(provider: Provider = DEFAULT_PROVIDER) -> None:
    """List the sandboxes."""
    asyncio.run(_ls(provider))


@app.command()
def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names or ids.")],
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """Remove sandboxes; their forks keep what they share."""
    asyncio.run(_rm(provider, names))


@app.command()
def diff(
    name: Name,
    as_patch: Annotated[bool, option("--patch", help="Print a unified diff of text files instead.")] = False,
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """Tell what a stopped sandbox changed of the image or template it started from.

    A line is A, M or D (added, modified, deleted) and a path; a deleted directory stands for what was in it.
    """
    asyncio.run(_diff(provider, name, as_patch))


@app.command()
def du() -> None:
    """Tell the room sandboxes and images take in FORKYARD_HOME: their own, and what they share with others."""
    asyncio.run(_du())


@app.command()
def sweep(
    older_than: Annotated[
        str | None,
        option("--older-than", metavar="AGE", help="Also remove named sandboxes not used for so long, as 7d or 12h."),
    ] = None,
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """Remove what dead processes left behind, and say what it was. Never what runs, never an image.

    Disks of rollouts that were kept go by their policy (FORKYARD_KEEP_DAYS, FORKYARD_KEEP_GB; 0 forgets all of them).
    """
    asyncio.run(_sweep(provider, None if older_than is None else _seconds(older_than)))


async def _create(provider: str, name: str, image: str) -> None:
    async with make_provider(provider) as made:
        await _kept(await made.create(SandboxSpec(image=image, name=name)))
    say(name)


async def _fork(provider: str, name: str, new: str) -> None:
    async with make_provider(provider) as made:
        source = await made.open(name)
        await _kept(await source.fork(new))
    say(new)


async def _kept(sandbox: Sandbox) -> None:
    """Stop a new sandbox so that it stays, or take it away again."""
    try:
        await sandbox.stop()
    except BaseException:
        await sandbox.close()
        raise


async def _run(provider: str, name: str, command: list[str], stdin: bytes) -> int:
    code = 0
    with Interrupt() as interrupt:
        async with _started(provider, name) as sandbox:
            code = await _passed_through(sandbox, command, stdin)
    return code if interrupt.signal is None else 128 + interrupt.signal


async def _passed_through(sandbox: Sandbox, command: list[str], stdin: bytes) -> int:
    """Run a command with its output going to ours as it comes; the exit code a shell would give."""
    came = False

    def pass_on(stream: str, data: bytes) -> None:
        nonlocal came
        came = True
        out = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
        out.write(data)
        out.flush()

    result = await sandbox.run(command, stdin=stdin, on_output=pass_on)
    if not came:  # why a command could not start is said in the result alone
        pass_on("stderr", result.stderr_bytes)
    return 128 - result.exit_code if result.exit_code < 0 else result.exit_code


@asynccontextmanager
async def _started(provider: str, name: str) -> AsyncIterator[Sandbox]:
    async with make_provider(provider) as made:
        sandbox = await made.open(name)
        await sandbox.start()
        try:
            yield sandbox
        finally:
            await sandbox.stop()


async def _ls(provider: str) -> None:
    async with make_provider(provider) as made:
        found = await made.sandboxes()
        kept = await made.kept_disks() if isinstance(made, KeepsDisks) else []
    names = {box.id: box.name or box.id for box in found}
    served = _served(names.values())
    rows = [
        (
            names[box.id],
            box.state,
            box.image,
            "-" if box.parent is None else names.get(box.parent, box.parent),
            utc(box.created),
            served.get(names[box.id], "-"),
        )
        for box in found
    ]
    head = ("NAME", "STATE", "IMAGE", "PARENT", "CREATED", "SERVED AS")
    say(columns(head, rows) if served else columns(head[:-1], [row[:-1] for row in rows]))
    if kept:
        complain(f"kept beside these: {told(kept, keep_policy())}")


def _served(names: Iterable[str]) -> Mapping[str, str]:
    """What a server of this home, or a program that is its own, calls those that are its sandboxes."""
    if not any(name.startswith(SERVED) for name in names):
        return {}
    from forkyard.server.sandboxes.known import known_names

    return known_names(default_home())


async def _rm(provider: str, names: list[str]) -> None:
    async with make_provider(provider) as made:
        found = [await made.open(name) for name in names]
        for sandbox in found:
            await sandbox.close()


async def _diff(provider: str, name: str, as_patch: bool) -> None:
    async with make_provider(provider) as made:
        sandbox = await made.open(name)
        if as_patch:
            text = await patch(sandbox)
            sys.stdout.write(printable(text) if sys.stdout.isatty() else text)  # a file gets it as it is
            return
        for change in await sandbox.changes():
            say(f"{change.kind[0].upper()} {one_line(change.path)}")


async def _du() -> None:
    async with LocalProvider() as provider:
        found = await provider.usage()
    rows = [(use.name or use.id, use.kind, f"{use.own:,}", f"{use.shared:,}") for use in found]
    say(columns(("NAME", "KIND", "OWN", "SHARED"), rows))


def _seconds(age: str) -> float:
    """A number with a unit; ConfigError otherwise."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    if not re.fullmatch(r"\d{1,6}[smhdw]", age):
        raise ConfigError(f"--older-than {age}: expected a number and a unit, as 90s, 30m, 12h, 7d or 2w")
    return float(int(age[:-1]) * units[age[-1]])


async def _sweep(provider: str, older_than: float | None) -> None:
    async with make_provider(provider) as made:
        if older_than is not None and not isinstance(made, YardProvider):
            raise ConfigError(
                f"--older-than: the provider {provider} does not note when a sandbox was used: leave it out"
            )
        removed = await made.sweep()
        if older_than is not None and isinstance(made, YardProvider):
            removed += await made.sweep_unused(older_than)
        if isinstance(made, KeepsDisks) and (pruned := await made.prune_kept(keep_policy())):
            removed.append(f"{counted(len(pruned), 'kept disk')}: the policy keeps no more")
    for sentence in removed:
        say(sentence)
    if not removed:
        complain("nothing was left behind")
