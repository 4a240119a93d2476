"""The containers of one provider: made, started, committed and removed by calls of the Engine."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError, SandboxError
from forkyard.locks import Owners
from forkyard.sandbox.docker.agent import HERE
from forkyard.sandbox.docker.engine import Engine, Refused
from forkyard.sandbox.docker.images import HOME_LABEL, OWNER_LABEL, RECORD_LABEL, UNSET, to_docker
from forkyard.sandbox.docker.live import Live, killed, memory_file
from forkyard.sandbox.docker.meeting import Meeting, make_place, remove_place
from forkyard.sandbox.docker.record import Record
from forkyard.sandbox.docker.tools import Tools, make_tools
from forkyard.sandbox.local.cgroups import DEFAULT_PIDS
from forkyard.sandbox.values import ImageConfig, Limits, Mount
from forkyard.values import MIB, tail

START_TIMEOUT = 60.0
PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0)  # between starts of a container that comes up without its disk
AT_ONCE = 8  # starts of containers
_LOOK_AGAIN = 0.5
REMOVE = {"force": "1", "v": "1"}  # a container, though it runs, with its nameless volumes
_SHM = 64 * MIB


class DiskMissing(SandboxError):
    """A container runs in the place of its disk, on which the disk is not mounted."""


class Containers:
    """What the sandboxes of a provider share. Everything is opened at first use, and ends with `close`."""

    def __init__(self, engine: Engine, home: Path) -> None:
        self.engine, self.home = engine, home
        self.home_id = hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]
        self.guests: set[Callable[[], Awaitable[None]]] = set()  # how each sandbox leaves when the provider is closed
        self.templates: set[str] = set()  # images that stopped sandboxes of this process are forked from
        self._owners: Owners | None = None
        self._tools: Tools | None = None
        self._starting = asyncio.Semaphore(AT_ONCE)
        self._preparing = asyncio.Lock()

    @property
    def owners(self) -> Owners:
        """Who of those that share the home are alive."""
        if self._owners is None:
            (self.home / "engines").mkdir(parents=True, exist_ok=True)
            self._owners = Owners(self.home / "engines")
        return self._owners

    async def tools(self) -> Tools:
        """What is mounted into containers."""
        async with self._preparing:
            if self._tools is None:
                self._tools = await asyncio.to_thread(make_tools, self.home.resolve())
            return self._tools

    def place(self, key: str) -> Path:
        """The directory in which a container meets its owner."""
        return self.home.resolve() / "run" / key

    async def make(self, record: Record, image: str) -> str:
        """A container of an image's id, not yet started; its id. ConfigError when its name is in use."""
        owner = self.owners.own
        place, tools = self.place(record.key), await self.tools()
        await asyncio.to_thread(make_place, place)
        body = {
            "Image": image,
            "Entrypoint": list(tools.command),
            "Cmd": [],
            "User": "0:0",
            "WorkingDir": "/",
            "Env": [f"{name}=" for name in UNSET],
            "Healthcheck": {"Test": ["NONE"]},
            "Labels": {HOME_LABEL: self.home_id, OWNER_LABEL: owner, RECORD_LABEL: record.as_label()},
            "HostConfig": {**_walls(record.limits), "Mounts": [*mounts(tools, place), *map(_bind, record.mounts)]},
        }
        name = record.container_name(self.home_id)
        creating = asyncio.ensure_future(
            self.engine.call("POST", "/containers/create", body=body, query={"name": name})
        )
        try:
            return str((await asyncio.shield(creating))["Id"])
        except Refused as err:
            await asyncio.to_thread(remove_place, place)
            if err.status_code == 409 and record.name is not None:
                raise ConfigError(
                    f"the name {record.name!r} is in use by another sandbox; close it or choose another"
                ) from err
            raise
        except asyncio.CancelledError:  # it is made whole, so that it can be removed
            await asyncio.wait([creating])
            if creating.exception() is None:
                await self.remove(str(creating.result()["Id"]), record)
            raise

    async def boot(self, container: str, record: Record) -> Live:
        """Start a container and have its walls closed."""
        for pause in PAUSES:
            with suppress(DiskMissing):
                return await self._boot(container, record)
            await asyncio.sleep(pause)
        return await self._boot(container, record)

    async def _boot(self, container: str, record: Record) -> Live:
        async with self._starting:
            with Meeting(self.place(record.key)) as meeting:
                await self.engine.call("POST", f"/containers/{container}/start")
                sock = await self.called(meeting, container)
        return await self.live(container, record, sock)

    async def live(self, container: str, record: Record, sock: socket.socket) -> Live:
        """A container whose process has called, with its walls closed. DiskMissing when it stands on another disk."""
        inspected, limits = await self.inspect(container), record.limits
        if not has_its_disk(inspected):
            sock.close()
            await killed(self.engine, container)
            raise DiskMissing("the Engine started a container without its disk")
        memory = None if limits.memory_mb is None else memory_file(int(inspected["State"]["Pid"]))
        live = Live(self.engine, container, sock, memory)
        try:
            await live.boot(_boot(record, inspected))
        except BaseException:
            await live.kill("it could not be set up")
            raise
        return live

    async def called(self, meeting: Meeting, container: str) -> socket.socket:
        """The socket of a process in a container that has just been started; SandboxError when it ended instead."""
        call = asyncio.ensure_future(meeting.call())
        try:
            async with asyncio.timeout(START_TIMEOUT):
                while not (await asyncio.wait([call], timeout=_LOOK_AGAIN))[0]:
                    if not (await self.inspect(container))["State"]["Running"]:
                        raise SandboxError(
                            f"a container ended as soon as it was started: {await self._said(container)}"
                        )
            return call.result()
        except BaseException as err:
            if call.done() and not call.cancelled() and call.exception() is None:
                call.result().close()
            call.cancel()
            if isinstance(err, TimeoutError):
                raise SandboxError(
                    f"the process in a container does not call its owner within {START_TIMEOUT:.0f} s: the Engine has "
                    "to run on this machine and see its files"
                ) from None
            raise

    async def _said(self, container: str) -> str:
        state = (await self.inspect(container))["State"]
        said = await self.engine.logs(container, limit=1000)
        return tail(f"exit code {state.get('ExitCode')} {state.get('Error') or ''} {said}".strip(), 1000)

    async def inspect(self, container: str) -> dict[str, Any]:
        """What the Engine knows of a container."""
        return dict(await self.engine.call("GET", f"/containers/{container}/json"))

    async def stop(self, container: str) -> None:
        """Kill everything in a container, and return when it is gone."""
        await killed(self.engine, container)

    async def commit(self, container: str) -> str:
        """The disk of a container as an image without a name, until nothing stands on it any more; its id."""
        labels = {HOME_LABEL: self.home_id, OWNER_LABEL: self.owners.own}
        body = to_docker("", ImageConfig(), labels)
        made = await self.engine.call("POST", "/commit", body=body, query={"container": container, "pause": "0"})
        return str(made["Id"])

    async def remove(self, container: str, record: Record) -> None:
        """Remove a container with what belongs to it alone."""
        path = f"/containers/{container}"
        await self.engine.call("DELETE", path, missing_ok=True, conflict_ok=True, query=REMOVE)
        await asyncio.to_thread(remove_place, self.place(record.key))

    async def drop_image(self, image: str) -> bool:
        """Remove an image of ours that has no name and on which nothing stands; whether it was."""
        found = await self.engine.call("GET", f"/images/{image}/json", missing_ok=True)
        labels = ((found or {}).get("Config") or {}).get("Labels") or {}
        if (
            found is None
            or found["Id"] in self.templates
            or found.get("RepoTags")
            or labels.get(HOME_LABEL) != self.home_id
        ):
            return False
        gone = await self.engine.call("DELETE", f"/images/{image}", missing_ok=True, conflict_ok=True)
        return gone is not None

    async def close(self) -> None:
        """End every sandbox of this process but stopped ones with a name."""
        for leave in list(self.guests):
            with suppress(SandboxError):  # the Engine is gone: a sweep finds what is left
                await leave()
        self.guests.clear()
        await self.engine.close()
        if self._owners is not None:
            self._owners.close(tidy=True)
            self._owners = None


