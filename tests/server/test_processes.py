"""The process socket as the wire says, over a real server."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from forkyard.server.processes.registry import Processes
from forkyard.server.sandboxes import Sandboxes
from forkyard.server.serving import Server

PATIENCE = 100


@pytest_asyncio.fixture(loop_scope="module")
async def box(http: httpx2.AsyncClient) -> AsyncIterator[str]:
    """The id of a running sandbox."""
    async with sandbox(http) as made:
        yield made


@asynccontextmanager
async def sandbox(http: httpx2.AsyncClient, **more: Any) -> AsyncIterator[str]:
    body = {"base_image": "host", **more}
    made = (await http.post("/api/sandboxes?wait=true", json=body)).raise_for_status().json()["data"]
    assert made["status"] == "running", made
    at = f"/api/sandboxes/{made['sandbox_id']}"
    try:
        yield made["sandbox_id"]
    finally:
        await http.post(f"{at}/stop")
        await http.delete(at)


class Talk:
    """One socket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.output = {1: b"", 2: b""}
        self.cursor: int | None = None
        self.offsets: list[int] = []

    async def say(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def told(self) -> dict[str, Any]:
        """The next text message; frames before it are put together."""
        async with asyncio.timeout(PATIENCE):
            while not isinstance(message := await self.socket.recv(), str):
                self.frame(message)
        return dict(json.loads(message))

    def frame(self, message: bytes) -> None:
        assert len(message) <= 1 << 20
        offset = int.from_bytes(message[1:9], "big")
        assert self.cursor is None or offset >= self.cursor, "frames come in order"
        self.offsets.append(offset)
        self.cursor = offset + len(message) - 9
        self.output[message[0]] += message[9:]

    async def heard(self, wanted: bytes, stream: int = 1) -> None:
        """Frames until `wanted` is in the output."""
        async with asyncio.timeout(PATIENCE):
            while wanted not in self.output[stream]:
                message = await self.socket.recv()
                assert isinstance(message, bytes), message
                self.frame(message)

    async def closed(self) -> tuple[int, str]:
        async with asyncio.timeout(PATIENCE):
            await self.socket.wait_closed()
        return self.socket.close_code or 0, self.socket.close_reason or ""


async def address_of(http: httpx2.AsyncClient, box: str) -> str:
    answer = await http.post(f"/api/sandboxes/{box}/connections")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["data"]["url"])


@asynccontextmanager
async def talk(http: httpx2.AsyncClient, box: str, **first: Any) -> AsyncIterator[Talk]:
    """A socket, and the first thing said on it."""
    async with connect(await address_of(http, box), proxy=None) as socket:
        made = Talk(socket)
        if first:
            await made.say(**first)
        yield made


async def started(talk: Talk) -> str:
    told = await talk.told()
    assert told == {"type": "started", "process_id": told.get("process_id")}, told
    return str(told["process_id"])


async def ran(http: httpx2.AsyncClient, box: str, command: str, **more: Any) -> tuple[Talk, dict[str, Any]]:
    """A command that needs no input: its socket, closed by now, and what was said of its end."""
    async with talk(http, box, type="start", command=command, terminal=False, env={}, **more) as made:
        await started(made)
        end = await made.told()
        await made.closed()
    return made, end


async def test_a_command_runs_and_its_streams_share_one_counter(http: httpx2.AsyncClient, box: str) -> None:
    script = "printf out; read -r go; printf error >&2; read -r go; printf more; exit 7"
    async with talk(http, box, type="start", command=script) as made:
        await started(made)
        await made.heard(b"out")
        await made.socket.send(b"go\n")
        await made.heard(b"error", 2)
        await made.socket.send(b"go\n")
        end = await made.told()
        await made.closed()
    assert end == {"type": "exit", "status": "completed", "cursor": 12, "exit_code": 7}
    assert made.output == {1: b"outmore", 2: b"error"}
    assert made.offsets == [0, 3, 8]
    assert (made.socket.close_code, made.socket.close_reason) == (1000, "process exited with code 7")


