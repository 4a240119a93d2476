"""Disks of the control plane: made, listed, shown, deleted; who may use them, branches, links."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from forkyard.disk import Disk
from forkyard.server.disks.leases import Leases, Use
from forkyard.server.disks.shares import Link, link_of, token_of
from forkyard.server.envelope import ApiError
from forkyard.server.main import application
from forkyard.server.serving import Server


def client_of(server: Server, **headers: str) -> httpx2.AsyncClient:
    """A client of a server's application, without a port between them."""
    transport = httpx2.ASGITransport(application(server))
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1", headers=headers, timeout=60)


@pytest_asyncio.fixture(loop_scope="module")
async def http(server: Server, key: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(server, Authorization=key) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def stranger(server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(server) as client:
        yield client


async def ask(http: httpx2.AsyncClient, method: str, path: str, status: int, body: Any = None, **headers: str) -> Any:
    """The whole answer, which has that status."""
    response = await http.request(method, path, json=body, headers=headers)
    assert response.status_code == status, (method, path, response.status_code, response.text)
    whole = response.json()
    assert whole["success"] is (status < 400)
    if status >= 400:
        assert whole["error"]
        assert "Traceback" not in response.text
    return whole


async def made(http: httpx2.AsyncClient, name: str, **more: Any) -> str:
    """The id of a new disk."""
    return str((await ask(http, "POST", "/api/disks", 201, {"name": name, **more}))["data"]["diskId"])


async def test_keys_that_mean_nothing_are_named_and_those_likely_meant_for_others_refused(
    http: httpx2.AsyncClient,
) -> None:
    sent = {"name": "d", "someDay": 1, "two words": 1, "rootAttrs": None}
    made = await http.post("/api/disks", json=sent)
    assert (made.status_code, made.headers["x-forkyard-ignored"]) == (201, "someDay")
    assert "x-forkyard-ignored" not in (await http.post("/api/disks", json={"name": "d"})).headers
    refused = await ask(http, "POST", "/api/disks", 400, {"name": "e", "allowedIp": ["10.0.0.1"]})
    assert "there is no 'allowedIp': did you mean 'allowedIps'?" in refused["error"]
    named = await ask(http, "GET", "/api/disks/d", 404)
    assert f"the name of the one with the id {made.json()['data']['diskId']}" in named["error"]


async def test_a_disk_is_made_once_shown_and_deleted(http: httpx2.AsyncClient, server: Server) -> None:
    first = (await ask(http, "POST", "/api/disks", 201, {"name": "rl-trajectories"}))["data"]
    (user,) = first["authorizedUsers"]
    assert user["token"].startswith("adt_")
    assert (user["type"], user["nickname"], user["tokenSuffix"]) == ("token", "default", user["token"][-4:])
    again = (await ask(http, "POST", "/api/disks", 200, {"name": "rl-trajectories"}))["data"]
    assert again == {"diskId": first["diskId"], "authorizedUsers": []}
    shown = (await ask(http, "GET", f"/api/disks/{first['diskId']}", 200))["data"]
    assert shown["id"] == first["diskId"]
    wanted = {"name": "rl-trajectories", "organization": "org-local", "status": "available", "provider": "local"}
    assert {key: shown[key] for key in wanted} == wanted
    assert (shown["sandbox_disk"], shown["region"], shown["allowedIps"]) == (False, "aws-us-east-1", [])
    assert datetime.fromisoformat(shown["createdAt"]).tzinfo is not None
    assert [each["token"] for each in shown["authorizedUsers"]] == [None]
    assert await ask(http, "DELETE", f"/api/disks/{first['diskId']}", 200) == {"success": True}
    await ask(http, "GET", f"/api/disks/{first['diskId']}", 404)
    await ask(http, "DELETE", f"/api/disks/{first['diskId']}", 404)
    assert server.disks.find("rl-trajectories") is None


async def test_another_configuration_of_a_taken_name_is_a_conflict(http: httpx2.AsyncClient) -> None:
    root = {"uid": 1000, "gid": 1000, "mode": 0o750}
    disk_id = await made(http, "one", rootAttrs=root, allowedIps=["10.0.0.0/8"])
    refused = await ask(http, "POST", "/api/disks", 409, {"name": "one"})
    assert refused["code"] == "name_taken"
    await ask(http, "POST", "/api/disks", 409, {"name": "one", "rootAttrs": {**root, "uid": 1}})
    await ask(http, "POST", "/api/disks", 409, {"name": "one", "rootAttrs": root, "allowedIps": ["10.0.0.1"]})
    await ask(http, "POST", "/api/disks", 200, {"name": "one", "rootAttrs": root, "allowedIps": ["10.0.0.0/8"]})
    shown = (await ask(http, "GET", f"/api/disks/{disk_id}", 200))["data"]
    assert (shown["rootAttrs"], shown["allowedIps"]) == (root, ["10.0.0.0/8"])
    bucket = {
        "type": "s3",
        "bucketName": "theirs",
        "bucketPrefix": "p/",
        "accessKeyId": "a",
        "secretAccessKey": "SECRET",
    }
    kept = await made(http, "elsewhere", mounts=[bucket])
    shown = (await ask(http, "GET", f"/api/disks/{kept}", 200))["data"]
    assert shown["mounts"][0]["config"] == {
        "bucketName": "theirs",
        "bucketPrefix": "p/",
        "bucketEndpoint": None,
        "bucketRegion": None,
    }
    assert "SECRET" not in str(shown)
    await ask(http, "POST", f"/api/disks/{kept}/exec", 501, {"command": "ls"})
    await ask(http, "DELETE", f"/api/disks/{kept}", 200)


NO_DISKS: list[Any] = [
    {},
    {"name": ""},
    {"name": "a b"},
    {"name": "../x"},
    {"name": "x" * 101},
    {"name": 5},
    {"name": "x", "mounts": "no"},
    {"name": "x", "mounts": [{"type": "nfs"}]},
    {"name": "x", "mounts": [{"type": "s3"}]},
    {"name": "x", "mounts": [{"type": "r2", "bucketName": "b"}]},
    {"name": "x", "rootAttrs": {"mode": 0o4755}},
    {"name": "x", "rootAttrs": {"uid": 4_294_967_295}},
    {"name": "x", "allowedIps": ["nowhere"]},
    [],
]


async def test_a_disk_that_cannot_be_is_refused_and_not_made(http: httpx2.AsyncClient, server: Server) -> None:
    for body in NO_DISKS:
        await ask(http, "POST", "/api/disks", 400, body)
    assert server.disks.list() == ()


async def test_disks_are_listed_in_pages_and_by_name(http: httpx2.AsyncClient) -> None:
    ids = sorted([await made(http, f"disk-{n}") for n in range(7)])
    whole = await ask(http, "GET", "/api/disks", 200)
    assert [each["id"] for each in whole["data"]] == ids
    assert "nextCursor" not in whole
    found, cursor = [], ""
    for _ in range(4):
        one = await ask(http, "GET", f"/api/disks?limit=2{cursor}", 200)
        found += [each["id"] for each in one["data"]]
        if "nextCursor" not in one:
            break
        cursor = f"&cursor={one['nextCursor']}"
    assert found == ids
    named = await ask(http, "GET", "/api/disks?name=disk-3", 200)
    assert [each["name"] for each in named["data"]] == ["disk-3"]
    assert (await ask(http, "GET", "/api/disks?name=disk", 200))["data"] == []
    part = await ask(http, "GET", "/api/disks?q=SK-5&short=true", 200)
    assert ([each["name"] for each in part["data"]], part["total"]) == (["disk-5"], 1)
    await ask(http, "GET", "/api/disks?limit=0", 400)
    assert (await ask(http, "GET", "/api/disks?limit=1000", 200))["data"][0]["id"] == ids[0]


async def test_nothing_of_disks_is_for_strangers(stranger: httpx2.AsyncClient, http: httpx2.AsyncClient) -> None:
    disk_id = await made(http, "secret")
    for method, path in (
        ("GET", "/api/disks"),
        ("POST", "/api/disks"),
        ("GET", f"/api/disks/{disk_id}"),
        ("DELETE", f"/api/disks/{disk_id}"),
        ("POST", f"/api/disks/{disk_id}/exec"),
        ("POST", "/api/exec"),
        ("POST", f"/api/disks/{disk_id}/grep"),
        ("POST", f"/api/disks/{disk_id}/share"),
        ("GET", f"/api/disks/{disk_id}/branches"),
        ("GET", f"/api/disks/{disk_id}/delegations"),
        ("GET", f"/api/disks/{disk_id}/allowed-ips"),
    ):
        await ask(stranger, method, path, 401, {} if method == "POST" else None)


@pytest.mark.parametrize("disk_id", ["dsk-0000000000000000", "nothing", "dsk-%00", "%F0%9F%98%80"])
async def test_an_unknown_disk_is_404_everywhere(http: httpx2.AsyncClient, disk_id: str) -> None:
    path = f"/api/disks/{disk_id}"
    grep = {"directory": "", "pattern": "x"}
    for method, rest, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/exec", {"command": "ls"}),
        ("POST", "/grep", grep),
        ("POST", "/share", {"key": "a"}),
        ("GET", "/branches", None),
        ("POST", "/branches", {"branch_name": "b", "from_checkpoint_name": "current"}),
        ("GET", "/branches/b", None),
        ("POST", "/users", {"type": "token", "nickname": "n"}),
        ("DELETE", "/users/token?identifier=x", None),
        ("GET", "/allowed-ips", None),
        ("PUT", "/allowed-ips", {"allowedIps": []}),
        ("GET", "/delegations", None),
        ("POST", "/revoke-delegation", {"clientId": "c", "inodeId": 1}),
    ):
        assert (await ask(http, method, path + rest, 404, body))["code"] == "not_found"
    assert (await ask(http, "POST", "/api/exec", 404, {"disks": {"a": disk_id}, "command": "ls"}))[
        "code"
    ] == "not_found"


async def test_users_come_with_a_token_that_is_shown_once_and_go(http: httpx2.AsyncClient, server: Server) -> None:
    disk_id = await made(http, "shared")
    path = f"/api/disks/{disk_id}/users"
    user = (await ask(http, "POST", path, 201, {"type": "token", "nickname": "agent"}))["data"]
    assert server.disks.access.disk_of_token(user["token"]) == disk_id
    assert "opens nothing" in user["note"] and "--disk" in user["note"]
    bearer = {"Authorization": user["token"]}
    assert (await http.get(f"/api/disks/{disk_id}", headers=bearer)).status_code == 401
    assert (await http.get(f"/{disk_id}/key", headers=bearer)).status_code == 403
    arn = "arn:aws:iam::1:role/x"
    assert (await ask(http, "POST", path, 201, {"type": "awssts", "principal": arn}))["data"]["principal"] == arn
    shown = (await ask(http, "GET", f"/api/disks/{disk_id}", 200))["data"]["authorizedUsers"]
    assert [each["nickname"] for each in shown if each["type"] == "token"] == ["default", "agent"]
    assert not any("note" in each and each["note"] for each in shown)
    await ask(http, "DELETE", f"{path}/token?identifier={user['identifier']}", 200)
    assert server.disks.access.disk_of_token(user["token"]) is None
    await ask(http, "DELETE", f"{path}/token?identifier={user['identifier']}", 404)
    await ask(http, "DELETE", f"{path}/root?identifier=x", 400)
    await ask(http, "DELETE", f"{path}/token", 400)
    await ask(http, "POST", path, 400, {"type": "awssts"})
    await ask(http, "POST", path, 501, {"type": "token", "nickname": "n", "principal": "own"})


async def test_allowed_addresses_are_kept_and_hold_for_what_is_on_the_disk(
    http: httpx2.AsyncClient, stranger: httpx2.AsyncClient, server: Server
) -> None:
    disk_id = await made(http, "guarded")
    path = f"/api/disks/{disk_id}"
    await server.disks.get(disk_id).put("a.txt", b"hello")
    link = (await ask(http, "POST", f"{path}/share", 200, {"key": "a.txt"}))["data"]["url"]
    assert (await ask(http, "PUT", f"{path}/allowed-ips", 200, {"allowedIps": ["10.1.2.3", "10.9.0.0/16"]}))[
        "data"
    ] == {"allowedIps": ["10.1.2.3", "10.9.0.0/16"]}
    for rest, body in (("exec", {"command": "cat a.txt"}), ("grep", {"directory": "", "pattern": "h"})):
        assert (await ask(http, "POST", f"{path}/{rest}", 403, body))["code"] == "address_not_allowed"
    await ask(http, "POST", "/api/exec", 403, {"disks": {"a": disk_id}, "command": "ls"})
    assert (await stranger.get(link)).status_code == 403
    await ask(http, "PUT", f"{path}/allowed-ips", 400, {"allowedIps": ["300.1.1.1"]})
    assert (await ask(http, "GET", f"{path}/allowed-ips", 200))["data"]["allowedIps"] == ["10.1.2.3", "10.9.0.0/16"]
    await ask(http, "PUT", f"{path}/allowed-ips", 200, {"allowedIps": ["127.0.0.0/8"]})
    assert (await stranger.get(link)).text == "hello"
    assert (await ask(http, "POST", f"{path}/exec", 200, {"command": "cat a.txt"}))["data"]["stdout"] == "hello"


async def test_a_link_gives_one_file_to_anybody_until_it_expires(
    http: httpx2.AsyncClient, stranger: httpx2.AsyncClient, server: Server
) -> None:
    disk_id = await made(http, "public")
    disk = server.disks.get(disk_id)
    await disk.put("dir/é 'x'.html", b"<script>alert(1)</script>")
    await disk.put("other", b"other")
    path = f"/api/disks/{disk_id}/share"
    data = (await ask(http, "POST", path, 200, {"key": "dir/é 'x'.html"}))["data"]
    assert data["expiresIn"] == 86_400
    answer = await stranger.get(data["url"])
    assert (answer.status_code, answer.content) == (200, b"<script>alert(1)</script>")
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%A9%20%27x%27.html"
    assert (answer.headers["x-content-type-options"], answer.headers["content-length"]) == ("nosniff", "25")
    assert "sandbox" in answer.headers["content-security-policy"]
    await ask(http, "POST", path, 404, {"key": "missing"})
    for wrong in (
        {"key": "../x"},
        {"key": ""},
        {"key": "other", "expiresIn": 0},
        {"key": "other", "expiresIn": 604_801},
    ):
        await ask(http, "POST", path, 400, wrong)
    token = data["url"].rpartition("/")[2]
    said, _, signature = token.partition(".")
    for forged in (
        said,
        f"{said}.",
        f"{said}.{signature[:-2]}AA",
        f"{said}A.{signature}",
        "x",
        "é",
        "a.b.c",
        "." * 20_000,
    ):
        assert (await stranger.get(f"/api/shared/{forged}")).status_code == 404
    await server.disks.delete(disk_id)
    assert (await stranger.get(data["url"])).status_code == 404


def test_a_link_says_when_it_has_expired_and_is_signed_by_one_server_alone() -> None:
    link = Link("dsk-0000000000000000", "a/b", 1000)
    token = token_of(link, b"ours")
    assert link_of(token, b"ours", 999.9) == link
    with pytest.raises(ApiError, match="expired") as caught:
        link_of(token, b"ours", 1000.0)
    assert caught.value.status == 410
    with pytest.raises(ApiError, match="none of this server's"):
        link_of(token, b"theirs", 1.0)


async def _content(disk: Disk, key: str) -> bytes:
    return await (await disk.get(key)).read()


async def test_a_branch_is_a_copy_that_goes_its_own_way(http: httpx2.AsyncClient, server: Server) -> None:
    disk_id = await made(http, "trunk")
    disk = server.disks.get(disk_id)
    await disk.put("a", b"1")
    path = f"/api/disks/{disk_id}/branches"
    body = {"branch_name": "b1", "from_checkpoint_name": "current"}
    key = str(uuid.uuid4())
    branch = (await ask(http, "POST", path, 201, body, **{"Idempotency-Key": key}))["data"]
    assert branch == {
        "root_filesystem_id": disk_id,
        "branch_name": "b1",
        "filesystem_id": f"{disk_id}.b1",
        "from_checkpoint_name": "current",
        "from_checkpoint_filesystem_id": disk_id,
        "created_at": branch["created_at"],
    }
    assert (await ask(http, "POST", path, 201, body, **{"Idempotency-Key": key}))["data"] == branch
    await ask(http, "POST", path, 409, body, **{"Idempotency-Key": str(uuid.uuid4())})
    assert (await ask(http, "POST", path, 409, body))["code"] == "name_taken"
    await ask(http, "POST", path, 409, {**body, "branch_name": "b2"}, **{"Idempotency-Key": key})
    await ask(http, "POST", path, 400, {**body, "branch_name": "b2"}, **{"Idempotency-Key": "no uuid"})
    await ask(http, "POST", path, 404, {**body, "branch_name": "b2", "from_checkpoint_name": "cp-1"})
    await ask(http, "POST", path, 404, {**body, "branch_name": "b2", "from_branch": "missing"})
    await ask(http, "POST", path, 400, {**body, "branch_name": "../b"})
    await disk.put("a", b"2")
    of_branch = (await ask(http, "POST", path, 201, {**body, "branch_name": "b2", "from_branch": "b1"}))["data"]
    assert of_branch["from_checkpoint_filesystem_id"] == f"{disk_id}.b1"
    assert await _content(server.disks.get(disk_id, "b2"), "a") == b"1"
    assert [each["branch_name"] for each in (await ask(http, "GET", path, 200))["data"]] == ["b1", "b2"]
    assert (await ask(http, "GET", f"{path}/b1", 200))["data"] == branch
    await ask(http, "GET", f"{path}/b3", 404)


def _use(disk_id: str, holder: str, *, exclusive: bool) -> Use:
    return Use(disk_id, holder, f"sandbox {holder!r}", "", 7, exclusive)


async def test_one_alone_holds_a_disk_to_write_and_others_share_it() -> None:
    leases = Leases()
    leases.take([_use("d1", "a", exclusive=True)])
    leases.take([_use("d1", "a", exclusive=True)])
    assert len(leases.of("d1")) == 1
    leases.take([_use("d1", "reader", exclusive=False)])
    with pytest.raises(ApiError, match="sandbox 'a' has disk d1 mounted to write") as caught:
        leases.take([_use("d2", "b", exclusive=True), _use("d1", "b", exclusive=True)])
    assert caught.value.status == 409
    assert leases.of("d2") == []
    waiting = asyncio.create_task(leases.wait(_use("d1", "b", exclusive=True), 20))
    await asyncio.sleep(0)
    leases.release("a")
    await waiting
    leases.take([_use("d1", "b", exclusive=True)])
    with pytest.raises(ApiError):
        await leases.wait(_use("d1", "c", exclusive=True), 0)


async def test_a_delegation_is_told_and_revoked(http: httpx2.AsyncClient, server: Server) -> None:
    disk_id = await made(http, "held")
    leases, path = server.the(Leases), f"/api/disks/{disk_id}"
    leases.take([_use(disk_id, "a", exclusive=True), _use(disk_id, "b", exclusive=False)])
    (held,) = (await ask(http, "GET", f"{path}/delegations", 200))["data"]["delegations"]
    assert held == {"clientId": "a", "inodeId": 7, "path": "/", "isPending": False, "isOrphaned": False}
    await ask(http, "DELETE", path, 409)
    await ask(http, "POST", f"{path}/revoke-delegation", 404, {"clientId": "b", "inodeId": 7})
    await ask(http, "POST", f"{path}/revoke-delegation", 200, {"clientId": "a", "inodeId": 7})
    assert (await ask(http, "GET", f"{path}/delegations", 200))["data"]["delegations"] == []
    leases.take([_use(disk_id, "c", exclusive=True)])
    clients = (await ask(http, "GET", path, 200))["data"]["connectedClients"]
    assert [each["id"] for each in clients] == ["a", "b", "c"]
    for holder in ("a", "b", "c"):
        leases.release(holder)
    await ask(http, "DELETE", path, 200)