def has_its_disk(inspected: Mapping[str, Any]) -> bool:
    """Whether a running container stands on an overlay, where those of its Engine do.

    An Engine with much to do at once (seen with Docker 20.10) sometimes lets a container run in the bare directory that
    its overlay was to be mounted on. Where that cannot be told it is taken for granted.
    """
    if (inspected.get("GraphDriver") or {}).get("Name") != "overlay2":
        return True
    try:
        lines = Path(f"/proc/{inspected['State']['Pid']}/mountinfo").read_text().splitlines()
    except OSError:  # it has just ended, or is another machine's
        return True
    kinds = [kind.split()[0] for line in lines for place, _, kind in [line.partition(" - ")] if place.split()[4] == "/"]
    return not kinds or kinds[-1] == "overlay"


def mounts(tools: Tools, place: Path | None = None) -> list[dict[str, Any]]:
    """What PID 1 is started from, and where it calls, if it does."""
    sources = {str(tools.directory): HERE, **({} if place is None else {str(place): f"{HERE}/run"})}
    return [{"Type": "bind", "Source": at, "Target": to, "ReadOnly": True} for at, to in sources.items()]


def _walls(limits: Limits) -> dict[str, Any]:
    """How Docker is to build the container; PID 1 gives up what it has beyond its guests before there are any."""
    walls: dict[str, Any] = {
        "NetworkMode": "none",
        "IpcMode": "private",
        "ShmSize": _SHM,
        "PidsLimit": limits.pids or DEFAULT_PIDS,
        "CapAdd": ["SYS_ADMIN"],  # to unmount what Docker puts over the disk
        "CapDrop": ["NET_RAW", "MKNOD"],
        "LogConfig": {
            "Type": "json-file",
            "Config": {"max-size": "64k", "max-file": "1"},
        },  # of a PID 1 that cannot start
        "RestartPolicy": {"Name": "no"},
    }
    if limits.cpus is not None:
        walls["NanoCpus"] = int(limits.cpus * 1e9)
    if limits.memory_mb is not None:
        walls["Memory"] = walls["MemorySwap"] = limits.memory_mb * MIB
    return walls


def _bind(mount: Mount) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": str(mount.source),
        "Target": mount.target,
        "ReadOnly": mount.read_only,
        "BindOptions": {"Propagation": "private", "NonRecursive": True},
    }


def _boot(record: Record, inspected: dict[str, Any]) -> dict[str, Any]:
    limits, targets = record.limits, [mount.target for mount in record.mounts]
    rlimits = {"RLIMIT_NOFILE": limits.open_files, "RLIMIT_FSIZE": limits.file_mb and limits.file_mb * MIB}
    return {
        "rlimits": {name: value for name, value in rlimits.items() if value is not None},
        "full_memory": limits.memory_mb is not None,
        "volumes": sorted({*(inspected["Config"].get("Volumes") or ())} - {*targets}),
        "mounts": [[mount.target, mount.read_only] for mount in record.mounts],
    }