async def test_a_command_has_its_environment_and_directory(http: httpx2.AsyncClient) -> None:
    async with sandbox(http, env={"FROM": "creation", "BOTH": "creation"}) as box:
        async with talk(
            http,
            box,
            type="start",
            command='bash -c "$COMMAND"',
            env={"COMMAND": "pwd; echo $FROM $BOTH", "BOTH": "start"},
            cwd="/tmp",
        ) as made:
            await started(made)
            assert (await made.told())["exit_code"] == 0
        assert made.output[1] == b"/tmp\ncreation start\n"


async def test_a_death_by_a_signal_is_a_shells_code(http: httpx2.AsyncClient, box: str) -> None:
    _, end = await ran(http, box, "kill -9 $$")
    assert end == {"type": "exit", "status": "completed", "cursor": 0, "exit_code": 137}


async def test_a_timeout_keeps_the_output_so_far(http: httpx2.AsyncClient, box: str) -> None:
    made, end = await ran(http, box, "echo early; sleep 100 & sleep 100", timeout_seconds=2)
    assert (end["status"], end["cursor"], "exit_code" in end) == ("timed_out", 6, False)
    assert made.output[1] == b"early\n"
    assert made.socket.close_code == 1000


async def test_input_is_interactive_and_ends_when_it_is_closed(http: httpx2.AsyncClient, box: str) -> None:
    async with talk(http, box, type="start", command="while read -r line; do echo got $line; done; echo end") as made:
        await started(made)
        for word in (b"one", b"two"):
            await made.socket.send(word + b"\n")
            await made.heard(b"got " + word)
        await made.say(type="close_stdin")
        assert (await made.told())["exit_code"] == 0
        assert made.output[1] == b"got one\ngot two\nend\n"


async def test_a_terminal_is_one_and_can_be_resized(http: httpx2.AsyncClient, box: str) -> None:
    script = "test -t 0 && stty size; trap 'stty size; exit 4' WINCH; echo ready >&2; while :; do sleep 0.05; done"
    async with talk(http, box, type="start", command=script, terminal={"cols": 90, "rows": 30}) as made:
        process = await started(made)
        await made.heard(b"ready")
        async with talk(http, box, type="resize", process_id=process, cols=100, rows=40) as control:
            assert await control.told() == {"type": "resized"}
            assert (await control.closed())[0] == 1000
        assert (await made.told())["exit_code"] == 4
        assert made.output == {1: b"30 90\r\nready\r\n40 100\r\n", 2: b""}
    async with talk(http, box, type="start", command="stty size", terminal=True) as made:
        await started(made)
        await made.told()
        assert made.output[1] == b"24 80\r\n"


async def test_a_kill_ends_the_tree_and_tells_both_sockets(http: httpx2.AsyncClient, box: str) -> None:
    async with talk(http, box, type="start", command="trap '' TERM; echo begun; sleep 100 & sleep 100") as made:
        process = await started(made)
        await made.heard(b"begun")
        for _ in range(2):  # also when it has ended
            async with talk(http, box, type="kill", process_id=process) as control:
                assert await control.told() == {"type": "killed"}
        end = await made.told()
        assert (end["status"], end["cursor"], "exit_code" in end) == ("cancelled", 6, False)


async def test_a_process_goes_on_when_its_socket_closes_and_can_be_attached(http: httpx2.AsyncClient, box: str) -> None:
    async with talk(http, box, type="start", command="echo first; read -r line; echo $line; echo e >&2") as made:
        process = await started(made)
        await made.heard(b"first\n")
    async with talk(http, box, type="attach", process_id=process, offset=2) as again:
        assert await again.told() == {"type": "attached", "process_id": process}
        await again.heard(b"rst\n")
        await again.socket.send(b"typed\n")
        end = await again.told()
        assert end == {"type": "exit", "status": "completed", "cursor": 14, "exit_code": 0}
        assert again.output == {1: b"rst\ntyped\n", 2: b"e\n"}
        assert again.offsets[0] == 2
    for offset, wanted in ((0, b"first\ntyped\n"), (6, b"typed\n"), (14, b""), (99, b"")):  # after its end
        async with talk(http, box, type="attach", process_id=process, offset=offset) as late:
            assert (await late.told())["type"] == "attached"
            assert (await late.told())["cursor"] == 14
            assert late.output[1] == wanted


