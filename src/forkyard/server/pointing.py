"""What points clients at a server: lines for a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from forkyard.disk import KeyPair
from forkyard.server.hosts import REGION, VENDOR_HOSTS
from forkyard.server.keys import Keys
from forkyard.server.outward import USER, proxy_password
from forkyard.server.running import Running
from forkyard.server.tls import ca_path, trusted_path

_DIRECT = ("127.0.0.1", "::1")
_NAMED_SO = {"localhost", ".localhost", "*.localhost", "*"}
"""What must not be in NO_PROXY: every client but browsers would go past the proxy to the names of ports, too, which
end in .localhost and are nobody's address."""
_TRUST = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")  # requests and pip do not heed the first
_TRUST_BEFORE = ("CURL_CA_BUNDLE", "AWS_CA_BUNDLE")  # heeded before the first by few, so only named where they are set
_SIGNED_BY_V4 = "us-east-2"
"""Any region is taken, but for older ones, and where none is named, boto3 presigns URLs by version 2, which is not."""


def exports(home: Path, running: Running, *, by_hosts: bool, shell: Mapping[str, str] = os.environ) -> Iterator[str]:
    """The environment of clients that know the vendor's addresses alone, for a shell that has `shell` by now."""
    origin = running.address.origin
    if by_hosts:
        yield "# for /etc/hosts; the server must listen on port 443 with --tls"
        for host in (*VENDOR_HOSTS, *running.mapped):
            yield f"# {running.address.host} {host}"
    else:
        proxy = origin.replace("://", f"://{USER}:{proxy_password(home)}@", 1)
        yield from _proxied(proxy, _direct(shell, tls=running.address.tls), shell)
        yield _export("NODE_USE_ENV_PROXY", "1")
    for name, path in _trusted(home, running, shell).items():
        yield _export(name, str(path))
    yield _export("ARCHIL_REGION", REGION)
    yield _export("ARCHIL_BASE_URL", origin)
    yield _export("AWS_ENDPOINT_URL_S3", origin)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):  # the latter is the one that boto3 reads
        yield _export(name, _SIGNED_BY_V4)


def replaced_trust(home: Path, running: Running, shell: Mapping[str, str] = os.environ) -> Iterator[str]:
    """What to tell of a shell that trusted other certificates: a sentence for each variable that named them."""
    for name, path in _trusted(home, running, shell).items():
        before = shell.get(name)
        if before and Path(before) not in (trusted_path(home), ca_path(home)):
            yield (
                f"{name} was {before}, and is {path} now: our CA and what this machine trusts. If the former has more, "
                f"start the server with SSL_CERT_FILE={shlex.quote(before)}"
            )


def _direct(shell: Mapping[str, str], *, tls: bool) -> str:
    """Hosts that are not the proxy's matter: this machine, and what was none's before.

    A server that speaks TLS is for some no proxy (curl of Debian 12), and its ports are reached at its own port.
    """
    given = shell.get("no_proxy") or shell.get("NO_PROXY") or ""
    kept = [entry for each in given.split(",") if (entry := each.strip()) and entry.lower() not in _NAMED_SO]
    return ",".join(dict.fromkeys((*_DIRECT, *(["localhost"] if tls else []), *kept)))


def _proxied(proxy: str, direct: str, shell: Mapping[str, str]) -> Iterator[str]:
    """The variables in both spellings where a shell has the lower one, which is the one that counts then."""
    for name, value in (("HTTPS_PROXY", proxy), ("NO_PROXY", direct)):
        yield _export(name, value)
        if name.lower() in shell:
            yield _export(name.lower(), value)


def _trusted(home: Path, running: Running, shell: Mapping[str, str]) -> dict[str, Path]:
    """What is to name certificates, by variable. Node adds them to its own."""
    given = [name for name in _TRUST_BEFORE if name in shell or (name == "AWS_CA_BUNDLE" and running.address.tls)]
    alone = "NODE_EXTRA_CA_CERTS" not in shell or Path(shell["NODE_EXTRA_CA_CERTS"]) == ca_path(home)
    node = ca_path(home) if alone else trusted_path(home)
    return dict.fromkeys((*_TRUST, *given), trusted_path(home)) | {"NODE_EXTRA_CA_CERTS": node}


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
