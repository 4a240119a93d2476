"""An image with the package harbor-rewardkit in it: Debian 13's Python, and wheels, both kept for later test runs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from forkyard.image import BuildOptions, build, import_archive, tag
from forkyard.sandbox import ImageConfig
from forkyard.sandbox.local import LocalProvider

PINNED = ("harbor-rewardkit==0.2.3", "litellm==1.110.2", "pip==25.3")
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forkyard-tests" / "rewardkit-0.2.3"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DEBS = ("base-files", "bash", "coreutils", "dash", "python3")
# Debian's packages are only unpacked, which takes a tenth of what installing them does: no script of theirs is needed.
APT = """\
Dir::State "{0}/state";
Dir::State::status "{0}/status";
Dir::Cache "{0}/cache";
Dir::Etc::sourcelist "{0}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
"""
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
    if not KEPT.exists():
        _fetch()
    await import_archive(local, KEPT / "root.tar", "rewardkit-base:test", ImageConfig())
    with tempfile.TemporaryDirectory() as directory:
        dockerfile = Path(directory) / "Dockerfile"
        dockerfile.write_text(DOCKERFILE)
        await tag(local, await build(local, KEPT, BuildOptions(dockerfile)), name)


def _fetch() -> None:
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: Debian 13's Python cannot be had")
    if not KEYS.exists():
        pytest.skip(f"{KEYS} is missing (apt-get install debian-archive-keyring)")
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT.parent, prefix="rewardkit-") as directory:
        whole = Path(directory) / "whole"
        whole.mkdir()
        _wheels(whole / "wheels")
        _root(Path(directory), whole / "root.tar")
        try:
            whole.rename(KEPT)
        except FileExistsError:
            pass  # another run was faster
        except OSError:
            if not KEPT.exists():
                raise


def _wheels(to: Path) -> None:
    machine = platform.machine()
    platforms = [f"--platform=manylinux{version}_{machine}" for version in ("2014", "_2_17", "_2_28")]
    options = ["--quiet", "--only-binary=:all:", "--python-version=3.13", *platforms, f"--dest={to}"]
    _run([sys.executable, "-m", "pip", "download", *options, *PINNED], "PyPI's packages cannot be had")


def _root(work: Path, archive: Path) -> None:
    apt, root = work / "apt", work / "root"
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb [signed-by={KEYS}] http://deb.debian.org/debian trixie main\n")
    (apt / "apt.conf").write_text(APT.format(apt))
    missing = "Debian's packages cannot be had"
    _run(["apt-get", "-qq", "update", "--error-on=any"], missing, APT_CONFIG=str(apt / "apt.conf"))
    _run(["apt-get", "-qq", "-y", "--download-only", "install", *DEBS], missing, APT_CONFIG=str(apt / "apt.conf"))
    for deb in sorted((apt / "cache/archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (root / "etc/group").write_text("root:x:0:\n")
    options = ["--owner=0", "--group=0", "--numeric-owner", "--exclude=./usr/share/doc/*", "--exclude=./dev/*"]
    subprocess.run(["tar", "-C", root, *options, "-cf", archive, "."], check=True)


def _run(command: Sequence[str], missing: str, **variables: str) -> None:
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"{missing}: {(done.stderr or done.stdout)[-400:].strip()}")
