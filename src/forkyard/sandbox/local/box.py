"""A row of the store: a sandbox or an image, as `store.Store` reads and writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forkyard.sandbox.values import Healthcheck, ImageConfig, ImageInfo, Limits, Mount, SandboxInfo

SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS boxes (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,           -- sandbox, image, or draft: a disk that is being made
    name TEXT,
    state TEXT NOT NULL,          -- running or stopped
    image TEXT NOT NULL,
    parent TEXT,
    created REAL NOT NULL,
    engine TEXT,                  -- whose process owns it while it runs
    disk TEXT,                    -- the disk being written, while it runs
    host INTEGER NOT NULL,        -- 1 when /usr is the machine's own
    config TEXT NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS names ON boxes (kind, name) WHERE name IS NOT NULL;
CREATE TABLE IF NOT EXISTS stack (
    box TEXT NOT NULL REFERENCES boxes (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    disk TEXT NOT NULL,
    PRIMARY KEY (box, position)
);
CREATE INDEX IF NOT EXISTS disks ON stack (disk);
CREATE TABLE IF NOT EXISTS history (  -- of what was stopped or opened once
    box TEXT PRIMARY KEY REFERENCES boxes (id) ON DELETE CASCADE,
    own INTEGER NOT NULL,         -- how many disks of its stack it wrote itself
    used REAL NOT NULL            -- when it was last stopped or opened
);
CREATE TABLE IF NOT EXISTS mounts (   -- of sandboxes that have some
    box TEXT PRIMARY KEY REFERENCES boxes (id) ON DELETE CASCADE,
    mounts TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS survivors (  -- sandboxes that outlive their owner
    box TEXT PRIMARY KEY REFERENCES boxes (id) ON DELETE CASCADE,
    limits TEXT NOT NULL          -- under which they run whoever starts them again
);
"""
SELECT = (
    "SELECT boxes.*, own, used, mounts.mounts, survivors.limits FROM boxes LEFT JOIN history ON history.box = id"
    " LEFT JOIN mounts ON mounts.box = id LEFT JOIN survivors ON survivors.box = id"
)


@dataclass(frozen=True, slots=True)
class Box:
    """One row: a sandbox or an image, with the sealed disks it stands on, topmost first."""

    id: str
    kind: str
    name: str | None
    state: str
    image: str
    parent: str | None
    created: float
    engine: str | None
    disk: str | None
    host: bool
    config: ImageConfig
    stack: tuple[str, ...]
    own: int = 0  # how many disks of the stack, from the top, it wrote itself: the others are what it started from
    used: float = 0.0  # when it was last stopped or opened
    mounts: tuple[Mount, ...] = ()
    survivor: Limits | None = None  # the limits of one that outlives its owner

    @property
    def lasts(self) -> bool:
        """Whether it can be asked for when the process that runs it is gone."""
        return self.name is not None or self.survivor is not None

    @property
    def origin(self) -> Origin:
        """The sealed disks of it, for another to start from."""
        image = self.name or self.id if self.kind == "image" else self.image
        return Origin(image, self.stack, self.host, self)

    @property
    def told(self) -> str:
        """What messages call it."""
        return f"{self.kind} {self.name or self.id}"

    @property
    def info(self) -> SandboxInfo:
        """The row as a listing shows it."""
        return SandboxInfo(self.id, self.name, self.state, self.image, self.parent, self.created)

    @property
    def image_info(self) -> ImageInfo:
        """The row as a listing of images shows it."""
        return ImageInfo(self.name or self.id, self.config, self.created)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a new sandbox starts from: sealed disks, topmost first, and the image that listings say it came from."""

    image: str
    stack: tuple[str, ...] = ()
    host: bool = False  # whether /usr is the machine's own
    box: Box | None = None  # whose disks they are, if they are all of somebody's: that may stand on others by now

    @property
    def parent(self) -> str | None:
        """The sandbox that is forked, if it is one."""
        return self.box.id if self.box and self.box.kind == "sandbox" else None


SCRATCH = Origin("scratch")  # an empty root


def as_row(box: Box) -> tuple[Any, ...]:
    """The values of a row of `boxes`."""
    head = (box.id, box.kind, box.name, box.state, box.image, box.parent, box.created, box.engine, box.disk)
    return (*head, int(box.host), json.dumps(asdict(box.config)))


def mounts_text(mounts: Sequence[Mount]) -> str:
    """The value of a row of `mounts`."""
    return json.dumps([(str(mount.source), mount.target, mount.read_only) for mount in mounts])


def _mounts(text: str) -> tuple[Mount, ...]:
    return tuple(Mount(Path(source), target, read_only) for source, target, read_only in json.loads(text))


def from_row(row: Sequence[Any], stack: Sequence[str]) -> Box:
    """The box of a row of `SELECT` and the disks it stands on."""
    (box_id, kind, name, state, image, parent, created, engine, disk, host, config, own, used, mounts, limits) = row
    return Box(
        id=box_id,
        kind=kind,
        name=name,
        state=state,
        image=image,
        parent=parent,
        created=created,
        engine=engine,
        disk=disk,
        host=bool(host),
        config=_config(json.loads(config)),
        stack=tuple(stack),
        own=own or 0,
        used=used or created,
        mounts=_mounts(mounts) if mounts else (),
        survivor=Limits(**json.loads(limits)) if limits else None,
    )


def _config(saved: dict[str, Any]) -> ImageConfig:
    """A configuration as it was saved; what an older Forkyard did not know is left at its default."""
    lists = {name: tuple(value) for name, value in saved.items() if isinstance(value, list)}
    check = saved.get("healthcheck")
    healthcheck = Healthcheck(**{**check, "test": tuple(check["test"])}) if check else None
    return ImageConfig(**{**saved, **lists, "healthcheck": healthcheck})
