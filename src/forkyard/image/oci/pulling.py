"""Images by reference: found in the store, or pulled into it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, suppress

from forkyard.errors import ConfigError
from forkyard.image.disks import held
from forkyard.image.oci.blob import Blob
from forkyard.image.oci.documents import choose, digest_of, is_index, read_config, read_document, read_manifest
from forkyard.image.oci.downloads import downloaded
from forkyard.image.oci.errors import ImageSourceError
from forkyard.image.oci.install import InstalledImage, Recipe, install
from forkyard.image.oci.reference import DEBIAN, Reference, parse_reference
from forkyard.image.oci.registry import Registry, open_registry
from forkyard.image.oci.settings import Credentials
from forkyard.sandbox import ImageInfo, ImageProvider, ImageStore
from forkyard.values import one_line

_NO_RELEASE = "latest"


async def pull(
    store: ImageProvider, text: str, *, refresh: bool = False, known: Credentials | None = None
) -> InstalledImage:
    """The image a reference names; a registry is asked when the store has none of that name, or to `refresh` it.

    `known` is who asks; without it, whoever docker's configuration says.

    Raises ConfigError for a reference or setting that is wrong, and ImageSourceError when the registry cannot be
    reached, does not have it, or gives something that is refused.
    """
    reference = parse_reference(text)
    async with held(store, reference.name):
        if not refresh and (found := await store.image(reference.name)) is not None:
            return InstalledImage(found.name, found.config, found.created)
        async with await open_registry(reference, known) as registry:
            return await install(store, await _recipe(registry, reference))


async def _recipe(registry: Registry, reference: Reference) -> Recipe:
    what = reference.name
    text = await registry.manifest(reference.asked)
    document = read_document(text, f"the manifest of {what}")
    if is_index(document):
        chosen = choose(document, what)
        text = await registry.manifest(chosen.digest)
        document = read_document(text, f"the manifest of {what}")
    manifest = read_manifest(document, what)
    config = read_config(await registry.document(manifest.config), len(manifest.layers), what)

    def fetch(number: int) -> AbstractAsyncContextManager[Blob]:
        return downloaded(registry, manifest.layers[number])

    return Recipe(reference.name, what, config, fetch, digest_of(text))


async def find_image(store: ImageStore, name: str) -> ImageInfo | None:
    """An image of the store by the name it has there, or by another spelling of the reference it was pulled by."""
    if (found := await store.image(name)) is not None:
        return found
    with suppress(ConfigError):
        return await store.image(parse_reference(name).name)
    return None


async def ensure_image(store: ImageProvider, name: str) -> ImageInfo:
    """The image a FROM or a task names: of the store, or else pulled. ConfigError, with the mends, without one."""
    if (found := await find_image(store, name)) is not None:
        return found
    try:
        return await pull(store, name)
    except (ConfigError, ImageSourceError) as error:
        shown = one_line(name)
        if await store.image("host") is None:  # a store of another's, which has its own ways in
            raise ConfigError(
                f"the provider {store.name} has no image {shown!r}, and it could not be pulled: {error}"
            ) from error
        raise ConfigError(
            f"there is no image {shown!r}, and it could not be pulled: {error}. {_by_pull(shown)}{ways_in(shown)}"
            ", or play from another image that is there: `forkyard image ls` names them, `--base NAME` takes one, and "
            "`--base host` this machine's own /usr"
        ) from error


def ways_in(name: str) -> str:
    """How else an image comes in than from a registry, for somebody who waits for the one of that name."""
    saved = f"Import what `docker save {name}` wrote elsewhere, or a root file system,"
    imported = f"{saved} by `forkyard image import ARCHIVE {name}`"
    reference = _reference(name)
    if reference is None or reference.tag == _NO_RELEASE or not DEBIAN.fullmatch(reference.name):
        return imported
    return f"{imported}, make it of Debian's packages by `forkyard image bootstrap {reference.name}`"


def _by_pull(name: str) -> str:
    """Where an image would come from, for somebody whose network or mirror may be mended."""
    reference = _reference(name)
    if reference is None:
        return ""
    return f"It would come from {reference.registry}, by `forkyard image pull {name}`. "


def _reference(name: str) -> Reference | None:
    with suppress(ConfigError):
        return parse_reference(name)
    return None
