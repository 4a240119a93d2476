"""API keys: none until one is made, kept as hashes, gone when revoked."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from forkyard.server.files import server_home
from forkyard.server.keys import opened_keys
from forkyard.server.serving import Server
from forkyard.server.state import TakenError


def test_there_is_no_key_until_one_is_made(tmp_path: Path) -> None:
    with opened_keys(tmp_path) as keys:
        assert keys.list() == []
        assert keys.find("key-") is None
        _, text = keys.create("one")
        assert (found := keys.find(text)) is not None and found.name == "one"


def test_nothing_on_the_medium_is_the_key(tmp_path: Path) -> None:
    with opened_keys(tmp_path) as keys:
        _, text = keys.create("one")
        secret = text.partition(".")[2].encode()
        assert all(secret not in path.read_bytes() for path in server_home(tmp_path).iterdir())
        assert {path.stat().st_mode & 0o077 for path in server_home(tmp_path).iterdir() if path.name != "ca.pem"} == {0}


def test_every_other_text_is_no_key(tmp_path: Path) -> None:
    with opened_keys(tmp_path) as keys:
        key, text = keys.create("one")
        for wrong in (text[:-1], text + "x", text.upper(), f"key-{key.id}", f"key-{key.id}.", key.digest, key.id, ""):
            assert keys.find(wrong) is None, wrong


def test_a_name_is_used_once_and_free_again_after_revoking(tmp_path: Path) -> None:
    with opened_keys(tmp_path) as keys:
        key, text = keys.create("one")
        with pytest.raises(TakenError):
            keys.create("one")
        assert keys.revoke(key.id) and not keys.revoke(key.id)
        assert keys.find(text) is None and keys.signing_secret(key.id) is None
        keys.create("one")


def test_the_pair_of_a_key_is_the_same_in_every_process(tmp_path: Path) -> None:
    with opened_keys(tmp_path) as keys:
        key, _ = keys.create("one")
        other, _ = keys.create("two")
        secret = keys.signing_secret(key.id)
        assert secret != keys.signing_secret(other.id)
    with opened_keys(tmp_path) as again:
        assert again.signing_secret(key.id) == secret
        assert again.signing_secret("unknown") is None


async def test_a_key_revoked_by_another_process_opens_nothing_more(
    server: Server, http: httpx2.AsyncClient, key: str
) -> None:
    assert (await http.get("/api/tokens")).status_code == 200
    with opened_keys(server.home) as elsewhere:
        elsewhere.revoke(elsewhere.list()[0].id)
    assert (await http.get("/api/tokens")).status_code == 401


async def test_keys_are_made_listed_and_revoked_over_the_wire(http: httpx2.AsyncClient) -> None:
    made = (await http.post("/api/tokens", json={"name": "ci", "description": "for CI"})).json()["data"]
    assert made["token"].startswith("key-") and made["tokenSuffix"] == made["token"][-4:]
    listed = (await http.get("/api/tokens")).json()["data"]["tokens"]
    assert [each["name"] for each in listed] == ["tests", "ci"]
    assert all("token" not in each for each in listed)
    assert (await http.post("/api/tokens", json={"name": "ci"})).status_code == 409
    assert (await http.get("/api/tokens", headers={"Authorization": made["token"]})).status_code == 200
    assert (await http.delete(f"/api/tokens/{made['id']}")).json() == {"success": True}
    assert (await http.get("/api/tokens", headers={"Authorization": made["token"]})).status_code == 401
    assert (await http.delete(f"/api/tokens/{made['id']}")).status_code == 404


async def test_keys_come_in_pages(http: httpx2.AsyncClient) -> None:
    for number in range(4):
        await http.post("/api/tokens", json={"name": f"k{number}"})
    names: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        whole = (await http.get("/api/tokens", params={"limit": "2", **cursor})).json()
        names += [each["name"] for each in whole["data"]["tokens"]]
        if "nextCursor" not in whole:
            break
        cursor = {"cursor": whole["nextCursor"]}
    assert names == ["tests", "k0", "k1", "k2", "k3"]


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=", "limit=1.5", "limit=-1"])
async def test_a_bad_query_is_told_as_such(http: httpx2.AsyncClient, query: str) -> None:
    reply = await http.get(f"/api/tokens?{query}")
    assert reply.status_code == 400 and "limit" in reply.json()["error"]


@pytest.mark.parametrize("name", ["", "a\nb", "\u0000", "x" * 101])
async def test_a_bad_name_is_told_as_such(http: httpx2.AsyncClient, name: str) -> None:
    assert (await http.post("/api/tokens", json={"name": name})).status_code == 400


async def test_fewer_permissions_are_refused_by_name(http: httpx2.AsyncClient) -> None:
    reply = await http.post("/api/tokens", json={"name": "weak", "permissions": ["read"]})
    assert reply.status_code == 501 and "permissions" in reply.json()["error"]
