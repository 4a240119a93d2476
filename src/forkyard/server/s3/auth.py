"""Who asks: the key of an API client, or the key pair of a disk by signature version 4, in headers or in the URL."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from forkyard.server.s3 import sigv4
from forkyard.server.s3.chunked import Chain
from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.request import Request

SKEW = 15 * 60
"""Seconds by which a client's clock may be wrong."""
UNSIGNED = "UNSIGNED-PAYLOAD"
_VERSION_2 = (
    "signatures of version 2 are not taken, have the client use version 4: boto3 presigns by it with "
    "Config(signature_version='s3v4'), or in the region that `forkyard env` names (AWS_DEFAULT_REGION=us-east-2)"
)


@dataclass(frozen=True, slots=True)
class Pair:
    """The secret of an access key, and the one disk it opens; None for all of them."""

    secret: str
    disk: str | None


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever asks: `name` is for the log, `disk` the one disk they may use, None when it is all of them.

    `payload` is what they say of the body: its SHA-256, or how it is sent; `chain` goes on inside a signed body.
    """

    name: str
    disk: str | None
    payload: str
    chain: Chain | None = None


@dataclass(frozen=True, slots=True)
class Doorman:
    """Checks credentials by what it is given: the id of an API key by its text, the pair of an access key.

    The region in a signature is the client's: whatever it calls this place, the signature holds for it.
    """

    find_key: Callable[[str], str | None]
    pair_of: Callable[[str], Pair | None]
    now: Callable[[], float] = time.time

    def admit(self, request: Request) -> Caller:
        """Who asks. Raises S3Error for whoever may not."""
        given = request.header("authorization")
        presigned = request.has("X-Amz-Algorithm") or request.has(sigv4.SIGNATURE_PARAMETER)
        if presigned and given:
            raise S3Error(
                "InvalidArgument", "a request is signed in its URL or in its Authorization header, not in both"
            )
        if presigned:
            return self._presigned(request)
        if given.startswith("AWS4-"):
            return self._signed(request, given)
        if given.startswith(("key-", "Bearer ")):
            key = self.find_key(given.removeprefix("Bearer ")) if given.isascii() else None
            if key is None:
                raise S3Error("AccessDenied", "this API key is not one of this server; `forkyard key list` shows them")
            return Caller(key, None, request.header("x-amz-content-sha256", UNSIGNED))
        if given.startswith("AWS "):
            raise S3Error("InvalidRequest", _VERSION_2)
        if request.has("AWSAccessKeyId") and request.has("Signature"):
            raise S3Error("InvalidRequest", _VERSION_2)
        raise S3Error("AccessDenied", "sign the request with a disk's key pair, or send 'Authorization: key-...'")

    def _signed(self, request: Request, given: str) -> Caller:
        claim = sigv4.claim_of_header(given, request.header("x-amz-date"))
        if abs(self.now() - claim.moment) > SKEW:
            beside = {"RequestTime": claim.time, "MaxAllowedSkewMilliseconds": str(SKEW * 1000)}
            raise S3Error("RequestTimeTooSkewed", "the client's clock and the server's are too far apart", beside)
        payload = request.header("x-amz-content-sha256")
        if not payload:
            raise S3Error("InvalidRequest", "a signed request needs the header x-amz-content-sha256")
        return self._checked(request, claim, payload)

    def _presigned(self, request: Request) -> Caller:
        claim = sigv4.claim_of_query(request.query)
        payload = request.header("x-amz-content-sha256") or request.parameter("X-Amz-Content-Sha256") or UNSIGNED
        caller = self._checked(request, claim, payload)
        age = self.now() - claim.moment
        if age < -SKEW:
            raise S3Error("AccessDenied", "this URL is not yet valid")
        if claim.expires is None or age > claim.expires:
            raise S3Error("AccessDenied", "this URL has expired", {"X-Amz-Expires": str(claim.expires)})
        return caller

    def _checked(self, request: Request, claim: sigv4.Claim, payload: str) -> Caller:
        _check_signed_headers(request, claim)
        pair = self.pair_of(claim.access_key)
        if pair is None:
            raise S3Error("InvalidAccessKeyId", "no disk of this server has this access key")
        key = sigv4.signing_key(pair.secret, claim.scope)
        signed = {name: request.headers[name] for name in claim.signed_headers}
        asked = sigv4.canonical_request(request.method, request.path, request.query, signed, payload)
        right = sigv4.sign(key, sigv4.string_to_sign(claim.time, claim.scope, asked))
        if not sigv4.same(right, claim.signature):
            raise S3Error(
                "SignatureDoesNotMatch",
                "the signature is not the one the disk's secret makes of this request; check secret, clock and proxy",
            )
        return Caller(claim.access_key, pair.disk, payload, Chain(key, claim.time, claim.scope, claim.signature))


def _check_signed_headers(request: Request, claim: sigv4.Claim) -> None:
    signed = set(claim.signed_headers)
    if absent := signed - request.headers.keys():
        raise S3Error("AccessDenied", f"the signed header {min(absent)} is not in the request")
    ours = {name for name in request.headers if name.startswith(("x-amz-", "x-archil-"))}
    if unsigned := ours - signed:
        raise S3Error("AccessDenied", f"the header {min(unsigned)} is in the request and was not signed")