async def test_input_sent_before_the_socket_closed_still_arrives(http: httpx2.AsyncClient, box: str) -> None:
    size = 700_000
    async with talk(http, box, type="start", command="while [ ! -e /go ]; do sleep 0.02; done; wc -c") as made:
        process = await started(made)
        await made.socket.send(b"x" * size)
        await made.say(type="close_stdin")
    assert (await ran(http, box, "touch /go"))[1]["exit_code"] == 0
    async with talk(http, box, type="attach", process_id=process, offset=0) as again:
        await again.told()
        await again.told()
        assert again.output[1].strip() == str(size).encode()


async def test_what_a_detached_process_writes_beyond_the_bound_pushes_out_the_oldest(
    http: httpx2.AsyncClient, box: str
) -> None:
    size = 5_000_000
    async with talk(
        http, box, type="start", command=f"read -r go; head -c {size} /dev/zero; echo end; touch /x"
    ) as made:
        process = await started(made)
        await made.socket.send(b"go\n")
    assert (await ran(http, box, "while [ ! -e /x ]; do sleep 0.02; done", timeout_seconds=100))[1]["exit_code"] == 0
    async with talk(http, box, type="attach", process_id=process, offset=0) as late:
        await late.told()
        end = await late.told()
        assert (end["status"], end["cursor"]) == ("completed", size + 4)
        assert late.offsets[0] > size - 1_100_000
        assert 900_000 < len(late.output[1]) <= 1 << 20
        assert late.output[1].endswith(b"\0end\n")


async def test_a_client_that_does_not_read_halts_its_process_and_loses_nothing(
    http: httpx2.AsyncClient, box: str
) -> None:
    size = 20_000_000
    async with connect(await address_of(http, box), proxy=None, max_queue=1) as socket:
        made = Talk(socket)
        await made.say(type="start", command=f"head -c {size} /dev/zero; touch /written")
        await started(made)
        await asyncio.sleep(1)
        assert (await ran(http, box, "ls /written"))[1]["exit_code"] == 2, "it waits for its client"
        assert (await made.told())["cursor"] == size
        assert len(made.output[1]) == size
        assert made.offsets == sorted(set(made.offsets))
        assert made.cursor == size


async def test_a_client_that_vanishes_lets_its_process_go_on(http: httpx2.AsyncClient, box: str) -> None:
    async with connect(await address_of(http, box), proxy=None, max_queue=1) as socket:
        made = Talk(socket)
        await made.say(type="start", command="head -c 20000000 /dev/zero; touch /written")
        await started(made)
        await asyncio.sleep(0.5)
        socket.transport.abort()
    script = "while [ ! -e /written ]; do sleep 0.05; done"
    assert (await ran(http, box, script, timeout_seconds=100))[1]["exit_code"] == 0


async def test_a_client_that_goes_amid_output_is_no_fault_of_the_servers(http: httpx2.AsyncClient, box: str) -> None:
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    for number in range(40):  # the end of its command and that of the client meet
        async with talk(http, box, type="start", command="echo out", env={}) as made:
            await started(made)
            if number % 2:
                await made.heard(b"out")
    gc.collect()
    assert faults == []


async def test_output_may_be_anything_and_large(http: httpx2.AsyncClient, box: str) -> None:
    made, end = await ran(http, box, "head -c 3000000 /dev/urandom | tee /kept; printf '\\0\\377' >&2")
    assert end["cursor"] == 3_000_002
    assert made.output[2] == b"\0\xff"
    assert len(made.output[1]) == 3_000_000


