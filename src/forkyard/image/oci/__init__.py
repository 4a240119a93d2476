"""Images of others: pulled from registries, read from saved archives, pushed and exported. No daemon is needed."""

from forkyard.image.oci.archive import import_image_archive
from forkyard.image.oci.errors import ImageSourceError
from forkyard.image.oci.exporting import export
from forkyard.image.oci.install import LAYER_PREFIX, InstalledImage
from forkyard.image.oci.pruning import prune
from forkyard.image.oci.pulling import ensure_image, find_image, pull, ways_in
from forkyard.image.oci.pushing import push
from forkyard.image.oci.reference import parse_reference
from forkyard.image.oci.settings import Credentials

__all__ = [
    "LAYER_PREFIX",
    "Credentials",
    "ImageSourceError",
    "InstalledImage",
    "ensure_image",
    "export",
    "find_image",
    "import_image_archive",
    "parse_reference",
    "prune",
    "pull",
    "push",
    "ways_in",
]
