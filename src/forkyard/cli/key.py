"""`forkyard key`: the API keys of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from forkyard.cli.options import option
from forkyard.cli.output import columns, complain, say, utc
from forkyard.errors import ConfigError
from forkyard.sandbox import default_home

if TYPE_CHECKING:
    from forkyard.server.keys import Keys

app = typer.Typer(help="Make, list and revoke the API keys of the server.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="What you call the key.")]


@app.command()
def create(
    name: Name,
    description: Annotated[str, option("--description", metavar="TEXT", help="What it is for.")] = "",
) -> None:
    """Make a key and print it, this once, for `eval "$(forkyard key create NAME)"`.

    It is printed as clients of Archil's API and S3 clients look for it in the environment.
    """
    from forkyard.server.pointing import key_exports
    from forkyard.server.state import TakenError

    with _keys() as keys:
        try:
            _, text = keys.create(name, description)
        except TakenError:
            raise ConfigError(f"there is a key {name!r}: choose another name, or revoke it") from None
        for line in key_exports(keys, text):
            say(line)
    complain("the key is shown this once")


@app.command("list")
def list_() -> None:
    """List the keys; of each no more than its end is known."""
    with _keys() as keys:
        rows = [(key.id, key.name, f"...{key.suffix}", utc(key.created), key.description) for key in keys.list()]
    say(columns(("ID", "NAME", "KEY", "CREATED", "DESCRIPTION"), rows))


@app.command()
def revoke(name: Annotated[str, typer.Argument(metavar="NAME", help="A key's name or id.")]) -> None:
    """Revoke a key: from the next request on it opens nothing."""
    with _keys() as keys:
        key = keys.get(name)
        if key is None or not keys.revoke(key.id):
            raise ConfigError(f"there is no key {name!r}: `forkyard key list` tells which there are")
    say(f"revoked {key.name}")


@contextmanager
def _keys() -> Iterator[Keys]:
    from forkyard.server.keys import opened_keys

    with opened_keys(default_home()) as keys:
        yield keys
