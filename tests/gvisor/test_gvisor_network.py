"""Networks of sandboxes in gVisor: what their guests reach, and what they do not, whatever they try."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import forkyard as vf
from forkyard.sandbox import PUBLIC, Network, Sandbox, SandboxSpec
from forkyard.sandbox.gvisor import GvisorProvider
from forkyard.sandbox.local.network_public import own_addresses, program
from forkyard.sandbox.local.sandbox import LocalSandbox
from tests.env.parts import answering, play, roles, seat
from tests.env.test_model_routes import TASK, Inside, Quiet
from tests.gateway.test_sandboxes import ask
from tests.gateway.upstream import KEY, chat_body, gateway_to, providing, whole
from tests.model.provider import reply
from tests.security.test_network_local import DIAL
from tests.support.web import Web, served

pytestmark = pytest.mark.asyncio(loop_scope="module")
needs_slirp = pytest.mark.skipif(program() is None, reason="slirp4netns is not installed (apt-get install slirp4netns)")


def guard_of(box: Sandbox) -> int:
    assert isinstance(box, LocalSandbox) and box._live is not None
    return box._live.pid


def kernel_of(box: Sandbox) -> int:
    """The process that is the kernel of a sandbox's guests."""
    guard = guard_of(box)
    children = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    (found,) = [pid for pid in children if b"runsc-sandbox" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(found)


async def test_a_kernel_of_guests_stands_in_an_empty_network_which_it_cannot_change(gvisor: GvisorProvider) -> None:
    one, two = [await gvisor.create(SandboxSpec()) for _ in range(2)]
    try:
        kernel = kernel_of(one)
        networks = {Path(f"/proc/{pid}/ns/net").readlink() for pid in ("self", kernel, kernel_of(two))}
        assert len(networks) == 3
        assert re.findall(r"^ *(\w+):", Path(f"/proc/{kernel}/net/dev").read_text(), re.M) == ["lo"]
        assert Path(f"/proc/{kernel}/net/route").read_text().count("\n") == 1
        status = dict(line.split(":\t") for line in Path(f"/proc/{kernel}/status").read_text().splitlines())
        administers, raw = 1 << 12, 1 << 13
        assert int(status["CapEff"], 16) & (administers | raw) == 0 == int(status["CapBnd"], 16) & (administers | raw)
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    finally:
        await one.close()
        await two.close()


async def test_guests_change_nothing_of_their_network_and_send_no_raw_packets(gvisor: GvisorProvider) -> None:
    box = await gvisor.create(SandboxSpec())
    try:
        for attack in (
            "ip link set lo down",
            "ip addr add 169.254.169.254/32 dev lo",
            "ip route add default dev lo",
            "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
            "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 6)'",
            "python3 -c 'import socket; socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)'",
            "python3 -c \"open('/dev/net/tun')\"",
        ):
            assert not (await box.run(attack, timeout=100)).ok, attack
    finally:
        await box.close()


MEET = """
import json, socket, sys
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
    for name in json.loads(sys.argv[1]):
        for address in (name, "\\0" + name, "/proc/1/root" + name, "/proc/self/root" + name):
            try:
                socket.socket(socket.AF_UNIX, kind).connect(address)
                print("connected", address)
            except OSError:
                pass
print(open("/proc/net/unix").read())
"""


async def test_guests_do_not_meet_the_sockets_of_what_runs_around_them(gvisor: GvisorProvider) -> None:
    box = await gvisor.create(SandboxSpec())
    try:
        listed = Path(f"/proc/{guard_of(box)}/net/unix").read_text().splitlines()[1:]
        names = [line.split()[7] for line in listed if len(line.split()) > 7]
        assert names, "runsc listens for the guard"
        said = await box.run(["python3", "-c", MEET, json.dumps([name.lstrip("@") for name in names])], timeout=100)
        assert said.ok, said.stderr
        assert "connected" not in said.stdout
        assert not [name for name in names if name in said.stdout]
        assert Path(f"/proc/{guard_of(box)}/net/tcp").read_text().count("\n") == 1
    finally:
        await box.close()


async def test_a_guest_does_not_reach_the_port_of_another_sandbox(gvisor: GvisorProvider) -> None:
    async with AsyncExitStack() as stack:
        one, two = [await gvisor.create(SandboxSpec()) for _ in range(2)]
        for box in (one, two):
            stack.push_async_callback(box.close)
        heard = asyncio.Event()
        serve = "import socket; s = socket.create_server(('0.0.0.0', 8127)); print(1, flush=True); s.accept()"
        serving = asyncio.create_task(one.run(["python3", "-c", serve], on_output=lambda *said: heard.set()))
        await asyncio.wait_for(heard.wait(), 100)
        addresses = ("127.0.0.1", "127.0.0.2", "0.0.0.0", *own_addresses())
        said = await two.run(["python3", "-c", DIAL, "8127", *addresses], timeout=100)
        assert (said.stdout, said.exit_code) == ("", 0), said.stderr
        assert not serving.done()
        (await one.connect(8127)).close()
        assert (await serving).ok


@pytest.mark.parametrize(
    "network",
    [Network("allowlist", ("example.org",)), pytest.param(PUBLIC, marks=needs_slirp)],
    ids=lambda network: network.mode,
)
async def test_a_network_leads_to_nothing_of_the_hosts(gvisor: GvisorProvider, network: Network) -> None:
    web = Web()
    server = await asyncio.start_server(web, "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    box = await gvisor.create(SandboxSpec(network=network))
    try:
        addresses = ("127.0.0.1", "127.0.0.2", "10.0.2.2", "10.0.2.3", "169.254.169.254", *own_addresses())
        said = await box.run(["python3", "-c", DIAL, str(port), *addresses], timeout=100)
        assert (said.stdout, said.exit_code) == ("", 0), said.stderr
    finally:
        await box.close()
        server.close()
    assert web.connections == 0


async def test_a_program_fetches_through_the_door_and_is_on_the_record(gvisor: GvisorProvider) -> None:
    web = Web()
    async with served(web) as port:
        box = await gvisor.create(SandboxSpec(network=Network("allowlist", (f"127.0.0.1:{port}",))))
        try:
            said = await box.run(f"curl -sS --noproxy '' http://127.0.0.1:{port}/", timeout=100)
            refused = await box.run("curl -sS http://169.254.169.254/", timeout=100)
            assert said.stdout == "hello " and "may not be reached" in refused.stdout, said.stderr + refused.stderr
            assert [(visit.host, visit.refused is None) for visit in box.visits] == [
                ("127.0.0.1", True),
                ("169.254.169.254", False),
            ]
        finally:
            await box.close()
    assert web.connections == 1


async def test_a_program_in_gvisor_asks_its_model_until_the_seal_and_sees_no_key(gvisor: GvisorProvider) -> None:
    async with providing(whole(chat_body("from outside"))) as provider, gateway_to(provider) as gateway:
        trace = vf.Trace()
        route = gateway.open(trace, "m")
        box = await gvisor.create(SandboxSpec())
        endpoint = await route.listen(box)
        answer = await ask(box, endpoint)
        environment = (await box.run("env; cat /proc/*/environ")).stdout
        await route.close()
        assert await ask(box, endpoint) == ""
        await box.close()
    assert answer.startswith("HTTP/1.1 200") and "from outside" in answer
    assert KEY not in answer + environment
    assert len(trace.calls) == 1


async def test_a_rollout_of_an_agent_inside_is_recorded_by_what_it_asked(gvisor: GvisorProvider) -> None:
    async with answering(reply("an answer")) as (gateway, _):
        config = seat(gvisor, Inside(), gateway=gateway)
        (trace,) = (await play(vf.SingleAgentEnv(), TASK, {"agent": config})).traces
    assert trace.ok, trace.reason
    assert roles(trace.messages) == ["user", "assistant"]
    assert (trace.last_reply, trace.steps, trace.usage.input) == ("an answer", 1, 10)
    assert trace.sandbox_provider == "gvisor"


@pytest.mark.slow
async def test_what_an_agent_left_running_reaches_no_model_while_it_is_graded(gvisor: GvisorProvider) -> None:
    async with answering({**reply("again"), "repeat": True}) as (gateway, upstream):
        config = seat(gvisor, Inside(linger=True), gateway=gateway, verifier="shared")
        task = Quiet(vf.TaskData(name="q", prompt="?"))
        (trace,) = (await play(vf.SingleAgentEnv(), task, {"agent": config})).traces
        asked = len(upstream.asked)
    assert asked >= 2 and len(trace.calls) == asked
    assert (trace.status, trace.reward) == (vf.Status.SCORED, 0.0), trace.info
    assert int(trace.info["look"].split("\n")[0]) >= 1  # it is still there and goes on trying
