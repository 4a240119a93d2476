"""Commands over disks, and searches of them."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from forkyard.disk import Disk
from forkyard.errors import ConfigError
from forkyard.sandbox import ImageConfig, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.server.disks import Execs, Leases, searcher, searching
from forkyard.server.disks.execs import TAIL
from forkyard.server.disks.findings import EnoughError, Findings
from forkyard.server.disks.leases import Use
from forkyard.server.disks.mounting import Placed
from forkyard.server.disks.routes import configured, tell_missing
from forkyard.server.disks.work import Grep
from forkyard.server.envelope import ApiError
from forkyard.server.serving import Server
from tests.server.test_disks import ask, client_of, made


@pytest_asyncio.fixture(loop_scope="module")
async def http(server: Server, key: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(server, Authorization=key) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def disk(http: httpx2.AsyncClient, server: Server) -> Disk:
    return server.disks.get(await made(http, "work"))


async def run(http: httpx2.AsyncClient, disk: Disk, command: str, status: int = 200) -> Any:
    whole = await ask(http, "POST", f"/api/disks/{disk.info.id}/exec", status, {"command": command})
    return whole["data"] if status == 200 else whole


async def content(disk: Disk, key: str) -> bytes:
    return await (await disk.get(key)).read()


async def test_a_command_works_in_the_disk_and_what_it_writes_is_an_object(
    http: httpx2.AsyncClient, disk: Disk, local: LocalProvider
) -> None:
    await disk.put("trajectories/run-1.jsonl", b'{"reward":1}\n{"reward":0}\n')
    await disk.put("score.jq", b"map(.reward) | add")
    done = await run(http, disk, "pwd; jq -sf score.jq trajectories/*.jsonl; echo out > made.txt; echo err >&2; exit 3")
    assert (done["stdout"], done["stderr"], done["exitCode"]) == ("/mnt/archil\n1\n", "err\n", 3)
    timing = done["timing"]
    assert set(timing) == {"totalMs", "queueMs", "executeMs"}
    assert timing["totalMs"] >= timing["queueMs"] + timing["executeMs"] - 2 >= 0
    assert await content(disk, "made.txt") == b"out\n"
    assert await local.sandboxes() == []


async def test_clients_that_look_for_the_disk_at_mnt_find_it_there(http: httpx2.AsyncClient, disk: Disk) -> None:
    await disk.put("reports/q1.csv", b"1")
    assert (await run(http, disk, "cd /mnt && cat reports/q1.csv && echo 2 > new && ls"))["stdout"] == "1new\nreports\n"
    assert (await run(http, disk, "cat /mnt/reports/q1.csv; pwd"))["stdout"] == "1/mnt\n"
    assert (await run(http, disk, "cd /mnt/archil && cat reports/q1.csv; ls /mnt"))["stdout"] == "1archil\n"
    assert await content(disk, "new") == b"2\n"


async def test_a_program_that_is_missing_is_told_to_whoever_sent_the_command(
    http: httpx2.AsyncClient, disk: Disk
) -> None:
    done = await run(http, disk, "echo before\nno-such-tool x | cat")
    assert (done["stdout"], done["exitCode"]) == ("before\n", 0)
    told = 'command not found (commands over disks have what the image "host" of this server has)'
    assert done["stderr"] == f"bash: line 2: no-such-tool: {told}\n"
    done = await run(http, disk, "bash -c no-such-tool || exit $?")
    assert (done["stderr"].count(told), done["exitCode"]) == (1, 127)


async def test_output_keeps_its_end_and_a_signal_is_a_code(http: httpx2.AsyncClient, disk: Disk) -> None:
    done = await run(http, disk, "head -c 300000 /dev/zero | tr '\\0' a; echo end; kill -9 $$")
    assert (len(done["stdout"]), done["stdout"][-5:], done["exitCode"]) == (TAIL, "aend\n", 137)
    assert done["truncated"] and not (await run(http, disk, "echo all"))["truncated"]


async def test_a_command_past_its_time_is_ended_and_answered_504(
    server: Server, key: str, local: LocalProvider, disk: Disk
) -> None:
    server.keep(Execs(local, server.the(Leases), limit=0.3))
    async with client_of(server, Authorization=key) as http:
        assert (await run(http, disk, "sleep 100 & sleep 100", 504))["code"] == "exec_timeout"
    assert await local.sandboxes() == []
    assert server.the(Leases).of(disk.info.id) == []


async def test_a_command_that_cannot_be_is_refused(http: httpx2.AsyncClient, disk: Disk) -> None:
    for body in ({}, {"command": ""}, {"command": "a\0b"}, {"command": 5}, {"command": "x" * 200_000}):
        await ask(http, "POST", f"/api/disks/{disk.info.id}/exec", 400, body)


async def test_several_disks_lie_beneath_one_directory(http: httpx2.AsyncClient, server: Server, disk: Disk) -> None:
    other = server.disks.get(await made(http, "other"))
    await disk.put("a", b"1")
    await other.put("sub/b", b"2")
    disks: dict[str, Any] = {
        "data": disk.info.id,
        "deep/cache": {"disk": other.info.id, "subdirectory": "sub", "readOnly": True},
    }
    body = {"disks": disks, "command": "pwd; cat data/a deep/cache/b; echo 3 > data/c; echo 4 > deep/cache/d"}
    done = (await ask(http, "POST", "/api/exec", 200, body))["data"]
    assert done["stdout"] == "/mnt/archil\n12"
    assert "Read-only file system" in done["stderr"]
    assert await content(disk, "c") == b"3\n"
    for wrong in (
        {},
        {"../x": disk.info.id},
        {"/abs": disk.info.id},
        {"a//b": disk.info.id},
        {"": disk.info.id},
        {"a": disk.info.id, "a/b": other.info.id},
        {"a": {"disk": disk.info.id, "subdirectory": "../x"}},
        {"a": {"disk": disk.info.id, "readOnly": True, "queueMs": 5}},
    ):
        await ask(http, "POST", "/api/exec", 400, {"disks": wrong, "command": "true"})
    missing = {"a": {"disk": other.info.id, "subdirectory": "nothing"}}
    await ask(http, "POST", "/api/exec", 404, {"disks": missing, "command": "true"})


async def test_a_checkout_waits_for_the_disk_and_is_refused_while_another_holds_it(
    http: httpx2.AsyncClient, server: Server, disk: Disk
) -> None:
    leases = server.the(Leases)
    leases.take([Use(disk.info.id, "s", "sandbox 's'", exclusive=True)])
    shared = {"disks": {"a": disk.info.id}, "command": "echo > a/shared"}
    await ask(http, "POST", "/api/exec", 200, shared)
    alone = {"disks": {"a": {"disk": disk.info.id, "queueMs": 10}}, "command": "echo > a/alone"}
    assert (await ask(http, "POST", "/api/exec", 400, alone))["code"] == "disk_in_use"
    alone["disks"]["a"]["queueMs"] = 20_000  # type: ignore[index]
    waiting = asyncio.create_task(ask(http, "POST", "/api/exec", 200, alone))
    await asyncio.sleep(0)
    leases.release("s")
    await waiting
    assert await content(disk, "alone") == b"\n"


async def test_a_guests_link_on_a_disk_leads_no_mount_elsewhere(
    http: httpx2.AsyncClient, server: Server, disk: Disk, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("of the host")
    await run(http, disk, f"ln -s {tmp_path} out; mkdir real; ln -s real in")
    for name in ("out", "in"):
        asked = {"disks": {"a": {"disk": disk.info.id, "subdirectory": name}}, "command": "ls a"}
        await ask(http, "POST", "/api/exec", 404, asked)
    placed = Placed(disk, "/mnt/archil", "real")
    mount = placed.mount()
    await run(http, disk, f"rmdir real; ln -s {tmp_path} real")
    assert mount.source.is_symlink()
    with pytest.raises(ApiError):
        async with server.the(Execs).sandbox([placed], "/mnt/archil"):
            pass


async def test_the_vendors_clients_get_a_sign_of_life_and_others_do_not(server: Server, key: str, disk: Disk) -> None:
    async with client_of(server, Authorization=key, **{"User-Agent": "archil-python/0.18.0"}) as http:
        assert (await run(http, disk, "echo hi"))["stdout"] == "hi\n"


async def test_missing_tools_are_told_when_the_server_starts(
    local: LocalProvider, caplog: pytest.LogCaptureFixture
) -> None:
    missing = await Execs(local, Leases()).missing_tools()
    assert not {"bash", "grep", "find", "sed"} & {*missing}
    box = await local.create(SandboxSpec())
    await box.run("rm -f /usr/bin/jq; ln -s bash /usr/bin/rg")
    await box.stop()
    await local.commit(box, "tools:1", ImageConfig())
    await box.close()
    execs = Execs(local, Leases(), image="tools:1")
    assert "jq" in await execs.missing_tools()
    assert "rg" not in await execs.missing_tools()
    with caplog.at_level(logging.WARNING, "forkyard.server"):
        await tell_missing(execs)
        await tell_missing(Execs(local, Leases(), image="no/such/image:1"))
    first, second = (record.getMessage() for record in caplog.records)
    assert "jq" in first and "'tools:1'" in first
    assert "cannot run" in second and "no/such/image:1" in second
    await local.remove_image("tools:1")


async def test_the_environment_configures_commands(server: Server, disk: Disk) -> None:
    leases = server.the(Leases)
    named = configured(server, leases, {"FORKYARD_EXEC_IMAGE": "tools:1", "FORKYARD_EXEC_NETWORK": "none"})
    assert (configured(server, leases, {}).image, named.image) == ("host", "tools:1")
    with pytest.raises(ConfigError, match="FORKYARD_EXEC_NETWORK = 'all'"):
        configured(server, leases, {"FORKYARD_EXEC_NETWORK": "all"})
    ask_for_networks = "cat /proc/net/dev | grep -c : ; echo $http_proxy"
    for environ, has in (({}, False), ({"FORKYARD_EXEC_NETWORK": "public"}, True)):
        done = await configured(server, leases, environ).run(ask_for_networks, [Placed(disk)], "/mnt/archil")
        assert (done.stdout != "1\n\n") is has


SAMPLE = {
    "logs/a.log": b"one\nERROR two\nthree\nfour\nerror five\n",
    "logs/b.txt": b"ERROR b\n",
    "logs/deep/c.log": b"x\nERROR c\n",
    "logs/.hidden": b"ERROR hidden\n",
    "logs/binary": b"ERROR\0binary\n",
    "src/main.py": b"def error():\n    raise ValueError('ERROR')\n",
    "src/bad.txt": b"ERROR \xff bytes\n",
}


@pytest.fixture(params=["ripgrep", "python"])
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What searches: both have to find the same."""
    if request.param == "ripgrep" and subprocess.run(["which", "rg"], capture_output=True, check=False).returncode:
        pytest.skip("ripgrep is not installed (apt-get install ripgrep)")
    return str(request.param)


