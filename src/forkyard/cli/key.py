"""`forkyard key`: the API keys of the server, and the pairs that open one disk to S3 clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from forkyard.cli.options import option
from forkyard.cli.output import columns, complain, say, utc
from forkyard.errors import ConfigError
from forkyard.sandbox import default_home

if TYPE_CHECKING:
    from forkyard.disk import Disks, KeyPair
    from forkyard.server.keys import Keys

app = typer.Typer(help="Make, list and revoke the keys of the server.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="What you call the key.")]


@app.command()
def create(
    name: Name,
    description: Annotated[str, option("--description", metavar="TEXT", help="What it is for.")] = "",
    disk: Annotated[
        str | None, option("--disk", metavar="DISK", help="Make a pair that opens this disk alone, to S3 clients.")
    ] = None,
) -> None:
    """Make a key and print it, this once, for `eval "$(forkyard key create NAME)"`.

    It is printed as clients of Archil's API and S3 clients look for it in the environment. With --disk it is no API
    key, but a pair for S3 clients alone, which opens the objects of that disk and its branches.
    """
    from forkyard.server.pointing import key_exports, pair_exports
    from forkyard.server.state import TakenError

    if disk is not None and description:
        raise typer.BadParameter("a disk's pair has a name alone", param_hint="--description")
    taken = ConfigError(f"there is a key {name!r}: choose another name, or revoke it")
    with _keys() as keys, _disks() as disks:
        if keys.get(name) is not None or _pairs(disks, name):
            raise taken
        if disk is not None:
            lines = pair_exports(disks.access.add_pair(_id_of(disks, disk), name))
        else:
            try:
                lines = key_exports(keys, keys.create(name, description)[1])
            except TakenError:
                raise taken from None
        for line in lines:
            say(line)
    complain("the key is shown this once")


@app.command("list")
def list_() -> None:
    """List the keys; of an API key no more than its end is known. A disk's pair has its access key as its id."""
    with _keys() as keys, _disks() as disks:
        rows = [(key.id, key.name, f"...{key.suffix}", utc(key.created), "", key.description) for key in keys.list()]
        rows += [
            (pair.access_key, pair.nickname, "", utc(pair.created), disk, "")
            for pair, disk in disks.access.every_pair()
        ]
    say(columns(("ID", "NAME", "KEY", "CREATED", "DISK", "DESCRIPTION"), rows))


@app.command()
def revoke(name: Annotated[str, typer.Argument(metavar="NAME", help="A key's name or id.")]) -> None:
    """Revoke a key: from the next request on it opens nothing."""
    with _keys() as keys, _disks() as disks:
        key, pairs = keys.get(name), _pairs(disks, name)
        if (key is not None) + len(pairs) > 1:
            raise ConfigError(f"several keys are called {name!r}: name one by its id, which `forkyard key list` tells")
        done = keys.revoke(key.id) if key is not None else any(_removed(disks, pair) for pair in pairs)
    if not done:
        raise ConfigError(f"there is no key {name!r}: `forkyard key list` tells which there are")
    say(f"revoked {key.name if key is not None else pairs[0].nickname or pairs[0].access_key}")


def _pairs(disks: Disks, name: str) -> list[KeyPair]:
    """The pairs that this name or id means."""
    return [pair for pair, _ in disks.access.every_pair() if name and name in (pair.access_key, pair.nickname)]


def _removed(disks: Disks, pair: KeyPair) -> bool:
    return disks.access.remove_pair(pair.disk_id, pair.access_key)


def _id_of(disks: Disks, name: str) -> str:
    from forkyard.disk import DiskError

    found = disks.find(name)
    try:
        return (found or disks.get(name)).info.id
    except DiskError:
        text = f"there is no disk {name!r} here: an S3 client's CreateBucket makes one, and `POST /api/disks`"
        raise ConfigError(text) from None


@contextmanager
def _keys() -> Iterator[Keys]:
    from forkyard.server.keys import opened_keys

    with opened_keys(default_home()) as keys:
        yield keys


@contextmanager
def _disks() -> Iterator[Disks]:
    from forkyard.disk import Disks

    disks = Disks(default_home())
    try:
        yield disks
    finally:
        asyncio.run(disks.close())
