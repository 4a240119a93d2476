"""What was done on this server, as `/api/activity` tells it."""

from forkyard.server.activity.events import Activity, Event, Level

__all__ = ["Activity", "Event", "Level"]