async def _grep(
    server: Server, disk: Disk, program: str, directory: str = "", pattern: str = "ERROR", **more: Any
) -> Any:
    asked = Grep(directory=directory, pattern=pattern, **more)
    found = Findings(directory.strip("/"), asked.max_results, multiline=asked.multiline, after=asked.context_after or 0)
    async with server.the(Execs).sandbox([Placed(disk, read_only=True)], "/mnt/archil") as box:
        words = searching.ripgrep(asked) if program == "ripgrep" else searching.python(asked)
        try:
            result = await box.run(words, cwd=f"/mnt/archil/{directory}".rstrip("/"), timeout=20, on_output=found.hear)
            code: int | None = result.exit_code
        except EnoughError:
            code = None
    return sorted((m.file, m.line, m.text) for m in found.matches), code, found


@pytest_asyncio.fixture(loop_scope="module")
async def sample(disk: Disk) -> Disk:
    for key, data in SAMPLE.items():
        await disk.put(key, data)
    return disk


async def test_both_searchers_find_the_same(server: Server, sample: Disk, program: str) -> None:
    found, code, _ = await _grep(server, sample, program, "logs")
    at_top = [("logs/.hidden", 1, "ERROR hidden"), ("logs/a.log", 2, "ERROR two"), ("logs/b.txt", 1, "ERROR b")]
    assert (found, code) == (at_top, 0)
    found, _, all_of = await _grep(server, sample, program, "", recursive=True)
    assert [file for file, _, _ in found] == [
        "logs/.hidden",
        "logs/a.log",
        "logs/b.txt",
        "logs/deep/c.log",
        "src/bad.txt",
        "src/main.py",
    ]
    assert ("src/bad.txt", 1, "ERROR \ufffd bytes") in found
    assert all_of.searched in (len(SAMPLE) - 1, len(SAMPLE))  # whether a binary file was searched is a matter of taste
    found, _, _ = await _grep(server, sample, program, "/logs/", "error", ignore_case=True)
    assert [line for file, line, _ in found if file == "logs/a.log"] == [2, 5]
    found, _, _ = await _grep(server, sample, program, "logs", "one\nfour")
    assert [text for _, _, text in found] == ["one", "four"]
    assert (await _grep(server, sample, program, "logs", "nothing at all"))[:2] == ([], 1)
    assert (await _grep(server, sample, program, "logs", "("))[1] == 2
    assert (await _grep(server, sample, program, "logs", "x", types=["no-such-type"]))[1] == 2


