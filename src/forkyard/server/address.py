"""Where a server listens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """As clients on this machine write it."""

    host: str
    port: int
    tls: bool = False

    @property
    def origin(self) -> str:
        """As in "http://127.0.0.1:8700"."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}"
