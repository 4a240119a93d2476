"""Names for sandboxes nobody named: two words and a number, free among those in use."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

_HOW = (
    "amber", "bold", "brisk", "calm", "clear", "crisp", "early", "fair", "fleet", "fresh", "gentle", "keen",
    "lively", "lucid", "mellow", "noble", "plain", "quick", "quiet", "ready", "rapid", "sharp", "silent", "solid",
    "spare", "steady", "still", "sunny", "swift", "tidy", "vivid", "warm",
)  # fmt: skip
_WHAT = (
    "alder", "ash", "aspen", "bay", "beech", "birch", "bramble", "brook", "cedar", "cove", "dale", "elm", "fern",
    "field", "fir", "glade", "grove", "hazel", "heath", "hill", "larch", "lake", "maple", "meadow", "moor", "oak",
    "pine", "reed", "ridge", "rowan", "spruce", "vale", "willow", "yew",
)  # fmt: skip


def new_name(taken: Iterable[str]) -> str:
    """One that is not taken."""
    used = set(taken)
    while True:
        name = f"{secrets.choice(_HOW)}-{secrets.choice(_WHAT)}-{secrets.randbelow(10_000):04}"
        if name not in used:
            return name