async def test_the_stop_of_the_sandbox_is_told_to_its_sockets(http: httpx2.AsyncClient, box: str) -> None:
    commands = {"sleep 100": ("completed", 143), "trap '' TERM; echo on; while :; do sleep 0.1; done": ("failed", None)}
    for command, (status, code) in commands.items():
        async with talk(http, box, type="start", command=command) as made:
            await started(made)
            if "echo" in command:
                await made.heard(b"on")
            stop = asyncio.ensure_future(http.post(f"/api/sandboxes/{box}/stop"))
            end = await made.told()
            assert (end["status"], end.get("exit_code")) == (status, code)
            assert (await made.closed())[0] == 1000
            assert (await stop).json()["data"]["status"] in ("stopping", "stopped")
        if status == "completed":
            await http.post(f"/api/sandboxes/{box}/start?wait=true")


async def test_a_sandbox_that_ends_by_itself_tells_its_sockets_and_the_server(
    http: httpx2.AsyncClient, server: Server, box: str
) -> None:
    life = server.the(Sandboxes).get(box)
    async with talk(http, box, type="start", command="echo begun; sleep 100") as made:
        process = await started(made)
        await made.heard(b"begun")
        os.kill(life.sandbox._live.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        end = await made.told()
        assert (end["status"], end["cursor"]) == ("failed", 6)
        assert "its sandbox has ended" in end["exit_reason"]
    async with asyncio.timeout(PATIENCE):
        while (await http.get(f"/api/sandboxes/{box}")).json()["data"]["status"] != "exited":
            await asyncio.sleep(0.05)
    await http.post(f"/api/sandboxes/{box}/start?wait=true")
    async with talk(http, box, type="attach", process_id=process, offset=0) as late:
        assert (await late.told())["type"] == "attached"
        assert (await late.told())["status"] == "failed"
        assert late.output[1] == b"begun\n"


async def test_a_deleted_sandbox_takes_its_processes_along(http: httpx2.AsyncClient, server: Server) -> None:
    async with sandbox(http) as box:
        await ran(http, box, "head -c 100000 /dev/zero")
        url = await address_of(http, box)
    processes = server.the(Processes)
    assert (processes._of, processes._memory._used) == ({}, 0)
    with pytest.raises(InvalidStatus) as refused:
        await connect(url, proxy=None)
    assert refused.value.response.status_code == 404


async def test_a_sandbox_that_does_not_run_has_no_connections(http: httpx2.AsyncClient, box: str) -> None:
    url = await address_of(http, box)
    await http.post(f"/api/sandboxes/{box}/stop")
    answer = await http.post(f"/api/sandboxes/{box}/connections")
    assert (answer.status_code, answer.json()["success"], answer.json()["code"]) == (409, False, "invalid_state")
    async with connect(url, proxy=None) as socket:  # bought before
        made = Talk(socket)
        await made.say(type="start", command="true")
        told = await made.told()
        assert (told["type"], told["error"]) == ("error", "invalid_state")
    answer = await http.post("/api/sandboxes/0198a7e2-0000-7000-8000-000000000000/connections")
    assert answer.status_code == 404


REFUSED: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "invalid_message"),
    "no object": ("[]", "invalid_message"),
    "bytes": (b"\x01", "invalid_message"),
    "unknown type": ('{"type":"list"}', "invalid_message"),
    "no command": ('{"type":"start"}', "invalid_message"),
    "empty command": ('{"type":"start","command":""}', "invalid_message"),
    "command of another type": ('{"type":"start","command":["true"]}', "invalid_message"),
    "NUL": ('{"type":"start","command":"a\\u0000b"}', "invalid_request"),
    "timeout of nothing": ('{"type":"start","command":"true","timeout_seconds":0}', "invalid_message"),
    "endless timeout": ('{"type":"start","command":"true","timeout_seconds":1e999}', "invalid_message"),
    "terminal without size": ('{"type":"start","command":"true","terminal":{"cols":0}}', "invalid_message"),
    "variable without a name": ('{"type":"start","command":"true","env":{"":"x"}}', "invalid_message"),
    "variable of two": ('{"type":"start","command":"true","env":{"A=B":"x"}}', "invalid_message"),
    "large variable": ('{"type":"start","command":"true","env":{"A":"%s"}}' % ("x" * 140_000), "invalid_request"),
    "half a character": ('{"type":"start","command":"echo \\ud800"}', "invalid_message"),
    "missing directory": ('{"type":"start","command":"true","cwd":"/no/such"}', "invalid_cwd"),
    "unknown process": ('{"type":"attach","process_id":"x","offset":0}', "process_not_found"),
    "negative offset": ('{"type":"attach","process_id":"x","offset":-1}', "invalid_message"),
    "kill of nothing": ('{"type":"kill","process_id":"../x"}', "process_not_found"),
    "resize of nothing": ('{"type":"resize","process_id":"x","cols":1,"rows":1}', "process_not_found"),
    "resize to nothing": ('{"type":"resize","process_id":"x","cols":1}', "invalid_message"),
}


