"""`forkyard image`: the images of a provider's store, and their ways in and out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from forkyard.cli.image_build import build_, image_store
from forkyard.cli.options import Provider, option, pairs
from forkyard.cli.output import columns, complain, say, utc
from forkyard.errors import ConfigError
from forkyard.image import (
    BUILD_PREFIX,
    CACHE_PREFIX,
    LAYER_PREFIX,
    ImageSourceError,
    bootstrap,
    export,
    import_archive,
    prune,
    pull,
    push,
    ways_in,
)
from forkyard.sandbox import ImageConfig
from forkyard.sandbox.registry import DEFAULT_PROVIDER
from forkyard.values import one_line

app = typer.Typer(help="Build, pull, import, list, export, push and remove images.", no_args_is_help=True)

app.command("build")(build_)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of an image.")]


@app.command("pull")
def pull_(
    reference: Annotated[str, typer.Argument(metavar="REF", help="For example debian:12 or ghcr.io/team/image:tag.")],
    refresh: Annotated[bool, option("--refresh", help="Ask the registry also when the image is here.")] = False,
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """Get an image from a registry; layers that are here already are not asked for."""
    asyncio.run(_pull(provider, reference, refresh))


@app.command("push")
def push_(
    name: Name,
    reference: Annotated[str | None, typer.Argument(metavar="[REF]", help="Where to. [its own name]")] = None,
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """Put an image into a registry, as one layer."""
    asyncio.run(_push(provider, name, reference))


@app.command("export")
def export_(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write.")],
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """Write an image as an archive that docker, podman and skopeo load."""
    asyncio.run(_export(provider, name, file))


@app.command("import")
def import_(
    archive: Annotated[
        Path,
        typer.Argument(metavar="ARCHIVE", help="A root file system as tar, or what `docker save` wrote."),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What a FROM calls it, for example debian:12.")],
    env: Annotated[list[str] | None, option("--env", metavar="K=V", help="A variable of its processes.")] = None,
    workdir: Annotated[str, option("--workdir", metavar="DIR", help="Where its processes start.")] = "/",
    user: Annotated[str, option("--user", metavar="USER", help="As whom its processes run. [root]")] = "",
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """Make an archive an image; one of the same name is replaced. An OCI layout is an image, too."""
    asyncio.run(
        _import(provider, archive, name, ImageConfig(env=pairs(env or (), "--env"), workdir=workdir, user=user))
    )


@app.command("bootstrap")
def bootstrap_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="debian:SUITE or debian:SUITE-slim.")],
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """Make a Debian of its packages, by mmdebstrap or debootstrap, where no registry can be reached."""
    asyncio.run(_bootstrap(provider, name))


@app.command()
def ls(
    everything: Annotated[bool, option("--all", help="Also results and steps of builds, and layers.")] = False,
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """List the images."""
    asyncio.run(_ls(provider, everything))


@app.command()
def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of images.")],
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """Remove images, with the layers nobody else needs; sandboxes made from them keep what they share."""
    asyncio.run(_rm(provider, names))


@app.command("prune")
def prune_(provider: Provider = DEFAULT_PROVIDER) -> None:
    """Remove layers of no image, images made for agent CLIs, and downloads left for a day, and say which."""
    asyncio.run(_prune(provider))


async def _pull(provider: str, reference: str, refresh: bool) -> None:
    async with image_store(provider) as store:
        try:
            image = await pull(store, reference, refresh=refresh)
        except ImageSourceError as err:
            raise ConfigError(f"{err}. {ways_in(one_line(reference))}") from err
    _made(image.name, image.notes)


async def _push(provider: str, name: str, reference: str | None) -> None:
    async with image_store(provider) as store:
        say(await push(store, name, reference))


async def _export(provider: str, name: str, file: Path) -> None:
    async with image_store(provider) as store:
        say(await export(store, name, file))


async def _import(provider: str, archive: Path, name: str, config: ImageConfig) -> None:
    async with image_store(provider) as store:
        image = await import_archive(store, archive, name, config)
    _made(image.name, image.notes)


async def _bootstrap(provider: str, name: str) -> None:
    async with image_store(provider) as store:
        image = await bootstrap(store, name)
    _made(image.name, image.notes)


def _made(name: str, notes: Sequence[str]) -> None:
    for note in notes:
        complain(note)
    say(name)


async def _ls(provider: str, everything: bool) -> None:
    async with image_store(provider) as store:
        images = await store.images()
    hidden = (BUILD_PREFIX, CACHE_PREFIX, LAYER_PREFIX)
    found = [image for image in images if everything or not image.name.startswith(hidden)]
    rows = [(image.name, image.config.user or "root", image.config.workdir, utc(image.created)) for image in found]
    say(columns(("NAME", "USER", "WORKDIR", "CREATED"), rows))


async def _rm(provider: str, names: list[str]) -> None:
    async with image_store(provider) as store:
        for name in names:
            await store.remove_image(name)
        await store.prune_images(LAYER_PREFIX)


async def _prune(provider: str) -> None:
    from forkyard.run.equipping import prune_equipped  # runs come with more than images are made of

    async with image_store(provider) as store:
        removed = [*await prune_equipped(store), *await prune(store)]
    for sentence in removed:
        say(sentence)
    if not removed:
        complain("nothing is unneeded")
