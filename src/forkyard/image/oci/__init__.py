"""Images of others: pulled from registries, read from saved archives, pushed and exported. No daemon is needed."""

from forkyard.image.oci.archive import import_image_archive
from forkyard.image.oci.export import export, push
from forkyard.image.oci.install import LAYER_PREFIX, InstalledImage
from forkyard.image.oci.problem import ImageSourceError
from forkyard.image.oci.prune import prune
from forkyard.image.oci.pull import ensure_image, find_image, pull

__all__ = [
    "LAYER_PREFIX",
    "ImageSourceError",
    "InstalledImage",
    "ensure_image",
    "export",
    "find_image",
    "import_image_archive",
    "prune",
    "pull",
    "push",
]
