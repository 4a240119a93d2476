"""What a reference names: a registry, a repository in it, and a tag or digest, read as Docker reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forkyard.errors import ConfigError
from forkyard.values import one_line

DOCKER_HUB = "docker.io"
_DEFAULT_TAG = "latest"
_LONGEST = 255
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_REGISTRY = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DEBIAN = re.compile(r"debian:([a-z]+|[0-9]+)(-slim)?")
"""The names of what can be made of Debian's packages."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


@dataclass(frozen=True, slots=True)
class Reference:
    """One image of one registry. With a digest the tag, if there is one, is for people."""

    registry: str
    repository: str
    tag: str | None
    digest: str | None

    @property
    def name(self) -> str:
        """The short spelling, with the tag said: what an image pulled by it is called in the store."""
        repository = self.repository
        if self.registry != DOCKER_HUB:
            repository = f"{self.registry}/{repository}"
        elif repository.startswith("library/") and repository.count("/") == 1:
            repository = repository.removeprefix("library/")
        tag = f":{self.tag}" if self.tag else ""
        return f"{repository}{tag}" + (f"@{self.digest}" if self.digest else "")

    @property
    def asked(self) -> str:
        """What the registry is asked for."""
        return self.digest or self.tag or _DEFAULT_TAG


def is_digest(text: object) -> bool:
    """Whether a text is a digest of a kind that can be verified."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def parse_reference(text: str) -> Reference:
    """The reference a user wrote. Raises ConfigError saying what is wrong with it."""
    rest, at, digest = text.partition("@")
    if at and not is_digest(digest):
        raise _wrong(text, "what follows the @ is no digest, which is sha256: and 64 hexadecimal digits")
    registry, rest = _split_registry(rest)
    repository, colon, tag = rest.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _wrong(text, "what follows the last colon is no tag")
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    if repository != repository.lower():
        raise _wrong(text, "a repository is written in lower case")
    if not _REPOSITORY.fullmatch(repository) or len(repository) > _LONGEST:
        raise _wrong(text, "write it as a FROM would, for example debian:12 or registry.example:5000/team/image:tag")
    return Reference(registry, repository, tag or (None if digest else _DEFAULT_TAG), digest or None)


def _split_registry(text: str) -> tuple[str, str]:
    """The first part is a registry when it could be nothing else: it has a dot or a port, or is localhost."""
    first, slash, rest = text.partition("/")
    looks_like_one = "." in first or ":" in first or first == "localhost" or first != first.lower()
    if not slash or not looks_like_one or not _REGISTRY.fullmatch(first):
        return DOCKER_HUB, text
    known_as_hub = first in ("index.docker.io", "registry-1.docker.io", "registry.hub.docker.com")
    return (DOCKER_HUB if known_as_hub else first), rest


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"{one_line(text)!r} is no reference of an image: {why}")
