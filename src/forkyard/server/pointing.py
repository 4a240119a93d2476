"""What points clients at a server: lines for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from forkyard.disk import KeyPair
from forkyard.server.hosts import REGION, VENDOR_HOSTS
from forkyard.server.keys import Keys
from forkyard.server.outward import USER, proxy_password
from forkyard.server.running import Running
from forkyard.server.tls import ca_path, trusted_path

_LOCAL = "127.0.0.1,localhost,::1"
_SIGNED_BY_V4 = "us-east-2"
"""Any region is taken, but for older ones, and where none is named, boto3 presigns URLs by version 2, which is not."""


def exports(home: Path, running: Running, *, by_hosts: bool) -> Iterator[str]:
    """The environment of clients that know the vendor's addresses alone."""
    origin = running.address.origin
    if by_hosts:
        yield "# for /etc/hosts; the server must listen on port 443 with --tls"
        for host in (*VENDOR_HOSTS, *running.mapped):
            yield f"# {running.address.host} {host}"
    else:
        yield _export("HTTPS_PROXY", origin.replace("://", f"://{USER}:{proxy_password(home)}@", 1))
        yield _export("NO_PROXY", _LOCAL)
        yield _export("NODE_USE_ENV_PROXY", "1")
    yield _export("SSL_CERT_FILE", str(trusted_path(home)))
    yield _export("NODE_EXTRA_CA_CERTS", str(ca_path(home)))
    yield _export("ARCHIL_REGION", REGION)
    yield _export("ARCHIL_BASE_URL", origin)
    yield _export("AWS_ENDPOINT_URL_S3", origin)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):  # the latter is the one that boto3 reads
        yield _export(name, _SIGNED_BY_V4)
    if running.address.tls:
        yield _export("AWS_CA_BUNDLE", str(trusted_path(home)))


def key_exports(keys: Keys, text: str) -> Iterator[str]:
    """A key as clients look for it."""
    key = keys.find(text)
    if key is None:
        return
    yield _export("ARCHIL_API_KEY", text)
    yield _export("AWS_ACCESS_KEY_ID", key.id)
    yield _export("AWS_SECRET_ACCESS_KEY", keys.signing_secret(key.id) or "")


def pair_exports(pair: KeyPair) -> Iterator[str]:
    """A pair as S3 clients look for it."""
    yield _export("AWS_ACCESS_KEY_ID", pair.access_key)
    yield _export("AWS_SECRET_ACCESS_KEY", pair.secret_key)


def _export(name: str, value: str) -> str:
    return f"export {name}={shlex.quote(value)}"
