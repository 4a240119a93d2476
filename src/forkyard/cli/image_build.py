"""`forkyard image build`: a Dockerfile becomes an image of a provider's store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer

from forkyard.cli.options import Provider, option, pairs
from forkyard.cli.output import complain, say
from forkyard.errors import ConfigError
from forkyard.image import BuildOptions, build, tag
from forkyard.sandbox import NO_NETWORK, PUBLIC, ImageProvider, Network, image_provider
from forkyard.sandbox.registry import DEFAULT_PROVIDER, make_provider

_SECRET_BYTES = 512 * 1024


def build_(  # noqa: PLR0913 - the options of a command line
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The build context.")],
    name: Annotated[str, option("-t", "--tag", metavar="NAME", help="What a FROM calls the image.")],
    file: Annotated[Path | None, option("-f", "--file", metavar="FILE", help="[DIR/Dockerfile]")] = None,
    target: Annotated[str, option("--target", metavar="STAGE", help="The stage to build. [the last]")] = "",
    build_args: Annotated[list[str] | None, option("--build-arg", metavar="K=V", help="A value for an ARG.")] = None,
    secrets: Annotated[
        list[str] | None,
        option("--secret", metavar="id=ID,src=FILE", help="For RUN --mount=type=secret; env=NAME instead of src."),
    ] = None,
    network: Annotated[
        str, option("--network", metavar="none|public|HOST,...", help="What the RUNs may reach.")
    ] = "public",
    base: Annotated[str | None, option("--base", metavar="IMAGE", help="Stands in for what the FROMs name.")] = None,
    no_cache: Annotated[bool, option("--no-cache", help="Run every step again.")] = False,
    timeout: Annotated[float | None, option("--timeout", metavar="SECONDS", help="Of the whole build.")] = None,
    provider: Provider = DEFAULT_PROVIDER,
) -> None:
    """Build the image of a Dockerfile; one of the same name is replaced."""
    options = BuildOptions(
        file=file,
        target=target,
        arguments=pairs(build_args or (), "--build-arg"),
        secrets=_secrets(secrets or ()),
        base=base,
        network=_network(network),
        timeout=timeout,
        fresh=no_cache,
        on_step=complain,
    )
    asyncio.run(_build(provider, directory, name, options))


@asynccontextmanager
async def image_store(provider: str) -> AsyncIterator[ImageProvider]:
    """The store of a provider's images, by the provider's name. Raises ConfigError for one that keeps none."""
    async with make_provider(provider) as made:
        yield image_provider(made)


async def _build(provider: str, directory: Path, name: str, options: BuildOptions) -> None:
    async with image_store(provider) as store:
        built = await build(store, directory, options)
        say((await tag(store, built, name)).name)


def _network(text: str) -> Network:
    if text in ("none", "public"):
        return PUBLIC if text == "public" else NO_NETWORK
    return Network("allowlist", tuple(text.split(",")))


def _secrets(texts: Iterable[str]) -> dict[str, bytes]:
    """The bytes of each secret by its id. Raises ConfigError for one that cannot be read."""
    found: dict[str, bytes] = {}
    for text in texts:
        fields = dict(field.partition("=")[::2] for field in text.split(","))
        name = fields.pop("id", "")
        kind = fields.pop("type", "file")
        source, variable = fields.pop("src", fields.pop("source", None)), fields.pop("env", None)
        if not name or fields or kind not in ("file", "env") or (source is not None and variable is not None):
            raise ConfigError(f"--secret {text}: write id=NAME,src=FILE or id=NAME,env=VARIABLE")
        found[name] = _from_variable(variable or name) if source is None else _from_file(Path(source))
    return found


def _from_variable(name: str) -> bytes:
    if name not in os.environ:
        raise ConfigError(f"--secret: the variable {name} is not set: set it, or give src=FILE")
    return os.environb[os.fsencode(name)]


def _from_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_SECRET_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--secret: {path} cannot be read: {error.strerror}") from error
    if len(data) > _SECRET_BYTES:
        raise ConfigError(f"--secret: {path} is larger than {_SECRET_BYTES} bytes: give a smaller file")
    return data
