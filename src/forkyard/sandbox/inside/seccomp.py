"""The seccomp filter: a list of permitted system calls, compiled into a tree of comparisons.

Neighbouring numbers with the same answer are one leaf, so a call costs seven or eight comparisons (and for most, on
kernels that remember a filter's constant answers, none), and the program stays short: each sandbox's kernel compiles
it anew.
"""

from __future__ import annotations

import platform
import struct
from typing import NamedTuple

from . import syscalls

_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # where in the kernel's description of a call
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # on x86_64, calls with this bit follow another convention

_NAMESPACES = 0x7E020000
_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink: all that network namespaces keep apart
_PERSONALITY_ASKED = 0xFFFFFFFF
_PERSONALITIES = 0x00060008  # 32 bit addresses in uname, no address randomisation (debuggers): nothing else


class _Step(NamedTuple):
    """One instruction. Where to go is a label, or "" for the next."""

    label: str
    code: int
    value: int
    true: str = ""
    false: str = ""


def filter_program(machine: str | None = None) -> bytes:
    """The filter for a machine, this one if none is named.

    A foreign calling convention kills the process. ValueError for a machine whose calls are not known.
    """
    machine = machine or platform.machine()
    if machine not in syscalls.MACHINES:
        raise ValueError(
            f"no list of system calls for the machine {machine!r}: only for {', '.join(syscalls.MACHINES)}"
        )
    head = [
        _Step("", _LOAD, _ARCH),
        _Step("", _EQUAL, _AUDIT_ARCH[machine], "", "kill"),
        _Step("", _LOAD, _NUMBER),
    ]
    return _assembled([*head, *_tree(_ranges(machine)), *_CHECKS, *_ANSWERS])


def _ranges(machine: str) -> list[tuple[int, str]]:
    """Where each stretch of numbers with the same answer begins, and that answer."""
    answers = dict.fromkeys(syscalls.allowed(machine).values(), "allow")
    answers |= dict.fromkeys(syscalls.refused(machine).values(), "refuse")
    answers |= {number: name for name, number in syscalls.checked(machine).items()}
    found = [(0, answers.get(0, "hide"))]
    for number in range(1, max(answers) + 2):
        answer = answers.get(number, "hide")
        if answer != found[-1][1]:
            found.append((number, answer))
    if machine == "x86_64":
        found.append((_X32, "refuse"))
    return found


def _tree(ranges: list[tuple[int, str]]) -> list[_Step]:
    """Comparisons that lead from a number to its answer, each halving what is left."""
    if len(ranges) == 1:
        return []
    middle = len(ranges) // 2
    below, above = ranges[:middle], ranges[middle:]
    step = _Step(_name(ranges), _AT_LEAST, above[0][0], _name(above), _name(below))
    return [step, *_tree(below), *_tree(above)]


def _name(ranges: list[tuple[int, str]]) -> str:
    """The label of the tree over `ranges`, or the answer itself when there is one only."""
    return ranges[0][1] if len(ranges) == 1 else f"{ranges[0][0]}-{ranges[-1][0]}"


_CHECKS = [
    _Step("clone", _LOAD, _FIRST_ARGUMENT),
    _Step("", _ANY_BIT, _NAMESPACES, "refuse", "allow"),
    _Step("prlimit64", _LOAD, _FIRST_ARGUMENT),
    _Step("", _EQUAL, 0, "allow", "refuse"),  # PID 1 has the same uid, and is not to be limited from inside
    _Step("personality", _LOAD, _FIRST_ARGUMENT),
    _Step("", _EQUAL, _PERSONALITY_ASKED, "allow", ""),
    _Step("", _ANY_BIT, 0xFFFFFFFF ^ _PERSONALITIES, "refuse", "allow"),
    _Step("socket", _LOAD, _FIRST_ARGUMENT),
    _Step("socketpair", _LOAD, _FIRST_ARGUMENT),
    *(_Step("", _EQUAL, family, "allow", "") for family in _FAMILIES),
    _Step("", _RETURN, _ERRNO | _EAFNOSUPPORT),
]
_ANSWERS = [
    _Step("allow", _RETURN, _ALLOW),
    _Step("hide", _RETURN, _ERRNO | _ENOSYS),
    _Step("refuse", _RETURN, _ERRNO | _EPERM),
    _Step("kill", _RETURN, _KILL),
]


def _assembled(steps: list[_Step]) -> bytes:
    at = {step.label: position for position, step in enumerate(steps) if step.label}

    def instruction(here: int, step: _Step) -> bytes:
        true, false = (at[label] - here - 1 if label else 0 for label in (step.true, step.false))
        return struct.pack("HBBI", step.code, true, false, step.value)

    return b"".join(instruction(here, step) for here, step in enumerate(steps))
