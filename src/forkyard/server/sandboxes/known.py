"""What the server's sandboxes are called, for whoever sees them as the provider has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forkyard.server.files import server_home
from forkyard.server.sandboxes.record import Record
from forkyard.server.state import State


def known_names(home: Path) -> Mapping[str, str]:
    """The names clients gave them, by the provider's, whether the server runs or not."""
    file = server_home(home) / "state.sqlite"
    if not file.exists():
        return {}
    state = State(file)
    try:
        return {record.box_name: record.name for record in state.table("sandboxes", Record).list()}
    finally:
        state.close()
