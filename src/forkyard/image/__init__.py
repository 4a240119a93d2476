"""Images: built from a Dockerfile on forks, pulled, imported from archives, or made of Debian's packages."""

from forkyard.image.building import BuildError, BuiltImage, base_images, build, check_build
from forkyard.image.debian import bootstrap
from forkyard.image.dockerfile import parse_dockerfile, read_dockerfile
from forkyard.image.importer import ImportedImage, import_archive
from forkyard.image.naming import tag
from forkyard.image.oci import (
    LAYER_PREFIX,
    Credentials,
    ImageSourceError,
    InstalledImage,
    ensure_image,
    export,
    find_image,
    parse_reference,
    prune,
    pull,
    push,
    ways_in,
)
from forkyard.image.options import BuildOptions
from forkyard.image.plan import BUILD_PREFIX, CACHE_PREFIX

__all__ = [
    "BUILD_PREFIX",
    "CACHE_PREFIX",
    "LAYER_PREFIX",
    "BuildError",
    "BuildOptions",
    "BuiltImage",
    "Credentials",
    "ImageSourceError",
    "ImportedImage",
    "InstalledImage",
    "base_images",
    "bootstrap",
    "build",
    "check_build",
    "ensure_image",
    "export",
    "find_image",
    "import_archive",
    "parse_dockerfile",
    "parse_reference",
    "prune",
    "pull",
    "push",
    "read_dockerfile",
    "tag",
    "ways_in",
]
