"""What goes wrong with images that come from elsewhere."""

from __future__ import annotations

from typing import ClassVar

from forkyard.errors import SandboxError
from forkyard.values import printable


class ImageSourceError(SandboxError):
    """A registry or an archive did not give an image, or gave one that is refused. Asking again changes nothing."""

    kind: ClassVar[str] = "image"
    lasting: ClassVar[bool] = True

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))
