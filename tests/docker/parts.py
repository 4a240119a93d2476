"""What the tests of Docker share."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

from benchmarks.dockerd import Docker

BASE, DEBIAN = "base:1", "debian:bookworm-slim"


def containers(engine: Docker) -> list[dict[str, Any]]:
    """All containers of the Engine."""
    return list(json.loads(engine.call("GET", "/containers/json?all=1")))


def has_image(engine: Docker, name: str) -> bool:
    """Whether the Engine has an image of that name."""
    found = json.loads(engine.call("GET", "/images/json"))
    return any(name in (image["RepoTags"] or ()) for image in found)


def nameless_images(engine: Docker) -> list[str]:
    """The images of the Engine that have no name."""
    found = json.loads(engine.call("GET", "/images/json"))
    return [image["Id"] for image in found if not [tag for tag in image["RepoTags"] or () if tag != "<none>:<none>"]]


def killed_after(code: str, *arguments: str) -> list[str]:
    """The lines that a Python program says up to "ready"; then it is killed at once."""
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as said:
        lines = [line.strip() for line in iter(said.readline, "ready\n") if line]
    process.send_signal(signal.SIGKILL)
    process.wait()
    return lines
