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
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_SYS_PIDFD_GETFD = 438
_ATTACH_FILTER = 0x401054D5  # ioctl TUNATTACHFILTER
_LOAD_HALF, _LOAD_WORD, _AND, _EQUAL, _RETURN = 0x28, 0x20, 0x54, 0x15, 0x06
_TYPE_AT, _TARGET_AT = 12, 30  # in an Ethernet frame: of what kind it is; for whom the IPv4 packet in it is
_IPV4, _ARP = 0x0800, 0x0806
_PASS, _DROP = 0xFFFFFFFF, 0


def packet_filter(closed: Iterable[IPv4Network], open_: Iterable[IPv4Address]) -> bytes:
    """ARP and IPv4 pass, but for packets to `closed` ranges that are not to an address in `open_`."""
    steps = [(_LOAD_HALF, 0, 0, _TYPE_AT), (_EQUAL, 3, 0, _IPV4), (_EQUAL, 0, 1, _ARP), (_RETURN, 0, 0, _PASS)]
    steps += [(_RETURN, 0, 0, _DROP), (_LOAD_WORD, 0, 0, _TARGET_AT)]
    for address in open_:
        steps += [(_EQUAL, 0, 1, int(address)), (_RETURN, 0, 0, _PASS)]
    for block in closed:
        steps += [(_LOAD_WORD, 0, 0, _TARGET_AT), (_AND, 0, 0, int(block.netmask))]
        steps += [(_EQUAL, 0, 1, int(block.network_address)), (_RETURN, 0, 0, _DROP)]
    return b"".join(struct.pack("=HBBI", *step) for step in [*steps, (_RETURN, 0, 0, _PASS)])


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
