"""Sandboxes over HTTP: each row of the table of states, and what each answer says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forkyard.sandbox.local import LocalProvider
from forkyard.server.sandboxes.states import RULES, Action, Phase
from tests.server.sandboxing import HOST, Site, site

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
IGNORES_TERM = "trap '' TERM; while :; do sleep 0.05; done"


@pytest_asyncio.fixture(loop_scope="module")
async def here(tmp_path: Path, local: LocalProvider) -> AsyncIterator[Site]:
    async with site(tmp_path, local) as made:
        yield made
    assert [info for info in await local.sandboxes() if info.state != "stopped"] == []
    for info in await local.sandboxes():
        await (await local.open(info.id)).close()


async def background(here: Site, sandbox: dict[str, Any], script: str) -> None:
    await here.sh(sandbox, f"({script}) >/dev/null 2>&1 </dev/null & echo")


async def test_a_created_sandbox_is_told_as_clients_read_it(here: Site) -> None:
    made = await here.create("rl-env-template", vcpu_count=2, mem_size_mib=1024, env={"A": "b"}, labels={"run": "1"})
    assert UUID.fullmatch(made["sandbox_id"])
    told = {key: made[key] for key in ("name", "vcpu_count", "mem_size_mib", "max_ttl_seconds", "idle_ttl_seconds")}
    assert told == {
        "name": "rl-env-template", "vcpu_count": 2, "mem_size_mib": 1024, "max_ttl_seconds": 86400,
        "idle_ttl_seconds": 1800,
    }  # fmt: skip
    assert (made["max_concurrent_execs"], made["base_image"], made["labels"]) == (32, "host", {"run": "1"})
    for key in ("created_at", "last_active_at", "running_at", "expires_at"):
        assert TIME.fullmatch(made[key]), key
    assert (made["checkpoint"], made["exit_reason"], made["finished_at"], made["parent_id"]) == (None,) * 4
    assert made["platform"] in ("amd64", "arm64")
    assert await here.get(made) == made
    assert await here.sh(made, "echo $A") == "b\n"


async def test_bounds_are_kept_where_the_provider_promises_and_told_where_not(here: Site) -> None:
    made = await here.create(mem_size_mib=256)
    limits = here.life(made).record.spec(here.server.provider.features).limits
    assert (limits.memory_mb == 256) is made["enforced"]["mem_size_mib"]
    assert (limits.cpus == 1.0) is made["enforced"]["vcpu_count"]


async def test_a_name_is_made_up_when_none_is_given_and_free_again_after_deletion(here: Site) -> None:
    nameless = await here.create()
    assert re.fullmatch(r"[a-z]+-[a-z]+-\d{4}", nameless["name"])
    first = await here.create("taken")
    refused = await here.ask("POST", "", 409, {**HOST, "name": "taken"})
    assert refused["code"] == "name_taken" and "'taken'" in refused["error"]
    await here.do(first, "stop", 202)
    await here.ask("POST", "", 409, {**HOST, "name": "taken"})
    await here.delete(first)
    await here.create("taken")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "Upper"},
        {"name": "-x"},
        {"name": "x" * 64},
        {"name": "a\n"},
        {"vcpu_count": 0},
        {"vcpu_count": 33},
        {"vcpu_count": "2"},
        {"vcpu_count": True},
        {"mem_size_mib": 255},
        {"mem_size_mib": 65537},
        {"max_ttl_seconds": 59},
        {"max_ttl_seconds": 86401},
        {"idle_ttl_seconds": -1},
        {"max_concurrent_execs": 257},
        {"env": {"A=B": "x"}},
        {"env": {"A": "x\0"}},
        {"env": {"A": 1}},
        {"env": {"A": "x" * 140_000}},
        {"base_image": ""},
        {"base_image": "a b"},
        {"base_image": "host", "image_id": "img-1"},
        {"labels": {"a b": "x"}},
        {"labels": {"a": "x" * 256}},
        {"ports": [0]},
        {"mounts": {"disk": "x"}},
        {"mounts": [{"disk_id": "dsk-0123456789abcdef", "read_onyl": True}]},
        {"network": {"egres": {"default": "allow"}}},
        {"base_imag": "x"},
        {"image": "x"},
        {"envs": {}},
        ["not an object"],
    ],
    ids=str,
)
async def test_what_is_out_of_bounds_is_refused_and_makes_nothing(here: Site, wrong: Any) -> None:
    body = {**HOST, **wrong} if isinstance(wrong, dict) else wrong
    refused = await here.ask("POST", "?wait=true", 400, body)
    assert refused["error"] and "Traceback" not in refused["error"]
    assert await here.ask("GET", "") == {"sandboxes": []}


async def test_null_is_as_if_it_were_not_there_and_unknown_keys_are_passed_over(here: Site) -> None:
    made = await here.create("x", env=None, mounts=None, vcpu_count=None, some_day={"new": 1})
    assert made["vcpu_count"] == 1
    named = await here.ask("GET", "/x", 404)
    assert f"the name of the one with the id {made['sandbox_id']}" in named["error"]


async def test_an_image_nobody_has_fails_the_sandbox_with_the_reason(here: Site) -> None:
    made = await here.ask("POST", "?wait=true", 202, {"name": "x", "base_image": "no-such-image:1"})
    assert made["status"] == "failed"
    assert "no-such-image" in made["exit_reason"]
    refused = await here.do(made, "start", 409)
    assert "it has no disk: delete it" in refused["error"]
    await here.do(made, "fork", 409)
    await here.do(made, "stop", 200)
    await here.delete(made)


async def test_an_unknown_image_id_is_not_found(here: Site) -> None:
    await here.ask("POST", "", 404, {"image_id": "img-0000000000000000"})


@pytest.mark.parametrize("method, path", [("GET", ""), ("DELETE", ""), *(("POST", f"/{action}") for action in (
    "start", "stop", "pause", "resume", "fork"))])  # fmt: skip
async def test_an_unknown_sandbox_is_not_found(here: Site, method: str, path: str) -> None:
    for sandbox_id in ("70d1eaca-0000-0000-0000-000000000000", "..", "%2e%2e%2fx", "é"):
        refused = await here.ask(method, f"/{sandbox_id}{path}", 404)
        assert refused["error"]


async def test_the_list_is_oldest_first_and_filtered_by_labels(here: Site) -> None:
    for name, labels in (("a", {"run": "1", "kind": "x"}), ("b", {"run": "2"}), ("c", {})):
        await here.create(name, labels=labels)

    async def names(query: str) -> list[str]:
        return [each["name"] for each in (await here.ask("GET", query))["sandboxes"]]

    assert await names("") == ["a", "b", "c"]
    assert await names("?label=run") == ["a", "b"]
    assert await names("?label=run%3D2") == ["b"]
    assert await names("?label=run&label=kind%3Dx") == ["a"]
    assert await names("?label=nothing") == []
    assert await names("?filesystem=dsk-0123456789abcdef") == []


async def test_stop_is_the_same_again_and_start_brings_the_disk_back(here: Site) -> None:
    made = await here.create()
    await here.sh(made, "echo kept > /file")
    stopped = await here.do(made, "stop", 202)
    assert (stopped["status"], stopped["exit_reason"]) == ("stopped", None)
    assert stopped["checkpoint"] and stopped["finished_at"]
    assert await here.do(made, "stop", 200) == stopped
    started = await here.do(made, "start?wait=true", 202)
    assert (started["status"], started["checkpoint"], started["finished_at"]) == ("running", None, None)
    assert (await here.do(made, "start", 200))["status"] == "running"
    assert await here.sh(made, "cat /file") == "kept\n"


async def test_stop_asks_processes_to_end_first(here: Site) -> None:
    made = await here.create()
    await background(here, made, "trap 'echo ended > /said; exit' TERM; : > /ready; while :; do sleep 0.02; done")
    await here.sh(made, "while [ ! -e /ready ]; do sleep 0.01; done")
    await here.do(made, "stop", 202)
    await here.do(made, "start?wait=true", 202)
    assert await here.sh(made, "cat /said") == "ended\n"


@pytest.mark.slow
async def test_while_it_is_stopping_the_spec_decides_what_can_be_asked(here: Site) -> None:
    made = await here.create()
    await background(here, made, IGNORES_TERM)
    stopping = asyncio.create_task(here.do(made, "stop", 202))
    while (await here.get(made))["status"] != "stopping":
        await asyncio.sleep(0.01)
    assert (await here.get(made))["checkpoint"]
    for action in ("start", "resume", "pause"):
        refused = await here.do(made, action, 409)
        assert "while it is stopping" in refused["error"] and refused["code"] == "invalid_state"
    await here.delete(made, 409)
    joined, fork = await asyncio.gather(here.do(made, "stop", 202), here.do(made, "fork", 202))
    assert (joined["status"], fork["status"]) == ("stopped", "running")
    assert await stopping == joined


async def test_pause_says_pausing_to_who_paused_it_and_paused_to_others(here: Site) -> None:
    made = await here.create()
    await background(here, made, "while :; do date +%s%N > /clock; sleep 0.01; done")
    first = await here.do(made, "pause", 202)
    second = await here.do(made, "pause", 200)
    assert (first["status"], second["status"]) == ("pausing", "paused")
    assert first["checkpoint"] == second["checkpoint"] == (await here.get(made))["checkpoint"]
    refused = await here.do(made, "timeout", 400, {})
    assert "timeout" in refused["error"]
    await here.delete(made, 409)
    resumed = await here.do(made, "resume?wait=false", 202)
    assert (resumed["status"], resumed["checkpoint"]) == ("running", None)
    assert (await here.do(made, "resume", 200))["status"] == "running"
    clock = await here.sh(made, "cat /clock")
    while await here.sh(made, "cat /clock") == clock:
        await asyncio.sleep(0.01)


async def test_a_paused_sandbox_can_be_stopped_and_started_without_its_processes(here: Site) -> None:
    made = await here.create()
    await background(here, made, "sleep 1000")
    paused = await here.do(made, "pause", 202)
    assert (await here.do(made, "stop", 202))["checkpoint"] == paused["checkpoint"]
    await here.do(made, "start?wait=true", 202)
    await background(here, made, "sleep 1000")
    await here.do(made, "pause", 202)
    assert (await here.do(made, "start?wait=true", 202))["status"] == "running"
    assert await here.sh(made, "grep -c sleep /proc/[0-9]*/comm | grep -c :1 || :") == "0\n"


async def test_resume_is_for_what_is_paused_alone(here: Site) -> None:
    made = await here.create()
    await here.do(made, "stop", 202)
    refused = await here.do(made, "resume", 409)
    assert "cannot be resumed while it is stopped: start it" in refused["error"]
    paused = await here.do(made, "pause", 200)
    assert (paused["status"], bool(paused["checkpoint"])) == ("stopped", True)


async def test_a_fork_has_the_files_shape_and_labels_of_its_source_and_is_apart(here: Site) -> None:
    made = await here.create("source", vcpu_count=2, env={"A": "b"}, labels={"run": "1"}, idle_ttl_seconds=77)
    await here.sh(made, "echo one > /file; chmod 640 /file")
    await here.do(made, "stop", 202)
    fork = await here.do(made, "fork?wait=true", 202, {"name": "fork", "labels": {"sample": "2"}})
    assert (fork["status"], fork["name"], fork["parent_id"]) == ("running", "fork", made["sandbox_id"])
    assert (fork["vcpu_count"], fork["idle_ttl_seconds"]) == (2, 77)
    assert fork["labels"] == {"run": "1", "sample": "2"}
    assert await here.sh(fork, "cat /file; stat -c %a /file; echo $A; echo two > /file") == "one\n640\nb\n"
    deeper = await here.do(fork, "fork", 202)
    assert await here.sh(deeper, "cat /file") == "two\n"
    again = await here.do(made, "fork", 202)
    assert await here.sh(again, "cat /file") == "one\n"
    assert (await here.get(made))["status"] == "stopped"
    await here.do(made, "fork", 409, {"name": "fork"})


@pytest.mark.parametrize("state", ["running", "paused"])
async def test_a_fork_leaves_its_source_as_it_is(here: Site, state: str) -> None:
    made = await here.create()
    await here.sh(made, "echo one > /file")
    if state == "paused":
        await here.do(made, "pause", 202)
    fork = await here.do(made, "fork", 202)
    assert await here.sh(fork, "cat /file") == "one\n"
    assert (await here.get(made))["status"] == state


async def test_a_checkpoint_is_forked_as_it_was_or_refused(here: Site) -> None:
    made = await here.create()
    first = (await here.do(made, "stop", 202))["checkpoint"]
    await here.do(made, "fork", 202, {"checkpoint": first})
    refused = await here.do(made, "fork", 409, {"checkpoint": "ckpt-unknown"})
    assert refused["code"] == "checkpoint_superseded"
    await here.do(made, "start?wait=true", 202)
    await here.do(made, "fork", 409, {"checkpoint": first})
    second = (await here.do(made, "stop", 202))["checkpoint"]
    assert second != first
    await here.do(made, "fork", 202, {"checkpoint": second})


async def test_who_was_told_a_checkpoint_has_that_moment_when_another_resumed_the_source(here: Site) -> None:
    made = await here.create()
    await here.sh(made, "echo then > /file")
    told = [(await here.do(made, "pause", status))["checkpoint"] for status in (202, 200, 200)]
    await here.do(made, "fork", 202, {"checkpoint": told[0]})
    await here.do(made, "resume", 202)
    await here.sh(made, "echo now > /file")
    late = [await here.do(made, "fork", 202, {"checkpoint": each}) for each in told[1:]]
    assert [await here.sh(each, "cat /file") for each in late] == ["then\n", "then\n"]


async def test_concurrent_forks_of_one_source_all_succeed_in_every_state(here: Site) -> None:
    made = await here.create()
    await background(here, made, "while :; do echo x >> /log; done")
    for before in ("", "pause", "resume", "stop"):
        if before:
            await here.do(made, before, 202)
        forks = await asyncio.gather(*(here.do(made, "fork", 202) for _ in range(8)))
        assert {fork["status"] for fork in forks} == {"running"}
        for fork in forks:
            await here.sh(fork, "test -s /log")
    assert len((await here.ask("GET", ""))["sandboxes"]) == 33


async def test_a_parent_goes_at_once_after_its_last_fork(here: Site) -> None:
    made = await here.create("parent")
    await here.do(made, "stop", 202)
    forks = [await here.do(made, "fork", 202, {"name": f"fork-{number}"}) for number in range(12)]
    refused = await here.delete(made, 409)
    assert refused["code"] == "has_forks"
    assert "has 12 forks" in refused["error"] and "fork-9" in refused["error"] and "fork-10" not in refused["error"]
    for fork in forks:
        await here.delete(fork, 409)
        await here.do(fork, "stop", 202)
        await here.delete(fork)
        await here.ask("GET", f"/{fork['sandbox_id']}", 404)
    await here.delete(made)
    assert await here.ask("GET", "") == {"sandboxes": []}


async def test_cascade_deletes_forks_of_forks_that_run_and_pause(here: Site) -> None:
    made = await here.create()
    child = await here.do(made, "fork", 202)
    await here.do(child, "fork", 202)
    await here.do(await here.do(child, "fork", 202), "pause", 202)
    other = await here.create("other")
    await here.delete(made, query="?cascade=true")
    assert [each["name"] for each in (await here.ask("GET", ""))["sandboxes"]] == ["other"]
    assert [info.name for info in await here.server.provider.sandboxes()] == [f"server-{other['sandbox_id']}"]


async def test_the_same_idempotency_key_makes_one_sandbox(here: Site) -> None:
    key = {"Idempotency-Key": "c2f0a4b2-0000-4000-8000-000000000000"}
    body = {**HOST, "name": "once"}
    made = await asyncio.gather(*(here.ask("POST", "?wait=true", 202, body, **key) for _ in range(4)))
    assert len({each["sandbox_id"] for each in made}) == 1 and made[0]["status"] == "running"
    refused = await here.ask("POST", "", 409, {**HOST, "name": "other"}, **key)
    assert refused["code"] == "idempotency_mismatch"
    path = f"/{made[0]['sandbox_id']}/fork"
    forks = [await here.ask("POST", path, 202, None, **{"Idempotency-Key": "fork"}) for _ in range(2)]
    assert forks[0] == forks[1]
    await here.delete(made[0], query="?cascade=true")
    spent = await here.ask("POST", "", 409, body, **key)
    assert spent["code"] == "idempotency_spent"
    await here.ask("POST", "", 400, body, **{"Idempotency-Key": "x" * 256})


async def test_a_request_that_failed_can_be_sent_again_under_its_key(here: Site) -> None:
    taken = await here.create("taken")
    key = {"Idempotency-Key": "1"}
    await here.ask("POST", "", 409, {**HOST, "name": "taken"}, **key)
    await here.delete(taken, query="?cascade=true")
    await here.ask("POST", "", 202, {**HOST, "name": "taken"}, **key)


async def test_timeouts_move_the_deadline_and_stay(here: Site) -> None:
    made = await here.create()
    changed = await here.do(made, "timeout", 200, {"timeout": 120, "idle_ttl_seconds": 0})
    assert (changed["max_ttl_seconds"], changed["idle_ttl_seconds"]) == (120, 0)
    assert changed["expires_at"] < made["expires_at"]
    longest = await here.do(made, "timeout", 200, {"timeout": 86400})
    assert longest["expires_at"] == made["expires_at"]
    await here.do(made, "stop", 202)
    await here.do(made, "timeout", 200, {"timeout": 100})
    assert (await here.do(made, "start?wait=true", 202))["max_ttl_seconds"] == 100
    for wrong in ({"timeout": 0}, {"timeout": 86401}, {"idle_ttl_seconds": -1}, {}):
        await here.do(made, "timeout", 400, wrong)


async def _until(here: Site, sandbox: dict[str, Any], status: str) -> dict[str, Any]:
    async with asyncio.timeout(100):
        while (now := await here.get(sandbox))["status"] != status:
            await asyncio.sleep(0.02)
    return now


async def test_the_end_of_its_lifetime_pauses_it_and_a_resume_begins_another(here: Site) -> None:
    made = await here.create()
    here.life(made).connected()  # which is no matter to the lifetime
    await here.do(made, "timeout", 200, {"timeout": 1})
    paused = await _until(here, made, "paused")
    assert paused["exit_reason"] == "its lifetime of 1 seconds is over"
    await here.do(made, "timeout", 200, {"timeout": 60})
    resumed = await here.do(made, "resume?wait=true", 202)
    assert (resumed["status"], resumed["exit_reason"]) == ("running", None)


async def test_idle_time_counts_only_while_nobody_is_connected(here: Site) -> None:
    made = await here.create()
    life = here.life(made)
    life.connected()
    life.connected()
    await here.do(made, "timeout", 200, {"idle_ttl_seconds": 1})
    life.disconnected()
    before = (await here.get(made))["last_active_at"]
    await here.sh(made, "sleep 1.2")
    assert (await here.get(made))["status"] == "running"
    life.disconnected()
    paused = await _until(here, made, "paused")
    assert paused["exit_reason"] == "nobody was connected to it for 1 seconds"
    assert paused["last_active_at"] > before


async def test_a_sandbox_that_is_not_running_is_not_used_but_can_be_woken(here: Site) -> None:
    made = await here.create()
    life = here.life(made)
    for action in ("pause", "stop"):
        await here.do(made, action, 202)
        with pytest.raises(Exception, match="cannot be used while it is"):
            _ = life.sandbox
        await life.wake()
        assert life.record.phase is Phase.RUNNING


async def test_one_that_ended_by_itself_is_told_and_has_its_disk(here: Site) -> None:
    made = await here.create()
    await here.sh(made, "echo kept > /file")
    life = here.life(made)
    await life.sandbox._live.kill("it was killed")  # type: ignore[attr-defined]
    await life.lost("its PID 1 ended")
    ended = await here.get(made)
    assert (ended["status"], ended["exit_reason"]) == ("exited", "its PID 1 ended")
    await here.do(made, "pause", 409)
    await here.do(made, "stop", 200)
    fork = await here.do(made, "fork", 202)
    assert await here.sh(fork, "cat /file") == "kept\n"
    assert (await here.do(made, "start?wait=true", 202))["status"] == "running"


async def test_a_client_that_goes_away_leaves_nothing_half_done(here: Site) -> None:
    made = await here.create()
    for action, status in (("pause", "paused"), ("resume", "running"), ("stop", "stopped"), ("start", "running")):
        asked = asyncio.create_task(here.do(made, action, 202))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await here.life(made).settled()
        if (await here.get(made))["status"] != status:  # it went away before it was heard
            await here.do(made, action, 202)


def test_the_table_says_something_of_every_action_in_every_phase() -> None:
    assert set(RULES) == {(action, phase) for action in Action for phase in Phase}
