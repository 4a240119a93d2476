"""Runs outside of a sandbox, as a program of its own: closes ways in a sandbox's network, then becomes slirp4netns."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from contextlib import suppress

from . import kernel

_NEW_ROUTE, _MAIN_TABLE, _STATIC, _UNREACHABLE, _DESTINATION = 24, 254, 4, 7, 1
_REQUEST_ACK_REPLACE_CREATE = 0x1 | 0x4 | 0x100 | 0x400


def main(user_fd: int, net_fd: int, closed: list[str], command: list[str]) -> None:
    """Make each range in `closed` unreachable in the network namespace, then execute `command`."""
    pid = os.fork()
    if pid == 0:
        try:
            kernel.enter_namespace(user_fd, kernel.NEWUSER)
            kernel.enter_namespace(net_fd, kernel.NEWNET)
            hurry_addresses()
            close_ways(closed)
        except OSError as err:
            os._exit(err.errno or 1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        sys.exit(3)
    if os.getuid() != 0:  # a user may enter a network as the root of the namespace it belongs to
        kernel.enter_namespace(user_fd, kernel.NEWUSER)
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    os.execv(command[0], command)


def close_ways(ranges: list[str]) -> None:
    """Add a route that refuses each of the ranges."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel_end:
        kernel_end.bind((0, 0))
        for number, text in enumerate(ranges, 1):
            address, _, length = text.partition("/")
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            target = socket.inet_pton(family, address)
            route = struct.pack("=8BI", family, int(length), 0, 0, _MAIN_TABLE, _STATIC, 0, _UNREACHABLE, 0)
            route += struct.pack("=HH", 4 + len(target), _DESTINATION) + target
            head = struct.pack("=IHHII", 16 + len(route), _NEW_ROUTE, _REQUEST_ACK_REPLACE_CREATE, number, 0)
            kernel_end.send(head + route)
            (code,) = struct.unpack_from("=i", kernel_end.recv(4096), 16)
            if code != 0:
                raise OSError(-code, os.strerror(-code), text) if code < 0 else OSError(errno.EPROTO, "netlink")


def hurry_addresses() -> None:
    """Have an interface take its IPv6 address as soon as it is told one: nobody else is on its network.

    Where these settings cannot be written (/proc/sys read-only) it has one three seconds later.
    """
    for name in ("accept_dad", "router_solicitation_delay"):
        with suppress(OSError), open(f"/proc/sys/net/ipv6/conf/default/{name}", "w") as file:
            file.write("0")
