"""The token a request brings for a port: in a header, or, for browsers, in the query and then in a cookie."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from starlette.requests import HTTPConnection

HEADER = "x-archil-token"
COOKIE = "archil_token"
QUERY = b"archil_token"


@dataclass(frozen=True, slots=True)
class Given:
    """The token, if there is one, and what is left of query and cookies without it: it is not the sandbox's to see."""

    text: str | None = field(repr=False)
    by_query: bool
    query: bytes
    cookies: tuple[str, ...]


def given_in(request: HTTPConnection) -> Given:
    """What a request brings; the header goes before the query, and that before the cookie."""
    parts = [part for part in request.scope["query_string"].split(b"&") if part]
    asked = [part for part in parts if part.partition(b"=")[0] == QUERY]
    pairs = [pair.strip() for line in request.headers.getlist("cookie") for pair in line.split(";") if pair.strip()]
    kept = [pair for pair in pairs if pair.partition("=")[0].strip() == COOKIE]
    in_header = request.headers.get(HEADER)
    in_query = unquote_to_bytes(asked[-1].partition(b"=")[2]).decode("latin-1") if asked else None
    in_cookie = kept[-1].partition("=")[2].strip().strip('"') if kept and _is_of_this_host(request) else None
    return Given(
        next((text for text in (in_header, in_query, in_cookie) if text is not None), None),
        in_header is None and in_query is not None,
        b"&".join(part for part in parts if part not in asked) if asked else request.scope["query_string"],
        tuple(pair for pair in pairs if pair not in kept),
    )


def _is_of_this_host(request: HTTPConnection) -> bool:
    """Whether a page of this host name asks, or somebody goes there, as far as a browser tells.

    All ports of all sandboxes are one site to browsers: they send the cookie of one along with what a page of another
    asks, and let that page hear what a web socket answers.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        goes_there = request.headers.get("sec-fetch-mode") == "navigate" and request.scope.get("method") == "GET"
        return site in ("same-origin", "none") or goes_there
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2].lower() == request.headers.get("host", "").lower()