CHOSEN: list[tuple[dict[str, Any], list[str]]] = [
    ({"globs": ["*.log"]}, ["logs/a.log", "logs/deep/c.log"]),
    ({"globs": ["logs/*.log"]}, ["logs/a.log"]),
    ({"globs": ["/logs/**/*.log"]}, ["logs/a.log", "logs/deep/c.log"]),
    ({"globs": ["*.log", "!deep"]}, ["logs/a.log"]),
    ({"globs": ["!logs"]}, ["src/bad.txt", "src/main.py"]),
    ({"globs": ["!*.log", "c.log"]}, ["logs/deep/c.log"]),
    ({"globs": ["*.{txt,py}"]}, ["logs/b.txt", "src/bad.txt", "src/main.py"]),
    ({"globs": ["[ab].*"]}, ["logs/a.log", "logs/b.txt"]),
    ({"types": ["py"]}, ["src/main.py"]),
    ({"types": ["py", "txt"], "types_not": ["txt"]}, ["src/main.py"]),
    ({"types_not": ["log", "txt"]}, ["logs/.hidden", "src/main.py"]),
    ({"types": ["py"], "globs": ["*.log"]}, ["logs/a.log", "logs/deep/c.log"]),
]


async def test_globs_and_types_choose_files(server: Server, sample: Disk, program: str) -> None:
    for more, files in CHOSEN:
        found, _, _ = await _grep(server, sample, program, recursive=True, **more)
        assert [file for file, _, _ in found] == files, more


