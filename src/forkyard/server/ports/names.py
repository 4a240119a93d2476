"""The host names of ports: `<port>-<sandbox>.<zone>`, the sandbox told by the hexadecimal digits of its id."""

from __future__ import annotations

import re
import uuid

_LABEL = re.compile(r"([1-9][0-9]{0,4})-([0-9a-f]{32})")


def hostname(port: int, sandbox_id: str, zone: str) -> str:
    """The name of a port."""
    return f"{port}-{uuid.UUID(sandbox_id).hex}.{zone}"


def label_of(host: str, zone: str) -> str | None:
    """What stands before the zone in a request's Host; None for a host that is not in it."""
    name, dot, rest = host.rpartition(":")[0].lower().partition(".") if ":" in host else host.lower().partition(".")
    return name if dot and rest.removesuffix(".") == zone else None


def port_of(label: str) -> tuple[int, str] | None:
    """The port and the id of the sandbox that a label names; None for one that is no port's."""
    found = _LABEL.fullmatch(label)
    if found is None or int(found[1]) > 65_535:
        return None
    return int(found[1]), str(uuid.UUID(found[2]))
