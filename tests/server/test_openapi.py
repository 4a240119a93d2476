"""The document says what is there, and what is there does as the document says."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from forkyard.server import parts
from forkyard.server.address import Address
from forkyard.server.openapi import statuses
from forkyard.server.serving import Server

VENDORS = """
GET POST /api/disks
GET DELETE /api/disks/{}
POST /api/disks/{}/exec
POST /api/exec
POST /api/disks/{}/grep
POST /api/disks/{}/share
GET /api/shared/{}
GET POST /api/disks/{}/branches
GET /api/disks/{}/branches/{}
POST /api/disks/{}/users
DELETE /api/disks/{}/users/{}
GET PUT /api/disks/{}/allowed-ips
GET /api/disks/{}/delegations
POST /api/disks/{}/revoke-delegation
GET POST /api/tokens
DELETE /api/tokens/{}
GET /api/activity
POST /api/images
GET /api/images/{}
GET POST /api/sandboxes
GET DELETE /api/sandboxes/{}
POST /api/sandboxes/{}/start
POST /api/sandboxes/{}/stop
POST /api/sandboxes/{}/pause
POST /api/sandboxes/{}/resume
POST /api/sandboxes/{}/fork
POST /api/sandboxes/{}/timeout
POST /api/sandboxes/{}/connections
GET PUT /api/sandboxes/{}/network
GET /api/sandboxes/{}/ports
PUT DELETE /api/sandboxes/{}/ports/{}
GET POST /api/sandboxes/{}/port-tokens
GET DELETE /api/sandboxes/{}/port-tokens/{}
"""
"""Every path of the vendor's API but those of billing."""


def vendor_operations() -> set[tuple[str, str]]:
    found = set()
    for line in VENDORS.split("\n")[1:-1]:
        *methods, path = line.split()
        found |= {(method, path) for method in methods}
    return found


async def document(client: httpx2.AsyncClient) -> dict[str, Any]:
    reply = await client.get("/openapi.json")
    assert reply.headers["content-type"] == "application/json"
    whole: dict[str, Any] = reply.json()
    return whole


async def test_every_endpoint_of_the_vendor_but_billing_is_there(stranger: httpx2.AsyncClient) -> None:
    paths = (await document(stranger))["paths"]
    ours = {(method.upper(), re.sub(r"\{\w+\}", "{}", path)) for path, about in paths.items() for method in about}
    assert vendor_operations() - ours == set()


async def test_every_row_of_the_table_answers_and_asks_for_a_key(server: Server, stranger: httpx2.AsyncClient) -> None:
    for endpoint in parts.endpoints(server):
        path = re.sub(r"\{\w+\}", "x", endpoint.path)
        reply = await stranger.request(endpoint.method, path)
        if endpoint.public:
            assert reply.status_code in {*endpoint.success, *statuses(endpoint)}, path
        else:
            assert reply.status_code == 401, f"{endpoint.method} {path}"
        assert reply.json()["success"] is False


async def test_every_reference_in_the_document_leads_somewhere(stranger: httpx2.AsyncClient) -> None:
    whole = await document(stranger)
    references: list[str] = []

    def gather(value: object) -> None:
        if isinstance(value, dict):
            references.extend(one for name, one in value.items() if name == "$ref")
            for item in value.values():
                gather(item)
        elif isinstance(value, list):
            for item in value:
                gather(item)

    gather(whole)
    missing = [
        one for one in references if one.removeprefix("#/components/schemas/") not in whole["components"]["schemas"]
    ]
    assert references and missing == []


async def test_operations_have_names_of_their_own(stranger: httpx2.AsyncClient) -> None:
    paths = (await document(stranger))["paths"]
    names = [about["operationId"] for methods in paths.values() for about in methods.values()]
    assert len(names) == len(set(names))


CONFIGURATION = """
[checks]
positive_data_acceptance.enabled = false  # what a schema cannot say, as that a name is taken, is refused too
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501", "503", "504"]
[[operations]]
include-name = "GET /api/sandboxes"
[operations.checks]
negative_data_rejection.enabled = false  # in a query, a text in the place of an array is an array of one text
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_whatever_is_sent_is_answered_as_the_document_says(address: Address, key: str, tmp_path: Path) -> None:
    """schemathesis sends right and wrong requests, with keys and without, and judges the answers by the document."""
    pytest.importorskip("schemathesis")
    configuration = tmp_path / "schemathesis.toml"
    configuration.write_text(CONFIGURATION)
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(configuration),
        "run", f"{address.origin}/openapi.json", "-H", f"Authorization: {key}",
        "--phases", "examples,coverage,fuzzing", "--max-examples", "4", "--continue-on-failure",
        "--generation-deterministic", "--no-color",
        "--exclude-path", "/api/tokens/{id}",  # it would find the id of its own key, and revoke it
        cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, told.decode()[-20_000:]