async def test_context_comes_in_groups_and_lines_are_spanned(server: Server, disk: Disk, program: str) -> None:
    await disk.put("f", b"1\n2 x\n3\n4\n5\n6 x\n7 x\n8\n")
    _, _, found = await _grep(server, disk, program, "", "x", context_before=1, context_after=1)
    lines = [[(line.line, line.match) for line in group.lines] for group in found.groups]
    assert lines == [[(1, False), (2, True), (3, False)], [(5, False), (6, True), (7, True), (8, False)]]
    _, _, found = await _grep(server, disk, program, "", r"x\n3", multiline=True)
    assert [(m.line, m.end_line, m.text) for m in found.matches] == [(2, 3, "2 x\n3")]


async def test_a_search_stops_at_its_bounds(server: Server, disk: Disk, program: str) -> None:
    await disk.put("many", b"x\n" * 5000)
    found, code, all_of = await _grep(server, disk, program, "", "x", max_results=10)
    assert (len(found), code, all_of.over_results) == (10, None, True)
    await disk.put("many", b"y" * (1 << 20) + b"x\n" + b"y\n" * 10)
    found, _, _ = await _grep(server, disk, program, "", "x")
    assert [len(text) for _, _, text in found] == [512 << 10]
    await disk.put("many", (b"y" * (400 << 10) + b"x\n") * 12)
    found, code, all_of = await _grep(server, disk, program, "", "x")
    assert (len(found), code, all_of.over_output) == (10, None, True)


