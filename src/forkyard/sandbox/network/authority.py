"""The certificate authority of one sandbox, by which the door can answer for hosts that have rules.

Its key is in this process alone, and ends with it. Whoever trusts it trusts this process, which is the sandbox's way
out anyway; nobody but the programs in that sandbox is told to.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_DAYS = 397
_SKEW = timedelta(days=1)
_CONTEXTS = 64


class _Made(NamedTuple):
    key: EllipticCurvePrivateKey
    certificate: x509.Certificate
    leaf_key: EllipticCurvePrivateKey


class Authority:
    """Made when it is first needed."""

    def __init__(self) -> None:
        self._made: _Made | None = None
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    @property
    def certificate(self) -> bytes:
        """What has to be trusted, in PEM."""
        from cryptography.hazmat.primitives.serialization import Encoding

        return self._whole().certificate.public_bytes(Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        """What a server that is this host speaks TLS with."""
        context = self._contexts.pop(host, None) or self._context(host)
        self._contexts[host] = context
        if len(self._contexts) > _CONTEXTS:
            self._contexts.popitem(last=False)
        return context

    def _whole(self) -> _Made:
        if self._made is None:
            self._made = _authority()
        return self._made

    def _context(self, host: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        file = os.memfd_create("forkyard-certificate", os.MFD_CLOEXEC)  # ssl takes files alone, and this is on no disk
        try:
            os.write(file, _leaf(self._whole(), host))
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        return context


def trusted_context() -> ssl.SSLContext:
    """What a client of servers speaks TLS with: it trusts whom this machine trusts, or SSL_CERT_FILE says."""
    return _trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(4)
def _trusted(file: str | None, directory: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _authority() -> _Made:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key, leaf_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    unused = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "encipher_only", "decipher_only"), False
    )  # fmt: skip
    name = "Forkyard: the way out of one sandbox"
    certificate = (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **unused), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _Made(key, certificate, leaf_key)


def _leaf(made: _Made, host: str) -> bytes:
    """Key and certificate of a host, in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    try:
        name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    issuer = made.certificate.subject
    certificate = (
        _builder("Forkyard", issuer, made.leaf_key)
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(made.key.public_key()), critical=False)
        .sign(made.key, hashes.SHA256())
    )
    key = made.leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return key + certificate.public_bytes(Encoding.PEM)


def _builder(name: str, issuer: str | x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    from cryptography import x509

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer) if isinstance(issuer, str) else issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=_DAYS))
    )
