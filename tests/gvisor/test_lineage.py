"""Which process descends from which command, from the messages gVisor sends."""

from __future__ import annotations

import struct

import pytest

from forkyard.sandbox.gvisor.guard.lineage import Lineage


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(kind: int, group: int, made: int | None = None, dropped: int = 0) -> bytes:
    context = b"\x20" + varint(group)
    value = b"\x0a" + varint(len(context)) + context
    if made is not None:
        value += b"\x18" + varint(made) + b"\x20" + varint(made)
    return struct.pack("<HHI", 8, kind, dropped) + value


def clone(parent: int, child: int) -> bytes:
    return message(2, parent, child)


def end(group: int) -> bytes:
    return message(5, group)


def heard(*messages: bytes) -> Lineage:
    lineage = Lineage()
    for each in messages:
        lineage.hear(each)
    return lineage


def test_a_message_as_gvisor_sends_it_is_understood() -> None:
    lineage = heard(struct.pack("<HHI", 8, 2, 0) + bytes.fromhex("0a04100e200e180f200f2894b490cddc9aaaf6183080808009"))
    assert lineage.tree(14) == {14, 15}


def test_a_child_whose_parents_have_ended_still_belongs_to_its_command() -> None:
    assert heard(clone(5, 6), clone(6, 300), end(6), clone(300, 8), clone(9, 10)).tree(5) == {5, 300, 8}


def test_a_number_used_again_is_another_command() -> None:
    lineage = heard(clone(5, 6), end(5), clone(5, 7))
    assert lineage.tree(5) == {5, 7}


def test_a_process_ends_with_its_last_thread() -> None:
    lineage = heard(clone(5, 6), clone(6, 6), end(6))
    assert lineage.tree(5) == {5, 6}
    lineage.hear(end(6))
    assert lineage.tree(5) == {5}


def test_a_command_without_children_is_its_own_tree() -> None:
    assert heard(clone(5, 6), clone(8, 9)).tree(7) == {7}


def test_lost_messages_are_noticed() -> None:
    lineage = heard(message(2, 5, 6))
    assert lineage.whole
    lineage.hear(message(5, 6, dropped=1))
    assert not lineage.whole


@pytest.mark.parametrize(
    "nonsense", [b"", b"\x08", b"\x08\0\x02\0\0\0\0\0", b"\x08\0\x02\0\0\0\0\0\x08\x01", b"\x08\0\x05\0\0\0\0\0\x0f"]
)
def test_nonsense_is_as_good_as_a_lost_message(nonsense: bytes) -> None:
    assert not heard(nonsense).whole
