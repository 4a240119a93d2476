"""Where runs lie: in directories of this machine, or as `disk:NAME/RUN` on a named disk.

Runs import what disks take here alone, and late: most are on none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkyard.trace.store import on_disk

if TYPE_CHECKING:
    from forkyard.run.directory import RunDirectory
    from forkyard.run.plan import Plan
    from forkyard.trace.store import TraceStore


def out_of(out: Path) -> dict[str, Any]:
    """What a plan says of runs that go to `out`. Raises ConfigError for a disk that cannot be called that."""
    if not on_disk(out):
        return {"out": out}
    from forkyard.run.ondisk import placed

    return placed(out)


async def fetched(place: Path) -> Path:
    """The directory of this machine that a run is gone on with in. Raises ConfigError when a disk has no such run."""
    if not on_disk(place):
        return place
    from forkyard.run.ondisk import fetched as fetched_from_disk

    return await fetched_from_disk(place)


@asynccontextmanager
async def mirrored(directory: RunDirectory, plan: Plan) -> AsyncIterator[None]:
    """Have what is written meanwhile written to the plan's disk as well, if it has one. ConfigError when it cannot."""
    if plan.disk is None:
        yield
        return
    from forkyard.run.ondisk import mirrored as mirrored_on_disk

    async with mirrored_on_disk(plan.disk, plan.place.name, directory.path) as directory.mirror:
        yield


async def take_over(directory: RunDirectory, plan: Plan, store: TraceStore) -> None:
    """Give a run's file the lines that only its disk has, if it has one. Raises ConfigError."""
    if plan.disk is None:
        return
    from forkyard.run.ondisk import take_over as take_over_from_disk

    await take_over_from_disk(plan.disk, plan.place.name, store, directory.known())
