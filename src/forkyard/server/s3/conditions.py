"""Conditional requests: whether an object as it is meets what If-Match and its kin say (RFC 9110, section 13)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from forkyard.server.s3.errors import S3Error

_TAG = re.compile(r'(?:W/)?"[^"]*"|[^\s,"]+')


class NotModified(Exception):
    """The client has the object already."""


def check(headers: Mapping[str, str], etag: str, modified: float, prefix: str = "") -> None:
    """Hold an object against the conditions of a request to read it.

    `prefix` comes before the names of the headers, as in x-amz-copy-source-if-match. Raises S3Error
    (PreconditionFailed), and NotModified.
    """
    match, none_match = headers.get(prefix + "if-match"), headers.get(prefix + "if-none-match")
    if match is not None:
        if not names(match, etag):
            raise failed("If-Match")
    elif (since := _date(headers.get(prefix + "if-unmodified-since"))) is not None and int(modified) > since:
        raise failed("If-Unmodified-Since")
    if none_match is not None:
        if names(none_match, etag):
            raise failed("If-None-Match") if prefix else NotModified
    elif (since := _date(headers.get(prefix + "if-modified-since"))) is not None and int(modified) <= since:
        raise failed("If-Modified-Since") if prefix else NotModified


def names(condition: str, etag: str) -> bool:
    """Whether a list of entity tags names this one."""
    tags = _TAG.findall(condition)
    return "*" in tags or etag in (tag.removeprefix("W/").strip('"') for tag in tags)


def failed(condition: str) -> S3Error:
    """The refusal of a condition that does not hold."""
    return S3Error("PreconditionFailed", f"the object is not as {condition} wants it", {"Condition": condition})


def _date(text: str | None) -> float | None:
    """A date of HTTP; what is none does not count, as the rules have it."""
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
