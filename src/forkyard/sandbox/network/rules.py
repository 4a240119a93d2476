"""What is done with requests to some hosts on their way out: headers the sandbox never sees, or another server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from forkyard.errors import ConfigError

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?|")
_VALUE_LIMIT = 16 << 10
_OURS = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "upgrade", "expect", "te", "trailer", "keep-alive",
     "proxy-connection", "proxy-authorization", "proxy-authenticate")
)  # fmt: skip
_PLAIN_PORT, _TLS_PORT = 80, 443


@dataclass(frozen=True, slots=True)
class Forward:
    """The server that gets requests in the place of the one they are for; `path` is put before theirs."""

    tls: bool
    host: str
    port: int
    path: bytes


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule for the hosts that `target`, an entry as a network has them, covers. Raises ConfigError.

    `headers` take the place of those of these names that the sandbox sends. They are secrets: no repr shows them, and
    they leave this process in TLS alone, unless the target names its port or `forward` is a http:// address, by which
    the user has said otherwise. `forward` is the address of a server that gets the requests instead.
    """

    target: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    forward: str | None = None

    def __post_init__(self) -> None:
        names = [comparable(name.encode("utf-8", "replace")) for name, _ in self.headers]
        for name, value in self.headers:
            if not _NAME.fullmatch(name) or name.lower() in _OURS:
                raise ConfigError(f"{name[:80]!r} is no header a rule for {self.target!r} can set")
            if not _VALUE.fullmatch(value) or len(value) > _VALUE_LIMIT:
                raise ConfigError(
                    f"the value of {name} for {self.target!r} is none a header can have: ASCII on one line, without "
                    f"spaces around it, of at most {_VALUE_LIMIT} characters"
                )
        if len(set(names)) < len(names):
            raise ConfigError(f"the rule for {self.target!r} sets a header twice")
        if not self.headers and self.forward is None:
            raise ConfigError(f"the rule for {self.target!r} changes nothing: give it headers, or where to forward to")
        _ = self.forwarding

    @property
    def forwarding(self) -> Forward | None:
        """Where requests are forwarded to."""
        return None if self.forward is None else _forward(self.forward)


def comparable(name: bytes) -> bytes:
    """A header's name as servers compare it, the many included that take "_" for "-"."""
    return name.lower().replace(b"_", b"-")


def _forward(url: str) -> Forward:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _no_forward() from None
    plain = all("!" <= letter <= "~" and letter not in '"<>\\^`{|}' for letter in url)
    if not plain or parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise _no_forward()
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise _no_forward()
    tls = parts.scheme == "https"
    return Forward(tls, parts.hostname, port or (_TLS_PORT if tls else _PLAIN_PORT), parts.path.rstrip("/").encode())


def _no_forward() -> ConfigError:
    return ConfigError(
        "that is no address to forward requests to: write http:// or https://, a host, and a path if need be; "
        "credentials belong in headers"
    )
