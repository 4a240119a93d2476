"""Small values as instructions spell them; None for a text that is no such value."""

from __future__ import annotations

LARGEST_ID = (1 << 32) - 2
_LARGEST_MODE = 0o7777
_SWITCH = {"": True, "true": True, "1": True, "false": False, "0": False}


def parse_mode(text: str) -> int | None:
    """A mode in octal digits."""
    if not text or set(text) - set("01234567"):
        return None
    mode = int(text, 8)
    return mode if mode <= _LARGEST_MODE else None


def parse_switch(text: str) -> bool | None:
    """Whether something that is named is on; it is when no value is given with it."""
    return _SWITCH.get(text.lower())


def parse_id(text: str) -> int | None:
    """The number of a user or a group."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    number = int(text)
    return number if number <= LARGEST_ID else None