async def test_a_bad_first_message_is_told_and_ends_the_socket(http: httpx2.AsyncClient, box: str) -> None:
    for case, (message, code) in REFUSED.items():
        async with talk(http, box) as made:
            await made.socket.send(message)
            told = await made.told()
            assert (told["type"], told["error"]) == ("error", code), (case, told)
            assert set(told) == {"type", "error", "message"}
            assert told["message"]
            assert (await made.closed())[0] == 1008


async def test_bad_later_messages_end_the_socket_and_spare_the_process(http: httpx2.AsyncClient, box: str) -> None:
    async with talk(http, box, type="start", command="read -r line; echo $line") as made:
        process = await started(made)
        await made.say(type="start", command="true")
        assert (await made.told())["error"] == "invalid_message"
    async with talk(http, box, type="attach", process_id=process, offset=0) as again:
        await again.told()
        await again.socket.send(b"alive\n")
        assert (await again.told())["exit_code"] == 0
        assert again.output[1] == b"alive\n"
    async with talk(http, box, type="start", command="cat") as made:
        process = await started(made)
        with pytest.raises(ConnectionClosed):
            await made.socket.send(bytes((1 << 20) + 1))
            await made.told()
    async with talk(http, box, type="resize", process_id=process, cols=10, rows=10) as control:
        assert (await control.told())["error"] == "no_terminal"
    async with talk(http, box, type="kill", process_id=process) as control:
        assert await control.told() == {"type": "killed"}


async def test_only_so_many_are_attached_at_once(http: httpx2.AsyncClient) -> None:
    async with sandbox(http, max_concurrent_execs=2) as box:
        async with (
            talk(http, box, type="start", command="sleep 100") as one,
            talk(http, box, type="start", command="sleep 100") as two,
        ):
            process = await started(one)
            await started(two)
            async with talk(http, box, type="start", command="true") as three:
                told = await three.told()
                assert (told["type"], told["error"]) == ("error", "max_concurrent_execs_reached")
            async with talk(http, box, type="kill", process_id=process) as control:  # which is none
                assert await control.told() == {"type": "killed"}
            await one.told()
            await one.closed()
            assert (await ran(http, box, "true"))[1]["exit_code"] == 0
        assert (await ran(http, box, "true"))[1]["exit_code"] == 0  # the other is detached


async def test_an_address_is_signed_and_good_once(
    http: httpx2.AsyncClient, stranger: httpx2.AsyncClient, box: str
) -> None:
    url = await address_of(http, box)
    assert url.startswith("ws://127.0.0.1:")
    base, _, ticket = url.rpartition("/")
    forged = ("x", "", ticket[:-4] + "AAAA", "A" * len(ticket), ticket + "A", "%2e%2e", "é")
    for each in forged:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{base}/{each}", proxy=None)
        assert refused.value.response.status_code in (401, 403)
    async with connect(url, proxy=None):
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, proxy=None)
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body or b"{}")["success"] is False
    assert (await stranger.post(f"/api/sandboxes/{box}/connections")).status_code == 401


async def test_an_open_socket_keeps_a_sandbox_from_being_idle(
    http: httpx2.AsyncClient, server: Server, box: str
) -> None:
    life = server.the(Sandboxes).get(box)
    async with talk(http, box, type="start", command="sleep 100") as made:
        await started(made)
        assert life._connections == 1
    async with asyncio.timeout(PATIENCE):
        while life._connections:
            await asyncio.sleep(0.01)
