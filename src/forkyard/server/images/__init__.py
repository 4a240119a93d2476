"""Images over HTTP: pulled by reference, known by an id that sandboxes are created from."""

from forkyard.server.images.registry import Image, Images

__all__ = ["Image", "Images"]
