"""What a sandbox may reach: the value that says it, and the judgement of a host, a port and an address by it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from forkyard.errors import ConfigError
from forkyard.sandbox.network.addresses import Address, AddressRange, is_public
from forkyard.sandbox.network.rules import Rule

Mode = Literal["none", "allowlist", "public"]
WEB_PORTS = frozenset({80, 443})  # what an entry without a port means

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PORT = re.compile(r"[0-9]{1,5}")
_MAPPED = 96  # bits before an IPv4 address that is written as an IPv6 one


@dataclass(frozen=True, slots=True)
class Network:
    """What a sandbox may reach beyond its own loopback. Raises ConfigError for entries that are no hosts.

    none       nothing
    allowlist  the hosts in `allow`, at the ports 80 and 443 unless an entry names another
    public     every public address; `allow` adds addresses that are not public

    An entry is a name, "*.example.org" (what lies below it, not itself), an address, or a range as 10.0.0.0/8, and may
    end in ":port". What matches `block` is refused whatever else is said, and private, loopback and link-local
    addresses are refused, also behind an allowed name, unless an address or a range in `allow` covers them.

    `rules` say what is done with requests on their way, the first that covers a host; they allow nothing by themselves.
    `drain` names hosts; connections to them are waited for by who asks for it (`Drains`).
    """

    mode: Mode = "none"
    allow: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    drain: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in ("none", "allowlist", "public"):
            raise ConfigError(f"there is no network {self.mode!r}: write 'none', 'allowlist' or 'public'")
        if self.mode == "none" and (self.allow or self.block or self.rules or self.drain):
            raise ConfigError("network 'none' reaches no host: hosts have a meaning with 'allowlist' or 'public' only")
        for entry in (*self.allow, *self.block, *self.drain, *(rule.target for rule in self.rules)):
            _pattern(entry)

    def refuses_host(self, host: str, port: int) -> str | None:
        """Why this host may not be asked for, or None; its addresses are judged on their own once they are known."""
        if self.mode == "none":
            return "this sandbox has no network"
        if _covers(self.block, host, port, every_port=True):
            return "the network's block list names it"
        if self.mode == "public" or _covers(self.allow, host, port):
            return None
        if _covers(self.allow, host, port, every_port=True):
            return f"the network's allowlist has it at other ports than {port}"
        return "it is not on the network's allowlist"

    def refuses_address(self, address: Address, port: int) -> str | None:
        """Why a connection to this address may not be made, whatever name led to it; or None."""
        if _covers(self.block, str(address), port, every_port=True):
            return f"the network's block list covers its address {address}"
        if is_public(address) or self.lists(address, port):
            return None
        return f"its address {address} is not a public one"

    def lists(self, address: Address, port: int) -> bool:
        """Whether an address or a range in `allow` covers this address."""
        return _covers(self.allow, str(address), port)

    def rule_for(self, host: str, port: int) -> Rule | None:
        """What is done with requests to this host."""
        return next((rule for rule in self.rules if _pattern(rule.target).covers(host, port)), None)

    def drains(self, host: str, port: int, address: Address | None) -> bool:
        """Whether connections to this host, at this address, are waited for."""
        places = (host,) if address is None else (host, str(address))
        return any(_covers(self.drain, place, port, every_port=True) for place in places)

    def trusts_tunnel(self, host: str, port: int) -> bool:
        """Whether a tunnel to this host may carry anything; else it has to be TLS, made out to the same name.

        A port that an entry names is trusted: only TLS says whom it is for, and ports are named for other protocols.
        """
        if self.mode == "public" and not self.block:
            return True
        return any(_pattern(entry).port == port and _pattern(entry).covers(host, port) for entry in self.allow)


NO_NETWORK = Network()
PUBLIC = Network("public")


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One entry: a name (with what is below it in place of itself), or a range of addresses."""

    name: str | None
    below: bool
    addresses: AddressRange | None
    port: int | None

    def covers(self, host: str, port: int, every_port: bool = False) -> bool:
        if port not in (WEB_PORTS if self.port is None else (self.port,)) and not (every_port and self.port is None):
            return False
        if self.addresses is not None:
            address = literal(host)
            return address is not None and address.version == self.addresses.version and address in self.addresses
        return host.endswith(f".{self.name}") if self.below else host == self.name


def names_port(entry: str) -> bool:
    """Whether an entry says at which port."""
    return _pattern(entry).port is not None


def literal(host: str) -> Address | None:
    """The address a host is written as; None for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_host_name(name: str) -> bool:
    """Whether this can be the name of a host, in lower case."""
    return 0 < len(name) <= 253 and all(_LABEL.fullmatch(label) for label in name.split("."))


def _covers(entries: Iterable[str], host: str, port: int, every_port: bool = False) -> bool:
    return any(_pattern(entry).covers(host, port, every_port) for entry in entries)


@lru_cache(maxsize=4096)
def _pattern(entry: str) -> _Pattern:
    text = entry.strip().lower()
    host, port = text, None
    if _range(text) is None and ":" in text:
        host, _, digits = text.rpartition(":")
        if not _PORT.fullmatch(digits) or not 0 < int(digits) < 65536:
            raise _no_host(entry)
        port = int(digits)
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host.removesuffix(".")
    addresses = _range(host)
    if addresses is not None:
        return _Pattern(None, False, addresses, port)
    name = host.removeprefix("*.")
    if not is_host_name(name) or re.fullmatch(r"[0-9.]+", name):
        raise _no_host(entry)
    return _Pattern(name, name != host, None, port)


def _range(text: str) -> AddressRange | None:
    """The range that is written; one of IPv4 addresses written as IPv6 is that of the IPv4 addresses, as a host is."""
    try:
        found = None if "%" in text else ipaddress.ip_network(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Network) and found.prefixlen >= _MAPPED:
        address = found.network_address.ipv4_mapped
        return found if address is None else ipaddress.IPv4Network((address, found.prefixlen - _MAPPED))
    return found


def _no_host(entry: str) -> ConfigError:
    return ConfigError(
        f"{entry!r} is no host a network can name: write a name, '*.' and a name, an address, or a range such as "
        "10.0.0.0/8 (no bits set after its length), with ':port' behind it for a port other than 80 and 443"
    )
