"""Where a model is asked, and by which settings a user says so: errors name the setting to look at."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2

from forkyard.errors import ConfigError

BASE_URL = "OPENAI_BASE_URL"
API_KEY = "OPENAI_API_KEY"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Place:
    """A URL, and the names of the settings that gave it and its key."""

    url: str
    url_from: str = BASE_URL
    key_from: str = API_KEY

    def __str__(self) -> str:
        return self.url


def check_place(place: Place, api_key: str | None) -> None:
    """Raise ConfigError, naming the setting, unless `place` is a base URL and the key can be sent."""
    try:
        url = httpx2.URL(place.url)
    except httpx2.InvalidURL as err:
        raise ConfigError(f"the base URL is not a URL ({err}): check {place.url_from}") from None
    shown = str(url.copy_with(userinfo=b"", query=None))  # user, password and query may be secret
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"base URL {shown!r} is not an http or https URL: check {place.url_from}")
    if url.userinfo or url.query:
        raise ConfigError(f"base URL {shown!r} must hold no user, password or query: give the key by {place.key_from}")
    if url.path.rstrip("/").endswith("/chat/completions"):
        raise ConfigError(f"base URL {shown!r} must end before /chat/completions: check {place.url_from}")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError(f"the API key holds characters that cannot be sent in a header: check {place.key_from}")


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine by its loopback."""
    try:
        return urlsplit(url).hostname in LOOPBACK
    except ValueError:
        return False
