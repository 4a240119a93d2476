"""What a word of the command line, or a directory, means."""

from __future__ import annotations

import re
from pathlib import Path

MANIFEST = "dataset.toml"
ENDINGS = tuple(f".tar{packed}" for packed in ("", ".gz", ".bz2", ".xz", ".zst")) + (".tgz",)
_SHORT = re.compile(r"[\w.-]+@[\w.-]+:")  # git@host:path


def is_archive(path: Path) -> bool:
    """Whether a path is meant as an archive: by its name, and it is no directory."""
    return path.name.endswith(ENDINGS) and not path.is_dir()


def is_repository(reference: str) -> bool:
    """Whether a reference is meant as the address of a git repository."""
    return "://" in reference or _SHORT.match(reference) is not None


def is_path(reference: str) -> bool:
    """Whether a reference is the path of a directory or an archive."""
    if is_repository(reference):
        return False
    return reference.startswith((".", "/", "~")) or reference.endswith(ENDINGS) or Path(reference).exists()
