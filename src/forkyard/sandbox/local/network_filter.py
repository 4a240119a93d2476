"""A filter on a sandbox's interface: what slirp4netns gets to see of the packets a guest sends.

Routes alone do not keep a guest in: a socket bound to the interface takes any address for a neighbour, and multicast
needs no route at all. The filter sits where slirp4netns reads.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from pathlib import Path

from forkyard.sandbox.network.addresses import PUBLIC_V6, AddressRange

_libc = ctypes.CDLL(None, use_errno=True)
_SYS_PIDFD_GETFD = 438
_ATTACH_FILTER = 0x401054D5  # ioctl TUNATTACHFILTER
_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD, _AND, _RETURN = 0x30, 0x28, 0x20, 0x54, 0x06
_JUMP, _EQUAL, _GREATER, _AT_LEAST = 0x05, 0x15, 0x25, 0x35
_KIND_AT, _TARGET_AT = 12, 30  # in an Ethernet frame: of what kind it is; for whom the IPv4 packet in it is
_CARRIES_AT, _TARGET_V6_AT, _MESSAGE_AT = 20, 38, 54  # of an IPv6 packet: what it carries, for whom; an ICMP's kind
_IPV4, _IPV6, _ARP = 0x0800, 0x86DD, 0x0806
_TCP, _UDP, _ICMP_V6 = 6, 17, 58
_NEIGHBOURS = 133, 136  # the first and the last kind of message by which routers and neighbours are found
_PASS, _DROP = (_RETURN, 0, 0, 0xFFFFFFFF), (_RETURN, 0, 0, 0)

Step = tuple[int, int, int, int]
"""One of the kernel's: what to do, how many steps to skip if it holds and if not, and a number."""


def packet_filter(closed: Iterable[AddressRange], open_: Iterable[IPv4Address], *, ipv6: bool) -> bytes:
    """ARP and IPv4 pass, but for packets to `closed` ranges that are not to an address in `open_`.

    With `ipv6`, so do TCP, UDP and ICMP to addresses of 2000::/3 that are not in `closed` ranges, and what finds
    neighbours.
    """
    closed = list(closed)
    version_4 = _version_4([block for block in closed if isinstance(block, IPv4Network)], open_)
    steps = [(_LOAD_HALF, 0, 0, _KIND_AT), (_EQUAL, 0, 1, _ARP), _PASS]
    if ipv6:
        steps += [(_EQUAL, 0, 1, _IPV6), (_JUMP, 0, 0, len(version_4)), *version_4]
        steps += _version_6([block for block in closed if isinstance(block, IPv6Network)])
    else:
        steps += version_4
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _version_4(closed: Iterable[IPv4Network], open_: Iterable[IPv4Address]) -> list[Step]:
    steps = [(_EQUAL, 1, 0, _IPV4), _DROP, (_LOAD_WORD, 0, 0, _TARGET_AT)]
    for address in open_:
        steps += [(_EQUAL, 0, 1, int(address)), _PASS]
    for block in closed:
        steps += [(_LOAD_WORD, 0, 0, _TARGET_AT), (_AND, 0, 0, int(block.netmask))]
        steps += [(_EQUAL, 0, 1, int(block.network_address)), _DROP]
    return [*steps, _PASS]


def _version_6(closed: Iterable[IPv6Network]) -> list[Step]:
    """Whatever carries headers before its content is dropped, so that the address in front is the one that counts."""
    first, last = _NEIGHBOURS
    steps = [(_LOAD_BYTE, 0, 0, _CARRIES_AT), (_EQUAL, 0, 4, _ICMP_V6), (_LOAD_BYTE, 0, 0, _MESSAGE_AT)]
    steps += [(_AT_LEAST, 0, 2, first), (_GREATER, 1, 0, last), _PASS]
    steps += [(_LOAD_BYTE, 0, 0, _CARRIES_AT), (_EQUAL, 3, 0, _TCP), (_EQUAL, 2, 0, _UDP), (_EQUAL, 1, 0, _ICMP_V6)]
    steps += [_DROP, *_unless_in(PUBLIC_V6, [_DROP])]
    for block in closed:
        steps += _when_in(block, [_DROP])
    return [*steps, _PASS]


def _when_in(block: IPv6Network, then: list[Step]) -> list[Step]:
    """What is done with a packet to a range."""
    mask, value = int(block.netmask), int(block.network_address)
    shifts = [shift for shift in (96, 64, 32, 0) if mask >> shift & 0xFFFFFFFF]
    steps: list[Step] = []
    for number, shift in enumerate(shifts):
        left = 3 * (len(shifts) - 1 - number) + len(then)
        steps += [(_LOAD_WORD, 0, 0, _TARGET_V6_AT + (96 - shift) // 8), (_AND, 0, 0, mask >> shift & 0xFFFFFFFF)]
        steps += [(_EQUAL, 0, left, value >> shift & 0xFFFFFFFF)]
    return [*steps, *then]


def _unless_in(block: IPv6Network, then: list[Step]) -> list[Step]:
    return [*_when_in(block, [(_JUMP, 0, 0, len(then))]), *then]


def attach_filter(pid: int, filter_: bytes) -> None:
    """Attach a filter to the interface that process `pid`, a child of ours, holds. Raises OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        fd = _libc.syscall(_SYS_PIDFD_GETFD, pidfd, _interface_of(pid), 0)
        if fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(pidfd)
    try:
        buffer = ctypes.create_string_buffer(filter_, len(filter_))
        described = struct.pack("@HP", len(filter_) // 8, ctypes.addressof(buffer))
        fcntl.ioctl(fd, _ATTACH_FILTER, described)
    finally:
        os.close(fd)


def _interface_of(pid: int) -> int:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if str(entry.readlink()) == "/dev/net/tun":
                return int(entry.name)
    raise FileNotFoundError("it holds no interface")
