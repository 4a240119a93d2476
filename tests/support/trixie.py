"""A root file system of Debian 13's packages, for images with a newer Python; kept for later test runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forkyard-tests"
"""What is fetched once for all test runs."""
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DEBS = ("base-files", "bash", "coreutils", "dash", "python3")
FETCHING = 200  # seconds, which leaves a test some to do what it is there for
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


def python_root() -> Path:
    """A tar of bash, coreutils and Python 3.13; skips the test where Debian's packages cannot be had, and says why."""
    kept = KEPT / "trixie-python3.tar"
    if not kept.exists():
        for program in ("apt-get", "dpkg-deb"):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is missing: Debian 13's Python cannot be had")
        if not KEYS.exists():
            pytest.skip(f"{KEYS} is missing (apt-get install debian-archive-keyring)")
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT, prefix="trixie-") as directory:
            _root(Path(directory), Path(directory) / "root.tar")
            (Path(directory) / "root.tar").replace(kept)  # another run may have been faster: it made the same
    return kept


def had(command: Sequence[str | Path], missing: str, cwd: Path | None = None, **variables: str) -> None:
    """Run what fetches something; skips the test when it fails or takes too long, and says why."""
    try:
        done = subprocess.run(
            command, env={**os.environ, **variables}, cwd=cwd, capture_output=True, text=True, timeout=FETCHING
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{missing}: not within {FETCHING} s")
    if done.returncode:
        pytest.skip(f"{missing}: {(done.stderr or done.stdout)[-400:].strip()}")


def _root(work: Path, archive: Path) -> None:
    apt, root = work / "apt", work / "root"
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb [signed-by={KEYS}] http://deb.debian.org/debian trixie main\n")
    (apt / "apt.conf").write_text(APT.format(apt))
    missing = "Debian's packages cannot be had"
    had(["apt-get", "-qq", "update", "--error-on=any"], missing, APT_CONFIG=str(apt / "apt.conf"))
    had(["apt-get", "-qq", "-y", "--download-only", "install", *DEBS], missing, APT_CONFIG=str(apt / "apt.conf"))
    for deb in sorted((apt / "cache/archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (root / "etc/group").write_text("root:x:0:\n")
    options = ["--owner=0", "--group=0", "--numeric-owner", "--exclude=./usr/share/doc/*", "--exclude=./dev/*"]
    subprocess.run(["tar", "-C", root, *options, "-cf", archive, "."], check=True)
