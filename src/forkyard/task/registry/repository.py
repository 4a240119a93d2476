"""A git repository at a commit: fetched once, by the git program, nothing but that commit."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from forkyard.errors import ConfigError
from forkyard.programs import kill_session
from forkyard.task.directory.files import is_within
from forkyard.task.registry.cache import cache_of, kept
from forkyard.values import printable, tail

SECONDS = 900.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# Whatever the user's own configuration says: no program is started, and every byte is that of the commit.
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.autocrlf=false",
    "core.symlinks=true",
    "core.fileMode=true",
    "gc.auto=0",
)
_PLAIN = tuple(word for setting in _SETTINGS for word in ("-c", setting))


@dataclass(frozen=True, slots=True)
class Repository:
    """An address, a commit of 40 or 64 hexadecimal digits, and a folder in it."""

    url: str
    commit: str
    folder: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """`URL@COMMIT`, or `URL@COMMIT#FOLDER`. Raises ConfigError."""
        whole, _, folder = text.partition("#")
        url, at, commit = whole.rpartition("@")
        if not at or not url or not _COMMIT.fullmatch(commit):
            raise ConfigError(
                f"import_failed: {_shown(text)} names no commit; write URL@COMMIT with all 40 digits of the "
                "commit, since a branch or a tag is not the same tasks tomorrow"
            )
        return cls.checked(url, commit, folder)

    @classmethod
    def checked(cls, url: str, commit: str | None, folder: str) -> Self:
        """One whose parts are sound. Raises ConfigError."""
        if urlsplit(url).password or (url.startswith("http") and urlsplit(url).username):
            raise ConfigError(
                f"import_failed: {_shown(url)} holds a password or a token; leave it out: git asks your "
                "credential helper"
            )
        if url.startswith("-") or not url.isprintable():
            raise ConfigError(f"import_failed: {_shown(url)} is no address of a repository")
        if commit is None or not _COMMIT.fullmatch(commit):
            raise ConfigError(f"import_failed: {_shown(url)}: {commit!r} is no commit; write all 40 digits of one")
        if folder.startswith("/") or ".." in folder.split("/"):
            raise ConfigError(f"import_failed: {_shown(url)}: the folder {folder!r} lies outside of the repository")
        return cls(url, commit, folder.strip("/"))

    def __str__(self) -> str:
        return f"{self.url}@{self.commit}" + (f"#{self.folder}" if self.folder else "")


def check_out(repository: Repository) -> Path:
    """The folder at the commit, on disk. Raises ConfigError."""
    if shutil.which("git") is None:
        raise ConfigError("import_failed: git is not installed; `apt-get install git`")
    name = hashlib.sha256(repository.url.encode()).hexdigest()[:16]
    place = cache_of("git") / name / repository.commit
    if place.is_dir() and not _is_untouched(place, repository.commit):
        shutil.rmtree(place)
    try:
        kept(place, lambda directory: _fetch(repository, directory))
    except OSError as err:
        raise ConfigError(f"import_failed: {repository} cannot be kept: {err.strerror or err}") from None
    folder = place / repository.folder
    if not folder.is_dir() or not is_within(place, folder):
        raise ConfigError(f"import_failed: {repository.url} has no folder {repository.folder!r} at {repository.commit}")
    return folder


def _fetch(repository: Repository, directory: Path) -> None:
    object_format = "sha256" if len(repository.commit) == 64 else "sha1"
    steps = (
        ("init", "--quiet", "--template=", f"--object-format={object_format}"),
        (
            "fetch",
            "--quiet",
            "--depth=1",
            "--no-tags",
            "--no-recurse-submodules",
            "--",
            repository.url,
            repository.commit,
        ),
        ("checkout", "--quiet", "--detach", "FETCH_HEAD"),
    )
    for step in steps:
        code, _, said = _git(directory, *step)
        if code != 0:
            raise ConfigError(
                f"import_failed: {repository} cannot be fetched: git {step[0]}: {printable(tail(said.strip(), 500))}"
            )
    if not _is_untouched(directory, repository.commit):
        raise ConfigError(f"import_failed: {repository} cannot be fetched: another commit came")


def _is_untouched(directory: Path, commit: str) -> bool:
    """Whether a directory holds a commit, and nothing else."""
    code, head, _ = _git(directory, "rev-parse", "HEAD^{commit}")
    if code != 0 or head.strip() != commit:
        return False
    code, changed, _ = _git(directory, "status", "--porcelain", "--ignored", "--untracked-files=all")
    return code == 0 and not changed.strip()


def _git(directory: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and complaints of git. Its streams are files, so that nobody waits for a child it left."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    variables |= {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}
    variables |= {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            ["git", *_PLAIN, "-C", str(directory), *arguments],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=complaints,
            start_new_session=True,  # of which nothing is left
        )
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return 124, "", f"took longer than {SECONDS:g} s"
        finally:
            kill_session(process.pid)
            process.wait()
        for file in (out, complaints):
            file.seek(0)
        return code, out.read().decode(errors="replace"), complaints.read().decode(errors="replace")


def _shown(url: str) -> str:
    """An address without what it may hold of keys."""
    return printable(re.sub(r"//[^/@]*@", "//", url))
