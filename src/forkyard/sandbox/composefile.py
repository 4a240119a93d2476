"""Reading a compose file, as far as it has to be known before the program that plays it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError

MAIN = "main"
_OURS = ("MAIN_IMAGE_NAME", "PREBUILT_IMAGE_NAME")  # variables by which a file asks for the image that is given


def services_in(path: Path) -> dict[str, Mapping[str, Any]]:
    """The services a file names, with what it says of each. Raises ConfigError for one that is no compose file."""
    import yaml  # read for projects only

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as err:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(err).split())}") from err
    services = found.get("services") if isinstance(found, dict) else None
    if not isinstance(services, dict):
        raise ConfigError(f"{path} has no table `services`; it is what a compose file consists of")
    return {str(name): said if isinstance(said, dict) else {} for name, said in services.items()}


def brings_image(path: Path) -> bool:
    """Whether a file says itself what `main` is made of, and takes no image that is given to it."""
    said = services_in(path).get(MAIN, {})
    return "build" in said or ("image" in said and not any(name in str(said["image"]) for name in _OURS))
