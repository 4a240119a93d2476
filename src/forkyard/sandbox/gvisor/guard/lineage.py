"""Which process of a sandbox descends from which command, as gVisor tells it: of every clone, and of every exit.

gVisor sends a message for each, before the process goes on: a header (its size, the kind of the message, how many
were dropped before it) and a protobuf value. Only numbers of processes are read, so nothing a guest names matters.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

POINTS = ("sentry/clone", "sentry/task_exit")
_HEADER = struct.Struct("<HHI")
_CLONE, _EXIT = 2, 5
_CONTEXT, _CREATED_GROUP = 1, 4  # fields of both kinds, and of a clone
_GROUP = 4  # of a context
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Lineage:
    """The live processes that were ever cloned, each with the number of its family: that of one command."""

    def __init__(self) -> None:
        self._families: dict[int, int] = {}
        self._threads: dict[int, int] = {}
        self._numbers = itertools.count()
        self.whole = True
        """Whether no message was lost."""

    def hear(self, message: bytes) -> None:
        """Take in one message; what is none is as good as a lost one."""
        try:
            size, kind, dropped = _HEADER.unpack_from(message)
            self.whole = self.whole and dropped == 0
            if kind == _CLONE:
                self._cloned(*_groups(message[size:]))
            elif kind == _EXIT:
                self._exited(_groups(message[size:])[0])
        except (struct.error, IndexError, TypeError, KeyError, ValueError):
            self.whole = False

    def _cloned(self, parent: int, child: int) -> None:
        if child == parent:
            self._threads[parent] = self._threads.get(parent, 1) + 1
            return
        if parent not in self._families:  # a command's own process: nobody cloned it
            self._families[parent] = next(self._numbers)
        self._families[child] = self._families[parent]

    def _exited(self, group: int) -> None:
        left = self._threads.pop(group, 1) - 1
        if left > 0:
            self._threads[group] = left
        else:
            self._families.pop(group, None)

    @property
    def everyone(self) -> set[int]:
        """Every live process that has a parent or a child."""
        return set(self._families)

    def tree(self, process: int) -> set[int]:
        """The live processes of the command whose own process this is, itself among them."""
        family = self._families.get(process)
        return {process} | {pid for pid, its in self._families.items() if its == family is not None}


def _groups(value: bytes) -> tuple[int, int]:
    """The process that acts, and the one it made (0 when it made none)."""
    fields = dict(_fields(value))
    context = fields[_CONTEXT]
    if isinstance(context, int):
        raise TypeError("a context that is a number")
    group, made = dict(_fields(context))[_GROUP], fields.get(_CREATED_GROUP, 0)
    if not isinstance(group, int) or not isinstance(made, int):
        raise TypeError("a process that is no number")
    return group, made


def _fields(value: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(value):
        tag, at = _varint(value, at)
        kind = tag & 7
        if kind == _VARINT:
            number, at = _varint(value, at)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            size, at = _varint(value, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[kind]
        yield tag >> 3, value[at : at + size]
        at += size


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
