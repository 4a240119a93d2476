"""Signature version 4: what is signed, and whether the signature is right. Pure functions over text.

A request is reduced to a canonical text, its digest to a string to sign, and that is signed with a key made of
the secret, the day, the region and the service. The rules are public; their corners are here:

* S3 signs the path as it was sent, encoded once, without removing `.` or `//`.
* Values of headers are trimmed, and runs of spaces in them count as one.
* Parameters are sorted after encoding; one without a value is signed with an empty one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, unquote_to_bytes

from forkyard.server.s3.errors import S3Error

ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
LONGEST_PRESIGNED = 7 * 24 * 3600
SIGNATURE_PARAMETER = "X-Amz-Signature"

_CREDENTIAL = re.compile(r"([\x21-\x7e]{1,256})/(\d{8})/([\w.-]{1,64})/(s3)/(aws4_request)", re.ASCII)
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_SIGNED_HEADERS = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+(?:;[!#$%&'*+.^_`|~0-9a-z-]+)*")
_SPACES = re.compile(r"[ \t]+")
_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a signing key is good for."""

    day: str
    region: str
    service: str = "s3"

    def __str__(self) -> str:
        return f"{self.day}/{self.region}/{self.service}/aws4_request"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a request says about who signed it; `expires` is of presigned URLs, in seconds."""

    access_key: str
    scope: Scope
    signed_headers: tuple[str, ...]
    signature: str
    time: str
    expires: int | None = None

    @property
    def moment(self) -> float:
        """When it was signed, in seconds of the epoch. Raises S3Error when the time is no time."""
        return parse_time(self.time)


def parse_time(text: str) -> float:
    """A basic ISO 8601 time as seconds of the epoch. Raises S3Error."""
    found = _TIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        year, month, day, hour, minute, second = map(int, found.groups())
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        raise S3Error("AccessDenied", "the time of a signature is written as 20260131T235959Z") from None


def claim_of_header(value: str, time: str) -> Claim:
    """What an Authorization header claims. Raises S3Error (AuthorizationHeaderMalformed)."""
    if not value.startswith(ALGORITHM + " "):
        raise S3Error("InvalidRequest", f"the signature must be made by {ALGORITHM}")
    parts: dict[str, str] = {}
    for piece in value[len(ALGORITHM) :].split(","):
        name, _, text = piece.strip().partition("=")
        if name in parts:
            raise S3Error("AuthorizationHeaderMalformed", f"{name} stands twice in the Authorization header")
        parts[name] = text.strip()
    missing = [name for name in ("Credential", "SignedHeaders", "Signature") if not parts.get(name)]
    if missing:
        raise S3Error("AuthorizationHeaderMalformed", f"the Authorization header has no {missing[0]}")
    return _claim("AuthorizationHeaderMalformed", parts["Credential"], parts["SignedHeaders"], parts["Signature"], time)


def claim_of_query(query: Sequence[tuple[str, str]]) -> Claim:
    """What the parameters of a presigned URL claim. Raises S3Error (AuthorizationQueryParametersError)."""
    bad = "AuthorizationQueryParametersError"
    given: dict[str, str] = {}
    for name, value in query:
        if name in given and name.lower().startswith("x-amz-"):
            raise S3Error(bad, f"{name} stands twice in the URL")
        given[name] = value
    names = ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders")
    for name in (*names, SIGNATURE_PARAMETER):
        if not given.get(name):
            raise S3Error(bad, f"a presigned URL needs the parameter {name}")
    if given["X-Amz-Algorithm"] != ALGORITHM:
        raise S3Error(bad, f"the signature must be made by {ALGORITHM}")
    expires = given["X-Amz-Expires"]
    if not re.fullmatch(r"\d{1,9}", expires, re.ASCII) or not 1 <= int(expires) <= LONGEST_PRESIGNED:
        raise S3Error(bad, f"X-Amz-Expires is a number of seconds from 1 to {LONGEST_PRESIGNED}")
    claim = _claim(
        bad, given["X-Amz-Credential"], given["X-Amz-SignedHeaders"], given[SIGNATURE_PARAMETER], given["X-Amz-Date"]
    )
    return Claim(claim.access_key, claim.scope, claim.signed_headers, claim.signature, claim.time, int(expires))


def _claim(bad: str, credential: str, signed: str, signature: str, time: str) -> Claim:
    found = _CREDENTIAL.fullmatch(credential)
    if found is None:
        raise S3Error(bad, "the credential is written as KEY/YYYYMMDD/REGION/s3/aws4_request")
    if not _SIGNED_HEADERS.fullmatch(signed) or "host" not in signed.split(";"):
        raise S3Error(bad, "the signed headers are lower-case names joined by ';', with host among them")
    if not _SIGNATURE.fullmatch(signature):
        raise S3Error(bad, "a signature is 64 lower-case hex digits")
    if time[:8] != found[2]:
        raise S3Error(bad, "the day of the credential is not the day of the request's time")
    return Claim(found[1], Scope(found[2], found[3]), tuple(signed.split(";")), signature, time)


def signing_key(secret: str, scope: Scope) -> bytes:
    """The key that signs everything of a day, region and service."""
    key = ("AWS4" + secret).encode()
    for part in (scope.day, scope.region, scope.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def canonical_query(query: Iterable[tuple[str, str]]) -> str:
    """Parameters, decoded, as they are signed; the signature itself is left out."""
    pairs = [(_encoded(name), _encoded(value)) for name, value in query if name != SIGNATURE_PARAMETER]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def canonical_request(
    method: str, path: str, query: Iterable[tuple[str, str]], signed: Mapping[str, str], payload: str
) -> str:
    """The text a signature stands for; `path` as it was sent, `signed` the signed headers by lower-case name."""
    lines = [f"{name}:{_trimmed(signed[name])}\n" for name in sorted(signed)]
    again = quote(unquote_to_bytes(path.encode("utf-8", "surrogateescape")), safe="/~")
    return "\n".join((method, again, canonical_query(query), "".join(lines), ";".join(sorted(signed)), payload))


def string_to_sign(time: str, scope: Scope, request: str) -> str:
    """The text that is signed for a canonical request."""
    return "\n".join(
        (ALGORITHM, time, str(scope), hashlib.sha256(request.encode("utf-8", "surrogateescape")).hexdigest())
    )


def sign(key: bytes, text: str) -> str:
    """A text's signature, in hex."""
    return hmac.digest(key, text.encode(), "sha256").hex()


def same(one: str, other: str) -> bool:
    """Whether two signatures are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


def _encoded(text: str) -> str:
    return quote(text, safe="~")


def _trimmed(value: str) -> str:
    return _SPACES.sub(" ", value.strip(" \t"))
