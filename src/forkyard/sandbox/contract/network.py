"""What is promised of networks: "none", "allowlist", "public", and loopback ports served and reached from outside."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forkyard.errors import ConfigError
from forkyard.sandbox.contract.promise import (
    PATIENCE,
    Stopwatch,
    closing,
    expect,
    expect_equal,
    expect_raises,
    fresh,
    needs,
    sh,
    spec,
)
from forkyard.sandbox.network.policy import NO_NETWORK, PUBLIC, Network
from forkyard.sandbox.network.rules import Rule
from forkyard.sandbox.promises import network_features
from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import Feature

NOWHERE = "192.0.2.1"  # an address kept for documentation: nobody answers


async def _dial(box: Sandbox, host: str, port: int, say: str = "", **options: str) -> tuple[bool, str]:
    """Connect from inside with bash: whether it worked, and the line received or the error."""
    script = (
        f"exec 3<>/dev/tcp/{host}/{port} && {{ printf '%s\\n' '{say}' >&3; IFS= read -r x <&3; printf %s \"$x\"; }}"
    )
    result = await box.run(["bash", "-c", script], timeout=PATIENCE)
    expect(not result.timed_out, f"connecting to {host}:{port} should end at once, it hung")
    return result.exit_code == 0, result.stdout if result.exit_code == 0 else result.stderr


async def _has_bash(box: Sandbox) -> bool:
    return (await box.run(["bash", "-c", "exit 7"], timeout=PATIENCE)).exit_code == 7


@asynccontextmanager
async def _echo(sock: socket.socket, word: str) -> AsyncIterator[list[str]]:
    """Serve a listening socket: answers each line with `word` and the line; yields the lines heard."""
    heard: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode().strip()
        heard.append(line)
        writer.write(f"{word} {line}\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, sock=sock):
        yield heard


def _own_address() -> str | None:
    """An address of this machine that is not loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((NOWHERE, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


async def check_a_network_that_is_not_kept_is_refused(provider: Provider) -> None:
    """A sandbox is not made with a network that the provider does not declare, nor without what it is to block."""
    rule = Rule("example.org", (("X-Key", "of-the-rule"),))
    networks = (
        Network("allowlist", ("example.org",)),
        PUBLIC,
        Network("public", block=("example.org",)),
        Network("public", rules=(rule,)),
    )
    for network in networks:
        if missing := network_features(network) - provider.features:
            with expect_raises(f"creating a sandbox with {network}", ConfigError) as caught:
                async with fresh(provider, spec(network=network)):
                    pass
            caught.expect_named(*missing)


@needs(Feature.NO_NETWORK)
async def check_network_none_means_none(provider: Provider) -> None:
    """With network "none" there is only the sandbox's own loopback: no interface, no route, nothing of the host's."""
    async with fresh(provider, spec(network=NO_NETWORK)) as box:
        interfaces = await sh(box, "sed -e 1,2d -e 's/:.*//' -e 's/ //g' /proc/net/dev")
        # dummy devices some kernels put into every namespace are down and lead nowhere
        routes = await sh(box, "sed 1d /proc/net/route; grep -v ' lo$' /proc/net/ipv6_route 2>/dev/null || :")
        expect("lo" in interfaces.split(), f"loopback should be there, there is {interfaces.split()}")
        expect_equal(routes, "", "routes that lead out")
        if not await _has_bash(box):
            return
        for address in filter(None, (NOWHERE, "169.254.169.254", _own_address())):
            watch = Stopwatch()
            connected, _ = await _dial(box, address, 80)
            expect(not connected, f"connecting to {address} should fail, it worked")
            watch.expect_under(PATIENCE / 2, f"failing to connect to {address}")
        connected, message = await _dial(box, "127.0.0.1", 9)
        expect("refused" in message, f"the sandbox's own loopback should be up and refuse, it says {message!r}")


@needs(Feature.NO_NETWORK)
async def check_the_hosts_loopback_cannot_be_reached(provider: Provider) -> None:
    """A port the host listens on, at loopback or at any address, cannot be reached from inside."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        async with _echo(server, "host") as heard, fresh(provider) as box:
            if await _has_bash(box):
                for address in filter(None, ("127.0.0.1", "127.0.0.2", _own_address())):
                    connected, _ = await _dial(box, address, port, "hello")
                    expect(not connected, f"the host's port at {address} should not be reached, it was")
            expect_equal(heard, [], "lines the host's server heard")


@needs(Feature.LISTEN)
async def check_the_host_serves_a_port_inside(provider: Provider) -> None:
    """`listen` gives a socket the host serves: commands inside reach it on their own loopback, many at once."""
    async with fresh(provider) as box:
        expect(await _has_bash(box), "this check needs bash inside to connect; the image has none")
        server = await box.listen(8123)
        expect_equal(server.getsockname(), ("127.0.0.1", 8123), "address of the listening socket")
        async with _echo(server, "served") as heard:
            expect_equal(await _dial(box, "127.0.0.1", 8123, "one"), (True, "served one"), "the answer inside")
            answers = await asyncio.gather(*(_dial(box, "127.0.0.1", 8123, f"n{n}") for n in range(8)))
            expect_equal(answers, [(True, f"served n{n}") for n in range(8)], "eight answers at once")
            expect_equal(len(heard), 9, "lines heard")


@needs(Feature.LISTEN)
async def check_each_sandbox_has_its_own_ports(provider: Provider) -> None:
    """Two sandboxes can be served on the same port, each by its own server, and the host's own port is not taken."""
    async with fresh(provider) as one, fresh(provider) as two:
        expect(await _has_bash(one), "this check needs bash inside to connect; the image has none")
        async with _echo(await one.listen(8123), "first"), _echo(await two.listen(8123), "second"):
            expect_equal(await _dial(one, "127.0.0.1", 8123, "x"), (True, "first x"), "the answer in the first")
            expect_equal(await _dial(two, "127.0.0.1", 8123, "x"), (True, "second x"), "the answer in the second")


# A GET by bash, through a proxy if there is one, as programs do it; writes the status line.
_GET = """
to=${http_proxy#http://}; to=${to:-$1}
exec 3<>"/dev/tcp/${to%:*}/${to##*:}" || exit 1
printf 'GET http://%s/ HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n' "$1" "$1" >&3
IFS= read -r line <&3 && printf %s "$line"
"""


async def _get(box: Sandbox, where: str) -> str:
    """The status line that a GET from inside gets, or "" when there is none."""
    result = await box.run(["bash", "-c", _GET, "get", where], timeout=PATIENCE)
    expect(not result.timed_out, f"asking {where} should end at once, it hung")
    return result.stdout.strip()


@asynccontextmanager
async def _page() -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP server of this machine, not at loopback if it has another address: its place, and the heads it heard."""
    heard: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = []
        while line := (await reader.readline()).decode().strip():
            head.append(line)
        heard.append("\n".join(head))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    address = _own_address() or "127.0.0.1"
    async with await asyncio.start_server(answer, address, 0) as server:
        yield f"{address}:{server.sockets[0].getsockname()[1]}", heard


@needs(Feature.ALLOWLIST)
async def check_an_allowlist_lets_through_what_it_names(provider: Provider) -> None:
    """With an allowlist its hosts are reached, at the ports it names; every other host is not, by any way."""
    async with _page() as (named, heard), _page() as (other, unheard):
        async with fresh(provider, spec(network=Network("allowlist", (named,)))) as box:
            if not await _has_bash(box):
                return
            expect(" 200 " in await _get(box, named), "a host on the list should answer, it did not")
            for host in (other, "169.254.169.254:80", "127.0.0.1:22", f"{NOWHERE}:80"):
                expect(" 200 " not in await _get(box, host), f"{host} is not on the list, but it answered")
                address, _, port = host.rpartition(":")
                connected, _ = await _dial(box, address, int(port))
                expect(not connected, f"a direct connection to {host} should fail, it worked")
        expect_equal((len(heard), unheard), (1, []), "requests the two servers heard")


@needs(Feature.ALLOWLIST, Feature.LIVE_NETWORK)
async def check_a_network_can_be_changed_while_a_sandbox_runs(provider: Provider) -> None:
    """`set_network` opens and closes a running sandbox's ways out; a stopped one and its forks remember the last."""
    async with _page() as (host, _), fresh(provider) as box:
        if not await _has_bash(box):
            return
        expect_equal(await _get(box, host), "", "an answer without a network")
        await box.set_network(Network("allowlist", (host,)))
        expect(" 200 " in await _get(box, host), "a host allowed later should answer, it did not")
        await box.set_network(NO_NETWORK)
        expect_equal(await _get(box, host), "", "an answer after the network was taken away")
        await box.stop()
        await box.set_network(Network("allowlist", (host,)))
        await box.start()
        expect(" 200 " in await _get(box, host), "a host allowed while it was stopped should answer, it did not")


@needs(Feature.ALLOWLIST, Feature.NETWORK_RULES)
async def check_a_rule_adds_headers_the_sandbox_has_not(provider: Provider) -> None:
    """A request to a host with a rule arrives with the rule's headers, of which nothing is found inside."""
    async with _page() as (host, heard):
        rules = (Rule(host, (("X-Key", "of-the-rule"),)),)
        async with fresh(provider, spec(network=Network("allowlist", (host,), rules=rules))) as box:
            if not await _has_bash(box):
                return
            expect(" 200 " in await _get(box, host), "a host with a rule should answer, it did not")
            expect("of-the-rule" not in await sh(box, "env"), "the rule's header is in the environment inside")
        arrived = [line for head in heard for line in head.splitlines() if line.lower().startswith("x-key:")]
        expect_equal(arrived, ["X-Key: of-the-rule"], "the header that arrives")


@needs(Feature.ALLOWLIST, Feature.FORK)
async def check_a_fork_has_the_network_of_its_source(provider: Provider) -> None:
    """A fork reaches what its source may reach, by a way of its own."""
    async with _page() as (host, _), fresh(provider, spec(network=Network("allowlist", (host,)))) as box:
        if not await _has_bash(box):
            return
        await box.stop()
        async with closing(await box.fork()) as fork:
            expect(" 200 " in await _get(fork, host), "what the source may reach should answer, it did not")


@needs(Feature.LISTEN, Feature.CONNECT)
async def check_the_host_reaches_a_port_inside(provider: Provider) -> None:
    """`connect` gives a connection to a loopback port inside; ConnectionError where nothing accepts."""
    async with fresh(provider) as box:
        with expect_raises("connecting to a port nobody listens at", ConnectionError):
            (await box.connect(8125)).close()
        async with _echo(await box.listen(8124), "inside"):
            reader, writer = await asyncio.open_connection(sock=await box.connect(8124))
            writer.write(b"hello\n")
            async with asyncio.timeout(PATIENCE):
                expect_equal(await reader.readline(), b"inside hello\n", "what a server inside answers")
            writer.close()


@needs(Feature.PUBLIC_NETWORK)
async def check_network_public_has_a_way_out(provider: Provider) -> None:
    """With network "public" a sandbox has a way out, an interface or a proxy, that does not lead to the host."""
    async with _page() as (own, heard), fresh(provider, spec(network=PUBLIC)) as box:
        interfaces = (await sh(box, "sed -e 1,2d -e 's/:.*//' -e 's/ //g' /proc/net/dev")).split()
        proxy = await sh(box, 'printf %s "$http_proxy"')
        expect(proxy or [name for name in interfaces if name != "lo"], "there is neither a proxy nor an interface")
        if await _has_bash(box):
            for host in (own, "169.254.169.254:80"):
                expect(" 200 " not in await _get(box, host), f"{host} is not public, but it answered")
        expect_equal(heard, [], "requests this machine's own server heard")