async def test_a_search_is_answered_as_the_wire_has_it(http: httpx2.AsyncClient, sample: Disk) -> None:
    path = f"/api/disks/{sample.info.id}/grep"
    data = (await ask(http, "POST", path, 200, {"directory": "logs", "pattern": "ERROR", "recursive": True}))["data"]
    assert data["stoppedReason"] == "completed"
    assert {"file": "logs/a.log", "line": 2, "text": "ERROR two", "endLine": None} in data["matches"]
    assert data["groups"] is None
    numbers = ("filesScanned", "containersDispatched", "durationMs", "listingMs", "grepMs")
    assert all(isinstance(data[name], int) for name in numbers)
    assert isinstance(data["computeSecondsUsed"], float)
    body = {"directory": "", "pattern": "ERROR", "recursive": True, "maxResults": 2, "contextAfter": 1}
    data = (await ask(http, "POST", path, 200, body))["data"]
    assert (len(data["matches"]), data["stoppedReason"]) == (2, "max_results")
    shown = [line for group in data["groups"] for line in group["lines"] if line["match"]]
    assert len(shown) == 2
    for directory in ("missing", "logs/a.log"):
        data = (await ask(http, "POST", path, 200, {"directory": directory, "pattern": "x"}))["data"]
        assert (data["stoppedReason"], data["matches"]) == ("list_failed", [])
    data = (await ask(http, "POST", path, 200, {"directory": "", "pattern": "("}))["data"]
    assert data["stoppedReason"] == "incomplete"
    for wrong in ({"directory": "../x"}, {"pattern": "a\0"}, {"maxResults": 0}, {"directory": 5}, {"globs": [""]}):
        await ask(http, "POST", path, 400, {"directory": "", "pattern": "x", **wrong})


async def test_a_search_that_takes_too_long_tells_what_it_found(server: Server, sample: Disk) -> None:
    await sample.put("endless", b"a" * 40 + b"!\n")
    asked = Grep(directory="", pattern=r"(a|a)*$|(a+)+$", max_duration_seconds=1)
    words = searching.python(asked)
    async with server.the(Execs).sandbox([Placed(sample, read_only=True)], "/mnt/archil") as box:
        result = await box.run(words, timeout=1)
    assert result.timed_out


def test_what_a_program_says_that_is_no_finding_ends_the_search() -> None:
    for line in (b"nonsense", b"[]", b'{"type":"match","data":{}}', b'{"type":"match"}', b"[" * 5000, b"\xff"):
        found = Findings("", 10, multiline=False, after=0)
        with pytest.raises(EnoughError):
            found.hear("stdout", line + b"\n")
        assert (found.over_output, found.matches) == (True, [])
    found = Findings("", 10, multiline=False, after=0)
    found.hear("stderr", b"nonsense\n")
    with pytest.raises(EnoughError):
        for _ in range(40):
            found.hear("stdout", b"x" * (1 << 20))


def test_the_searcher_runs_as_it_is_given_to_python(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("hit\n")
    (tmp_path / "link").symlink_to("a")
    words = searching.python(Grep(directory="", pattern="hit"))
    done = subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=True)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["type"] for line in said] == ["begin", "match", "end", "summary"]
    assert searcher.TYPES["py"] == "*.py *.pyi"
