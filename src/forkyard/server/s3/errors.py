"""S3's errors: a code, its status, and a text that tells what to do."""

from __future__ import annotations

from collections.abc import Mapping

from forkyard.disk import STATUS

_STATUS: Mapping[str, int] = {
    **STATUS,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "IncompleteBody": 400,
    "InvalidAccessKeyId": 403,
    "InvalidDigest": 400,
    "InvalidURI": 400,
    "MalformedTrailerError": 400,
    "MalformedXML": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "RequestTimeTooSkewed": 403,
    "RequestTimeout": 400,
    "SignatureDoesNotMatch": 403,
    "XAmzContentSHA256Mismatch": 400,
}


class S3Error(Exception):
    """A request is refused with this code; `beside` are further elements of the error's document."""

    def __init__(self, code: str, text: str, beside: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.beside = beside or {}

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return _STATUS[self.code]
