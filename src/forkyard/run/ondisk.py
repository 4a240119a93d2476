"""Runs whose lines are on a named disk: `disk:NAME/RUN`.

Such a run is played in a directory of this machine, as any other; each line goes from there to the end of an object
of the disk, `RUN/traces.jsonl`, beside `RUN/plan.json`. So what is on the disk is a run's directory, too. When a run is
gone on with, both sides get what the other has.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from forkyard.disk import APPEND_LIMIT, Objects, named_disk
from forkyard.errors import ConfigError
from forkyard.files import replace
from forkyard.run.directory import RunDirectory
from forkyard.sandbox import default_home
from forkyard.trace.store import DISK_PREFIX, PLAN_FILE, TRACES_FILE, Record, TraceStore, lines_of, on_disk
from forkyard.wire import URL_VARIABLES, place_of

_NAME = re.compile("[a-zA-Z0-9_-]{1,100}")
_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)  # seconds between tries


def parted(place: Path) -> tuple[str, str]:
    """The disk's name and what is behind it in `disk:NAME/RUN`. ConfigError when it is neither that nor `disk:NAME`."""
    name, _, run = str(place).removeprefix(DISK_PREFIX).partition("/")
    if not _NAME.fullmatch(name) or "/" in run or run in (".", ".."):
        raise ConfigError(f"{place} is no place on a disk: write disk:NAME, and disk:NAME/RUN for a run there")
    return name, run


def played_in(name: str) -> Path:
    """The directory of this machine that runs on that disk are played in."""
    place = place_of()
    where = "here" if place is None else re.sub(r"[^A-Za-z0-9.-]+", "_", place.origin)
    return default_home() / "disk-runs" / where / name


def placed(out: Path) -> dict[str, Any]:
    """What a plan says of runs that go to `disk:NAME`. ConfigError for what is no such place."""
    name, run = parted(out)
    if run:
        raise ConfigError(f"{out}: name the disk alone, as {DISK_PREFIX}{name}; the run's name is said by --run")
    return {"out": played_in(name), "disk": name}


class Mirror:
    """The object that a run's lines go to. One writer at a time: the run's directory is held."""

    def __init__(self, objects: Objects, run: str) -> None:
        self._objects = objects
        self._key = f"{run}/{TRACES_FILE}"
        self._size = 0
        self._turn = asyncio.Lock()

    async def begin(self, path: Path) -> None:
        """Have the object be as the file is."""
        lines = path.read_bytes() if path.exists() else b""
        there = await self._objects.get(self._key)
        if there is not None and lines.startswith(there):
            self._size = len(there)
            await self._add(lines[len(there) :])
        else:
            await self._objects.put(self._key, lines)
            self._size = len(lines)

    async def append(self, records: Sequence[Record]) -> None:
        """Add the lines of one episode. Raises OSError when the disk cannot be reached for longer."""
        async with self._turn:
            await self._add(lines_of(*records))

    async def _add(self, lines: bytes) -> None:
        """In one piece, unless that is more than a disk takes at once."""
        for at in range(0, len(lines), APPEND_LIMIT):
            await self._add_piece(lines[at : at + APPEND_LIMIT])

    async def _add_piece(self, piece: bytes) -> None:
        """An append is sent again only when it is known that it did not arrive."""
        pauses = iter(_PAUSES)
        while True:
            try:
                await self._objects.append(self._key, piece)
                break
            except OSError as err:
                if await self._arrived(piece, pauses, err):
                    break
        self._size += len(piece)

    async def _arrived(self, piece: bytes, pauses: Iterator[float], failure: OSError) -> bool:
        for pause in pauses:
            await asyncio.sleep(pause)
            try:
                size = await self._objects.size(self._key) or 0
            except OSError:
                continue
            if size not in (self._size, self._size + len(piece)):
                break
            return size != self._size
        else:
            raise failure
        raise OSError(f"{self._key} has {size} bytes in the place of {self._size}: somebody else writes to it")


