"""An image with the package harbor-rewardkit in it: Debian 13's Python, and wheels, both kept for later test runs."""

from __future__ import annotations

import platform
import sys
import tempfile
from pathlib import Path

from forkyard.image import BuildOptions, build, import_archive, tag
from forkyard.sandbox import ImageConfig
from forkyard.sandbox.local import LocalProvider
from tests.support.trixie import KEPT, had, python_root

PINNED = ("harbor-rewardkit==0.2.3", "litellm==1.110.2", "pip==25.3")
WHEELS = KEPT / "rewardkit-0.2.3"
# What a first import compiles is compiled once, in the image.
DOCKERFILE = f"""\
FROM rewardkit-base:test
RUN --mount=type=bind,source=wheels,target=/wheels \
    python3 $(echo /wheels/pip-*.whl)/pip install --no-index --find-links /wheels --no-compile --break-system-packages \
    --root-user-action ignore {PINNED[0]} \
 && LITELLM_LOCAL_MODEL_COST_MAP=True rewardkit --help
WORKDIR /app
"""


async def make_rewardkit_image(local: LocalProvider, name: str) -> None:
    """Make the image `name`; skips the test where Debian's packages or PyPI's cannot be had, and says why."""
    root = python_root()
    if not WHEELS.exists():
        _fetch()
    await import_archive(local, root, "rewardkit-base:test", ImageConfig())
    with tempfile.TemporaryDirectory() as directory:
        dockerfile = Path(directory) / "Dockerfile"
        dockerfile.write_text(DOCKERFILE)
        await tag(local, await build(local, WHEELS, BuildOptions(dockerfile)), name)


def _fetch() -> None:
    with tempfile.TemporaryDirectory(dir=KEPT, prefix="rewardkit-") as directory:
        whole = Path(directory) / "whole"
        machine = platform.machine()
        platforms = [f"--platform=manylinux{version}_{machine}" for version in ("2014", "_2_17", "_2_28")]
        options = ["--quiet", "--only-binary=:all:", "--python-version=3.13", *platforms, f"--dest={whole / 'wheels'}"]
        had([sys.executable, "-m", "pip", "download", *options, *PINNED], "PyPI's packages cannot be had")
        try:
            whole.rename(WHEELS)
        except OSError:  # another run was faster
            if not WHEELS.exists():
                raise
