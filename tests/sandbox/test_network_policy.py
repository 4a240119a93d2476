"""What a network allows: hosts, ports and addresses, entry by entry."""

from __future__ import annotations

import ipaddress

import pytest

from forkyard.errors import ConfigError
from forkyard.sandbox import NO_NETWORK, PUBLIC, Network
from forkyard.sandbox.network.addresses import is_own, is_public, resolve


def allows(entry: str, host: str, port: int = 443) -> bool:
    return Network("allowlist", (entry,)).refuses_host(host, port) is None


@pytest.mark.parametrize(
    ("entry", "host", "port"),
    [
        ("example.org", "example.org", 80),
        ("Example.ORG.", "example.org", 443),
        ("*.example.org", "a.b.example.org", 443),
        ("localhost", "localhost", 80),
        ("example.org:8443", "example.org", 8443),
        ("10.1.2.3", "10.1.2.3", 443),
        ("10.0.0.0/8", "10.255.0.1", 80),
        ("10.0.0.0/8:5432", "10.255.0.1", 5432),
        ("[2001:db8::1]:8443", "2001:db8::1", 8443),
        ("2001:db8::/32", "2001:db8::5", 443),
        ("::ffff:10.1.2.3", "10.1.2.3", 443),
        ("::ffff:10.0.0.0/104", "10.255.0.1", 80),
        ("[::ffff:10.1.2.3]:8443", "::ffff:10.1.2.3", 8443),
    ],
)
def test_an_entry_covers(entry: str, host: str, port: int) -> None:
    assert allows(entry, host, port)


@pytest.mark.parametrize(
    ("entry", "host", "port"),
    [
        ("example.org", "sub.example.org", 443),
        ("example.org", "badexample.org", 443),
        ("*.example.org", "example.org", 443),
        ("*.example.org", "badexample.org", 443),
        ("*.example.org", "example.org.evil.test", 443),
        ("example.org", "example.org", 22),
        ("example.org:8443", "example.org", 443),
        ("10.0.0.0/8", "11.0.0.1", 443),
        ("10.0.0.0/8", "2001:db8::1", 443),
        ("10.0.0.1", "167772161", 443),
        ("0.0.0.0/0", "example.org", 443),
        ("::/0", "10.0.0.1", 443),
        ("64:ff9b::10.0.0.1", "10.0.0.1", 443),
    ],
)
def test_an_entry_does_not_cover(entry: str, host: str, port: int) -> None:
    assert not allows(entry, host, port)


@pytest.mark.parametrize(
    "entry",
    ["", "*", "*.*.test", "a*.test", "http://a.test", "a.test/x", "a_b.test", "-a.test", "a..test", "10.0.0.1/8",
     "1.2.3", "a.test:0", "a.test:70000", "a.test:x", "fe80::1%eth0", "é.test"],
)  # fmt: skip
def test_what_is_no_host_is_refused_when_the_network_is_made(entry: str) -> None:
    with pytest.raises(ConfigError, match="is no host"):
        Network("allowlist", (entry,))


def test_a_block_holds_whichever_way_an_address_is_written() -> None:
    network = Network("public", block=("::ffff:11.0.0.0/104",))
    assert network.refuses_host("11.1.1.1", 443)
    assert network.refuses_host("::ffff:11.1.1.1", 443)
    assert network.refuses_address(ipaddress.ip_address("11.1.1.1"), 443)


def test_modes_that_do_not_exist_and_hosts_of_no_network_are_refused() -> None:
    with pytest.raises(ConfigError, match="'full'"):
        Network("full")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reaches no host"):
        Network("none", ("a.test",))


def test_no_network_refuses_and_a_public_one_allows_every_name() -> None:
    assert NO_NETWORK.refuses_host("example.org", 443)
    assert PUBLIC.refuses_host("example.org", 25) is None


def test_blocked_hosts_are_refused_at_every_port_whatever_else_is_said() -> None:
    network = Network("public", block=("*.evil.test", "11.0.0.0/8"))
    assert network.refuses_host("a.evil.test", 8080)
    assert network.refuses_host("11.1.1.1", 22)
    assert network.refuses_address(ipaddress.ip_address("11.1.1.1"), 22)  # a name led to it
    assert network.refuses_host("good.test", 22) is None
    assert Network("allowlist", ("a.test",), ("a.test",)).refuses_host("a.test", 443)


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.255", "169.254.169.254", "172.16.0.1",
     "192.168.1.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
     "::", "::1", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1",
     "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:808:808::", "2001::1", "2001:db8::1", "100::1"],
)  # fmt: skip
def test_special_addresses_are_not_public_however_they_are_wrapped(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert not is_public(address)
    assert PUBLIC.refuses_address(address, 443)


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"])
def test_public_addresses_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


def test_a_listed_range_lifts_the_ban_on_private_addresses_for_its_ports_only() -> None:
    network = Network("allowlist", ("db.test:5432", "10.0.0.0/8:5432"))
    assert network.refuses_address(ipaddress.ip_address("10.0.0.7"), 5432) is None
    assert network.refuses_address(ipaddress.ip_address("10.0.0.7"), 80)
    assert network.refuses_address(ipaddress.ip_address("192.168.0.7"), 5432)


def test_the_machines_own_addresses_are_known() -> None:
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    assert not is_own(ipaddress.ip_address("8.8.8.8"))


async def test_the_machines_resolver_is_asked() -> None:
    assert "127.0.0.1" in await resolve("localhost")
    with pytest.raises(OSError, match="."):
        await resolve("does-not-exist.invalid")
