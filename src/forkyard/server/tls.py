"""Certificates of our own: a CA that only those trust who are told to, and one certificate for every name of ours."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from forkyard.errors import ConfigError
from forkyard.files import place_once, replace
from forkyard.server.files import server_home

_CA_DAYS, _LEAF_DAYS = 3650, 397
_SKEW = timedelta(days=1)
_SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def ca_path(home: Path) -> Path:
    """Our CA's certificate: what `NODE_EXTRA_CA_CERTS` takes."""
    return server_home(home) / "ca.pem"


def trusted_path(home: Path) -> Path:
    """Our CA's certificate and those this machine trusts: what `SSL_CERT_FILE` takes, which replaces the usual ones."""
    return server_home(home) / "trusted.pem"


def own_context(home: Path, names: Iterable[str]) -> ssl.SSLContext:
    """A server's context with a new certificate of our CA for these host names and addresses."""
    ca_key, ca = _ca(home)
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in dict.fromkeys(names)])
    leaf = (
        _builder("Forkyard", ca.subject, key, _LEAF_DAYS)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    path = server_home(home) / "server.pem"
    replace(path, [_pem(key), leaf.public_bytes(serialization.Encoding.PEM)], 0o600)
    return given_context(path, path)


def given_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server's context with these files. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password of ours, an encrypted key would have OpenSSL ask for one at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ssl.SSLError) as err:
        raise ConfigError(f"{certificate} and {key} are no certificate and its unencrypted key in PEM: {err}") from None
    return context


def is_made_out_to(certificate: Path, name: str) -> bool:
    """Whether a certificate names this host name, or this wildcard, as it stands. Raises ConfigError."""
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    except (OSError, ValueError) as err:
        raise ConfigError(f"{certificate} is no certificate in PEM: {err}") from None
    return name in (each.lower() for each in names.get_values_for_type(x509.DNSName))


def _ca(home: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The CA, made when it is missing. Key and certificate are one file first: they are always of one making."""
    path = server_home(home) / "ca.key"
    if not path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        place_once(path, _pem(key) + _self_signed(key).public_bytes(serialization.Encoding.PEM), 0o600)
    whole = path.read_bytes()
    try:
        found = serialization.load_pem_private_key(whole, None)
        certificate = x509.load_pem_x509_certificate(whole)
    except ValueError as err:
        raise ConfigError(f"{path} is damaged ({err}): delete it, and the next start makes another") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} holds another kind of key: delete it, and the next start makes another")
    text = certificate.public_bytes(serialization.Encoding.PEM)
    replace(ca_path(home), [text], 0o644)
    replace(trusted_path(home), [text, _system_bundle(trusted_path(home))], 0o644)
    return found, certificate


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Forkyard's own CA")])
    usage = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "encipher_only", "decipher_only"), False
    )  # fmt: skip
    return (
        _builder("Forkyard's own CA", name, key, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _builder(
    common_name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _system_bundle(ours: Path) -> bytes:
    """What this machine trusts, and not what a shell that was pointed here does."""
    usual = ssl.get_default_verify_paths()
    for place in (usual.cafile, usual.openssl_cafile, *_SYSTEM_BUNDLES):
        if place and Path(place).is_file() and Path(place) != ours:
            return Path(place).read_bytes()
    return b""
