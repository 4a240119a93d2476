"""Disks in the sandboxes of a server, and the whole of disks by the vendor's own Python client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forkyard.sandbox.local import LocalProvider
from forkyard.server.address import Address
from forkyard.server.disks import Leases
from forkyard.server.listening import Listening, listening
from forkyard.server.sandboxes import Sandboxes
from forkyard.server.serving import opened
from tests.server.sandboxing import Site, site


@pytest_asyncio.fixture(loop_scope="module")
async def here(tmp_path: Path, local: LocalProvider) -> AsyncIterator[Site]:
    async with site(tmp_path / "home", local) as made:
        yield made
        for life in made.server.the(Sandboxes):
            if life.record.parent is None:
                await made.delete({"sandbox_id": life.id}, query="?cascade=true")


async def disk(here: Site, name: str) -> str:
    response = await here.http.post("/api/disks", json={"name": name})
    assert response.status_code == 201
    return str(response.json()["data"]["diskId"])


async def read(here: Site, disk_id: str, key: str) -> bytes:
    return await (await here.server.disks.get(disk_id).get(key)).read()


async def test_a_sole_disk_is_at_its_usual_place_and_survives_the_sandbox(here: Site) -> None:
    one = await disk(here, "one")
    await here.server.disks.get(one).put("sub/in", b"1")
    box = await here.create("a", mounts=[{"disk_id": one}])
    (mount,) = box["mounts"]
    assert (mount["disk_id"], mount["path"], mount["read_only"]) == (one, "/mnt/archil", False)
    assert await here.sh(box, "cat /mnt/archil/sub/in; echo 2 > /mnt/archil/out") == "1"
    assert await read(here, one, "out") == b"2\n"
    await here.do(box, "stop", 202)
    await here.do(box, "start?wait=true", 202)
    assert await here.sh(box, "cat /mnt/archil/out") == "2\n"
    await here.do(box, "stop", 202)
    await here.delete(box)
    assert await read(here, one, "out") == b"2\n"


async def test_read_only_and_subdirectory_show_what_they_say(here: Site) -> None:
    one, two = await disk(here, "one"), await disk(here, "two")
    await here.server.disks.get(one).put("sub/in", b"1")
    mounts = [
        {"disk_id": one, "path": "/data/one", "subdirectory": "sub", "read_only": True},
        {"disk_id": two, "path": "/data/two"},
    ]
    box = await here.create("a", mounts=mounts)
    assert await here.sh(box, "cat /data/one/in; ! touch /data/one/x; touch /data/two/y; ls /data/one") == "1in\n"
    assert await read(here, two, "y") == b""


NO_MOUNTS: list[list[dict[str, Any]]] = [
    [{}],
    [{"disk_id": 5}],
    [{"disk_id": "ONE", "path": "relative"}],
    [{"disk_id": "ONE", "path": "/etc/x"}],
    [{"disk_id": "ONE", "path": "/usr"}],
    [{"disk_id": "ONE", "path": "//proc"}],
    [{"disk_id": "ONE", "path": "/data/../etc"}],
    [{"disk_id": "ONE", "subdirectory": "../x"}],
    [{"disk_id": "ONE", "read_only": True, "queue_ms": 5}],
    [{"disk_id": "ONE", "path": "/a"}, {"disk_id": "ONE", "path": "/b"}],
    [{"disk_id": "ONE"}, {"disk_id": "TWO", "path": "/b"}],
]


async def test_mounts_that_cannot_be_are_refused_before_anything_is_made(here: Site) -> None:
    ids = {"ONE": await disk(here, "one"), "TWO": await disk(here, "two")}
    for mounts in NO_MOUNTS:
        asked = [{**each, "disk_id": ids.get(each["disk_id"], 5)} if "disk_id" in each else each for each in mounts]
        await here.ask("POST", "?wait=true", 400, {"base_image": "host", "mounts": asked})
    assert (await here.ask("GET", ""))["sandboxes"] == []


async def test_unknown_disks_and_directories_are_404(here: Site) -> None:
    one = await disk(here, "one")
    for mount in ({"disk_id": "dsk-0000000000000000"}, {"disk_id": one, "subdirectory": "missing"}):
        await here.ask("POST", "?wait=true", 404, {"base_image": "host", "mounts": [mount]})


async def test_a_plain_mount_is_the_only_one_until_its_sandbox_stops(here: Site) -> None:
    one = await disk(here, "one")
    first = await here.create("first", mounts=[{"disk_id": one}])
    plain = {"base_image": "host", "name": "second", "mounts": [{"disk_id": one}]}
    refused = await here.ask("POST", "?wait=true", 409, plain)
    assert "sandbox 'first'" in refused["error"]
    for way in ("read_only", "conditional"):
        await here.create(way.replace("_", "-"), mounts=[{"disk_id": one, way: True}])
    await here.do(first, "pause", 202)
    await here.ask("POST", "?wait=true", 409, plain)
    assert (await here.http.delete(f"/api/disks/{one}")).status_code == 409
    listed = (await here.http.get(f"/api/disks/{one}/delegations")).json()["data"]["delegations"]
    assert [each["clientId"] for each in listed] == [first["sandbox_id"]]
    await here.do(first, "stop", 202)
    second = await here.ask("POST", "?wait=true", 202, plain)
    refused = await here.do(first, "start?wait=true", 409)
    assert "sandbox 'second'" in refused["error"]
    await here.do(second, "stop", 202)
    await here.do(first, "start?wait=true", 202)


async def test_a_mount_may_wait_for_its_disk(here: Site) -> None:
    one = await disk(here, "one")
    first = await here.create("first", mounts=[{"disk_id": one}])
    queued = {"base_image": "host", "name": "second", "mounts": [{"disk_id": one, "queue_ms": 20_000}]}
    waiting = asyncio.create_task(here.ask("POST", "?wait=true", 202, queued))
    await asyncio.sleep(0)
    await here.do(first, "stop", 202)
    assert (await waiting)["status"] == "running"


async def test_forks_have_the_mounts_of_their_source(here: Site) -> None:
    one = await disk(here, "one")
    box = await here.create("template", mounts=[{"disk_id": one, "conditional": True}])
    await here.do(box, "stop", 202)
    forks = [await here.do(box, "fork?wait=true", 202, {"name": f"fork-{n}"}) for n in range(2)]
    for fork in forks:
        await here.sh(fork, f"echo {fork['name']} >> /mnt/archil/names")
    assert sorted((await read(here, one, "names")).split()) == [b"fork-0", b"fork-1"]


async def test_a_start_may_change_what_is_mounted(here: Site) -> None:
    one, two = await disk(here, "one"), await disk(here, "two")
    box = await here.create("a", mounts=[{"disk_id": one}])
    await here.do(box, "stop", 202)
    started = await here.do(box, "start?wait=true", 202, {"mounts": [{"disk_id": two, "path": "/data"}]})
    assert [each["disk_id"] for each in started["mounts"]] == [two]
    assert await here.sh(box, "echo 1 > /data/x; ls -A /mnt/archil") == ""
    assert await read(here, two, "x") == b"1\n"
    assert here.server.the(Leases).of(one) == []


async def test_a_sandbox_whose_disk_was_deleted_says_so_at_its_start(here: Site) -> None:
    one = await disk(here, "one")
    box = await here.create("a", mounts=[{"disk_id": one}])
    await here.do(box, "stop", 202)
    assert (await here.http.delete(f"/api/disks/{one}")).status_code == 200
    assert one in (await here.do(box, "start?wait=true", 404))["error"]
    assert (await here.get(box))["status"] == "stopped"


def test_the_vendors_client_finds_everything(tmp_path: Path) -> None:
    archil = pytest.importorskip("archil", reason="the vendor's client is not installed (pip install archil)")
    asyncio.run(_with_client(tmp_path, archil))


async def _with_client(home: Path, archil: Any) -> None:
    async with LocalProvider(home) as provider, opened(home, provider) as server, listening(server, Listening()) as at:
        await asyncio.to_thread(_client_calls, server.keys.create("client")[1], at, archil)


def _client_calls(key: str, at: Address, archil: Any) -> None:
    with archil.Archil(api_key=key, region="aws-us-east-1", base_url=at.origin, s3_base_url=at.origin) as client:
        made = client.disks.create(name="rl-trajectories", root_attrs=archil.RootAttrs(uid=0, gid=0, mode=0o755))
        disk = made.disk
        assert made.token.startswith("adt_")
        assert client.disks.create(name="rl-trajectories").token is None
        assert [each.id for each in client.disks.list(name="rl-trajectories")] == [disk.id]
        assert [each.id for each in client.disks.list()] == [disk.id]
        disk.put_object("a.txt", b"ERROR one\n")
        disk.append_object("a.txt", b"two\n")
        done = disk.exec("cat a.txt; echo made > b.txt; exit 5")
        assert (done.exit_code, done.stdout, done.timing.total_ms >= 0) == (5, "ERROR one\ntwo\n", True)
        assert disk.get_object("b.txt") == b"made\n"
        found = disk.grep(directory="", pattern="ERROR", recursive=True)
        assert [(match.file, match.line, match.text) for match in found.matches] == [("a.txt", 1, "ERROR one")]
        assert found.stopped_reason == "completed"
        _access_calls(disk)
        other = client.disks.create(name="other").disk
        several = client.exec(
            disks={"x": disk, "y": archil.ExecMountSpec(other, read_only=True)}, command="cat x/b.txt; ls; touch y/z"
        )
        assert (several.stdout, several.exit_code) == ("made\nx\ny\n", 1)
        workspace = client.workspace({"data": disk})
        assert workspace.exec("cat data/b.txt").stdout == "made\n"
        for files, place in ((disk, ""), (workspace, "data/")):
            asyncio.run(_tool_calls({tool.name: tool for tool in files.agent_tools().tools}, place))
        assert [len(page.disks) for page in client.disks.list_pages(page_size=1)] == [1, 1]
        with pytest.raises(archil.ArchilApiError) as caught:
            client.disks.get("dsk-0000000000000000")
        assert (caught.value.status, caught.value.code) == (404, "not_found")
        _sandbox_calls(client, archil, disk)
        for each in (disk, other):
            each.delete()
        assert client.disks.list() == []


async def _tool_calls(tools: dict[str, Any], place: str) -> None:
    """The tools that the client gives to agents, on a disk and on a workspace of several."""
    file = f"{place}notes/w.txt"
    await tools["write_file"].invoke({"path": file, "content": "hello\nworld\n"})
    assert await tools["read_file"].invoke({"path": file}) == "hello\nworld\n"
    assert "hello\nworld" in await tools["run_bash"].invoke({"command": f"cat {file}"})
    assert f"/{file}" in await tools["list_files"].invoke({"path": f"{place}notes"})
    assert f"/{file}:2: world" in await tools["grep"].invoke({"pattern": "wor", "directory": f"{place}notes"})
    await tools["delete_file"].invoke({"path": file})
    assert file not in await tools["list_files"].invoke({"path": f"{place}notes"})


def _access_calls(disk: Any) -> None:
    user = disk.add_user({"type": "awssts", "principal": "arn:aws:iam::1:role/x"})
    disk.remove_user("awssts", user.identifier)
    user = disk.create_token("agent")
    assert user.token.startswith("adt_")
    disk.remove_token_user(user.identifier)
    assert disk.set_allowed_ips(["127.0.0.1"]) == ["127.0.0.1"]
    assert disk.add_allowed_ip("10.0.0.0/8") == ["127.0.0.1", "10.0.0.0/8"]
    assert disk.remove_allowed_ip("10.0.0.0/8") == ["127.0.0.1"]
    assert disk.refresh().allowed_ips == ["127.0.0.1"]
    branch = disk.create_branch("b1", "current")
    assert [each.filesystem_id for each in disk.list_branches()] == [branch.filesystem_id]
    assert disk.get_branch("b1").branch_name == "b1"
    assert disk.list_delegations() == []
    assert disk.share("a.txt", expires_in=60).expires_in == 60
    assert disk.wait_until_ready(timeout=60).status == "available"


def _sandbox_calls(client: Any, archil: Any, disk: Any) -> None:
    spec = archil.SandboxMountSpec(disk)
    box = client.sandboxes.create(name="with-disk", base_image="host", mounts=[spec])
    try:
        assert [(each.disk_id, each.path) for each in box.mounts] == [(disk.id, "/mnt/archil")]
        assert box.exec("cat /mnt/archil/b.txt").stdout == "made\n"
        (held,) = disk.list_delegations()
        disk.revoke_delegation(held)
        assert disk.list_delegations() == []
    finally:
        box.stop()
        box.delete()
