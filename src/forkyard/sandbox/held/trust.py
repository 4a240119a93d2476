"""Whom programs inside trust: the sandbox's own authority too, while its door answers for hosts.

The certificate goes to a file of its own, to one with all that are trusted, and into the image's bundle, where there is
one, between two marks. It says nothing secret, and is worth nothing without its key.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from forkyard.errors import SandboxError
from forkyard.values import MIB

_ALONE = "/usr/local/share/ca-certificates/forkyard.crt"  # where Debian's ca-certificates finds it, once installed
_WHOLE = "/etc/forkyard/trusted.pem"
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
_LARGEST = 4 * MIB
_BEGIN, _END = b"# forkyard: the authority of this sandbox\n", b"# forkyard: end\n"
_OURS = re.compile(re.escape(_BEGIN) + b".*?" + re.escape(_END), re.DOTALL)

ENV = MappingProxyType(
    {
        "NODE_EXTRA_CA_CERTS": _ALONE,
        **dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"), _WHOLE),
    }
)
"""How programs are told that do not look at the image's bundle."""


class Files(Protocol):
    """What is needed of a running sandbox."""

    async def read(self, path: str, max_bytes: int = _LARGEST) -> bytes:
        """As `Sandbox.read`."""
        ...

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """As `Sandbox.write`."""
        ...


class Trust:
    """Whom the programs of one sandbox trust, as far as it was seen to."""

    def __init__(self) -> None:
        self._placed: bytes | None = None

    async def follow(self, files: Files, certificate: bytes | None) -> None:
        """Have them trust this one, or none of ours any more. Raises SandboxError."""
        if certificate == self._placed:
            return
        try:
            await _place(files, certificate)
        except (OSError, ValueError) as err:
            raise SandboxError(f"the sandbox's authority cannot be made known inside: {err}") from err
        self._placed = certificate


async def _place(files: Files, certificate: bytes | None) -> None:
    ours = b"" if certificate is None else _BEGIN + certificate + _END
    bundles = {path: found for path in _BUNDLES if (found := await _bundle(files, path)) is not None}
    for path, bundle in bundles.items():
        await files.write(path, _with(bundle, ours))
    if certificate is not None:
        await files.write(_ALONE, certificate)
        await files.write(_WHOLE, _with(next(iter(bundles.values()), None) or _of_this_machine(), ours))


def _with(bundle: bytes, ours: bytes) -> bytes:
    plain = _OURS.sub(b"", bundle)
    return plain + (b"\n" if plain and not plain.endswith(b"\n") else b"") + ours


async def _bundle(files: Files, path: str) -> bytes | None:
    """The image's bundle; None where there is none, or what is there is none."""
    try:
        return await files.read(path, max_bytes=_LARGEST)
    except (OSError, ValueError):
        return None


def _of_this_machine() -> bytes:
    """Whom this machine trusts: for an image that trusts nobody, since the file takes the place of programs' own."""
    usual = ssl.get_default_verify_paths()
    for place in (usual.cafile, usual.openssl_cafile, *_BUNDLES):
        if place and Path(place).is_file():
            return Path(place).read_bytes()
    return b""
