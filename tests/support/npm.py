"""Packages of the npm registry, kept for later test runs, and a Node that is new enough for them."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.trixie import KEPT, had

NODE = "24.21.0"
OLDEST = (22, 21)
"""The first Node that heeds HTTPS_PROXY; Debian 12 has 18, Debian 13 has 20."""


_QUIET = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")


def packages(*names: str) -> Path:
    """A directory whose node_modules has these packages; skips the test where npm is missing, or they are."""
    kept = KEPT / f"npm-{sha256(' '.join(names).encode()).hexdigest()[:16]}"
    if not kept.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is missing (apt-get install npm)")
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT, prefix="npm-") as directory:
            whole = Path(directory) / "whole"
            whole.mkdir()
            fetch(whole, "install", *names)
            try:
                whole.rename(kept)
            except OSError:  # another run was faster
                if not kept.exists():
                    raise
    return kept


def fetch(directory: Path, *arguments: str) -> None:
    """Have npm fetch something; skips the test when it fails, and says why."""
    had(["npm", *arguments, *_QUIET], "npm's packages cannot be had", directory)


def npm(directory: Path, *arguments: str) -> None:
    """Run npm on what is here already; it must succeed."""
    done = subprocess.run(["npm", *arguments, *_QUIET], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def node() -> str:
    """A Node that is new enough: this machine's, or npm's own package of it."""
    found = shutil.which("node")
    if found is not None and _version(found) >= OLDEST:
        return found
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine())
    if machine is None:
        pytest.skip(
            f"this needs Node {'.'.join(map(str, OLDEST))}, which npm has no package of for {platform.machine()}"
        )
    return str(packages(f"node-linux-{machine}@{NODE}") / f"node_modules/node-linux-{machine}/bin/node")


def _version(program: str) -> tuple[int, ...]:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.findall(r"\d+", told)[:2]))
