"""What was done, newest first, and no more of it than is kept."""

from __future__ import annotations

import httpx2
import pytest

from forkyard.server.activity import Activity
from forkyard.server.serving import Server

pytestmark = pytest.mark.usefixtures("address")


async def test_events_come_newest_first_in_pages(server: Server, http: httpx2.AsyncClient) -> None:
    for number in range(5):
        server.the(Activity).record("disk.created", f"dsk-{number}", diskName=f"d{number}")
    first = (await http.get("/api/activity", params={"limit": 3})).json()
    assert [event["disk_id"] for event in first["data"]] == ["dsk-4", "dsk-3", "dsk-2"]
    assert first["data"][0]["details"] == {"diskName": "d4"}
    rest = (await http.get("/api/activity", params={"cursor": first["nextCursor"]})).json()
    assert [event["disk_id"] for event in rest["data"]] == ["dsk-1", "dsk-0"] and "nextCursor" not in rest


async def test_events_are_chosen_by_disk_kind_and_level(server: Server, http: httpx2.AsyncClient) -> None:
    activity = server.the(Activity)
    activity.record("disk.created", "dsk-1")
    activity.record("disk.exec", "dsk-1", level="error")
    activity.record("disk.deleted", "dsk-2")

    async def found(query: str) -> list[str]:
        return [event["event_type"] for event in (await http.get(f"/api/activity?{query}")).json()["data"]]

    assert await found("diskId=dsk-1") == ["disk.exec", "disk.created"]
    assert await found("eventType=disk.created&eventType=disk.deleted") == ["disk.deleted", "disk.created"]
    assert await found("level=error") == ["disk.exec"]
    assert (await http.get("/api/activity?level=loud")).status_code == 400


async def test_the_oldest_events_go(server: Server) -> None:
    activity = Activity(server.state, kept=20)
    for number in range(300):
        activity.record(f"event.{number}")
    left = activity.list()
    assert len(left) < 140 and left[0].event_type == "event.299"
