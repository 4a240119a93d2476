"""GET /api/activity."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from forkyard.server.activity.events import Activity, Event, Level
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer
from forkyard.server.paging import LIMIT, page

if TYPE_CHECKING:
    from forkyard.server.serving import Server


class ActivityQuery(BaseModel):
    """Which events."""

    limit: int = Field(LIMIT, ge=1)
    cursor: str | None = None
    disk_id: str | None = Field(None, alias="diskId")
    event_type: list[str] = Field([], alias="eventType")
    level: list[Level] = []


@asynccontextmanager
async def lifetime(server: Server) -> AsyncIterator[None]:
    """Keeps the record while the server runs."""
    server.keep(Activity(server.state))
    yield


def endpoints(server: Server) -> list[Endpoint]:
    """The rows of this part."""
    activity = server.the(Activity)

    async def list_activity(call: Call) -> Answer:
        query: ActivityQuery = call.query
        wanted = (event for event in activity.list(query.cursor) if _is_wanted(event, query))
        return page([*islice(wanted, min(query.limit, LIMIT) + 1)], query.limit, lambda event: event.event_id)

    return [
        Endpoint(
            "GET",
            "/api/activity",
            list_activity,
            "What was done on this server, newest first",
            query=ActivityQuery,
            data=list[Event],
        )
    ]


def _is_wanted(event: Event, query: ActivityQuery) -> bool:
    return (
        (query.disk_id is None or event.disk_id == query.disk_id)
        and (not query.event_type or event.event_type in query.event_type)
        and (not query.level or event.level in query.level)
    )