@asynccontextmanager
async def mirrored(disk: str, run: str, path: Path) -> AsyncIterator[Mirror]:
    """Where the lines of a run in a directory of this machine go to, everything that is there being there already.

    ConfigError when another run of that name is on the disk.
    """
    _check_server(disk, path)
    async with named_disk(disk, default_home(), place_of(), create=True) as objects:
        mirror = Mirror(objects, run)
        try:
            await _plan_there(objects, disk, run, (path / PLAN_FILE).read_bytes())
            await mirror.begin(path / TRACES_FILE)
        except OSError as err:
            raise ConfigError(f"lines cannot be written to disk {disk}: {err}") from err
        yield mirror


def _check_server(disk: str, path: Path) -> None:
    """Raise ConfigError when the environment names another server than when the run began."""
    here, began = played_in(disk).parts[-2:], path.absolute().parent.parts[-2:]
    if here != began:
        raise ConfigError(
            f"the lines of {path} go to disk {disk} of {began[0]}, and the environment names {here[0]}: "
            f"set {URL_VARIABLES[0]} as it was when the run began, or leave it out if it was not set"
        )


async def _plan_there(objects: Objects, disk: str, run: str, plan: bytes) -> None:
    there = await objects.get(f"{run}/{PLAN_FILE}")
    if there is None:
        await objects.put(f"{run}/{PLAN_FILE}", plan)
    elif _created(there) != _created(plan):
        raise ConfigError(f"disk {disk} holds another run {run!r} already: choose another name for this one")


async def fetched(place: Path) -> Path:
    """The directory that a run on a disk is gone on with in, with its plan there. ConfigError when it is none."""
    name, run = parted(place)
    directory = played_in(name) / run
    try:
        async with named_disk(name, default_home(), place_of()) as objects:
            plan = await objects.get(f"{run}/{PLAN_FILE}") if run else None
    except OSError as err:
        raise ConfigError(f"{place} cannot be read: {err}") from err
    if plan is None:
        raise ConfigError(f"{place} is no run: there is no {PLAN_FILE}")
    directory.mkdir(parents=True, exist_ok=True)
    with RunDirectory(directory):
        if not (directory / PLAN_FILE).exists():
            replace(directory / PLAN_FILE, [plan])
        elif _created((directory / PLAN_FILE).read_bytes()) != _created(plan):
            raise ConfigError(f"{directory} holds another run than {place}: move it away")
    return directory


async def take_over(disk: str, run: str, store: TraceStore, known: Collection[Any]) -> None:
    """Give a run's file the lines that only the disk has; `known` are the ids of those it has, or had. ConfigError."""
    _check_server(disk, store.path.parent)
    try:
        async with named_disk(disk, default_home(), place_of(), create=True) as objects:
            there = await objects.get(f"{run}/{TRACES_FILE}") or b""
    except OSError as err:
        raise ConfigError(f"the lines on disk {disk} cannot be read: {err}") from err
    for line in there[: there.rfind(b"\n") + 1].splitlines():
        record = json.loads(line) if line.strip() else {}
        if isinstance(record, dict) and record.get("id") and record["id"] not in known:
            store.append(record)


@contextmanager
def readable(places: Iterable[Path]) -> Iterator[list[Path]]:
    """The same places as directories of this machine: where a disk is one, it is read as it lies there. ConfigError."""
    with ExitStack() as stack:
        yield [_readable(place, stack) if on_disk(place) else place for place in places]


def _readable(place: Path, stack: ExitStack) -> Path:
    name, run = parted(place)

    async def read() -> Path:
        async with named_disk(name, default_home(), place_of()) as objects:
            if objects.directory is not None:
                return objects.directory / run
            return await copied(objects)

    async def copied(objects: Objects) -> Path:
        copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forkyard-"))) / (run or name)
        copy.mkdir()
        for file in (PLAN_FILE, TRACES_FILE):
            if (content := await objects.get(f"{run}/{file}")) is not None:
                (copy / file).write_bytes(content)
        return copy

    try:
        return asyncio.run(read())
    except OSError as err:
        raise ConfigError(f"{place} cannot be read: {err}") from err


def _created(plan: bytes) -> Any:
    try:
        found = json.loads(plan)
    except ValueError:
        return None
    return found.get("created") if isinstance(found, dict) else None
