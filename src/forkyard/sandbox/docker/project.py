"""A compose project that is up: `main` as a sandbox, and its other services by name."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox.composefile import MAIN
from forkyard.sandbox.composing import ComposePlan
from forkyard.sandbox.docker.compose import LOGS, Compose, bounds, mounted
from forkyard.sandbox.docker.containers import REMOVE, Containers, DiskMissing, has_its_disk, mounts
from forkyard.sandbox.docker.engine import Engine
from forkyard.sandbox.docker.images import UNSET, from_docker
from forkyard.sandbox.docker.live import Live
from forkyard.sandbox.docker.meeting import Meeting, make_place, remove_place
from forkyard.sandbox.docker.record import Record
from forkyard.sandbox.docker.sandbox import DockerSandbox
from forkyard.sandbox.docker.ways import PROJECT_LABEL, SERVICE_LABEL, close_ways
from forkyard.sandbox.network import Network
from forkyard.sandbox.values import Limits
from forkyard.values import new_id

LOG_LIMIT = 1 << 20
_NO_PROGRAM = re.compile("executable file not found|no such file or directory")  # of a command, as the Engine says it
_LOOK_AGAIN = 0.2
_NAME = re.compile(r"forkyard-([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{32})")


class ServiceSandbox(DockerSandbox):
    """A service's container, its own processes in it, and beside them what is run here."""

    def __init__(self, project: Project, container: str, record: Record) -> None:
        super().__init__(project.containers, container, record, "", None)
        project.containers.guests.discard(self._leave)  # it ends with its project
        self.project = project

    async def service(self, name: str) -> ServiceSandbox:
        """Another service of the project."""
        return await self.project.service(name)

    async def connect_to(self) -> ServiceSandbox:
        """Start what answers for it, in the container that runs."""
        self._live = await _beside(self._containers, self.id, self._record)
        await self._outlet.open(self._live.channel)
        return self

    async def detach(self) -> None:
        """End what was run here; the service goes on."""
        self._closed = True
        if self._live is not None:
            self._live.channel.end("it was closed")
            await self._outlet.close()
            self._live = None

    async def set_network(self, network: Network) -> None:
        """Reach another network from now on; SandboxError in a project whose ways out were left open."""
        open_to = self.project.network
        if open_to.mode != "public":
            await super().set_network(network)
        elif network != open_to:
            raise SandboxError("a compose project that starts with the network public keeps it: its ways out are open")

    async def _start(self) -> None:
        self._open_still()
        if self._live is None:
            await self._containers.engine.call("POST", f"/containers/{self.id}/start")
            await self.project.close_ways(self.id)
            await self.connect_to()

    async def _come_to_rest(self, live: Live) -> None:
        """It has no forks to put anything aside for."""

    async def _fork(self, name: str | None) -> DockerSandbox:
        raise SandboxError("a service of a compose project has no forks: they would be without the other services")

    async def _pause(self) -> None:
        raise SandboxError("a service of a compose project cannot be paused: its own processes are not ours")

    async def _close(self) -> None:
        await (self.project.down() if self is self.project.main else self.detach())


class Project:
    """The containers, networks and volumes of a project, until `down`. Closing `main` is `down` as well."""

    def __init__(self, containers: Containers, plan: ComposePlan) -> None:
        self.containers, self._plan = containers, plan
        self.name = f"forkyard-{containers.home_id}-{containers.owners.own}-{new_id()}"
        self._work = containers.home.resolve() / "run" / self.name
        self._services: dict[str, ServiceSandbox] = {}
        self._main: ServiceSandbox | None = None
        self._connecting = asyncio.Lock()
        containers.guests.add(self.down)

    @property
    def network(self) -> Network:
        """What it was brought up with."""
        return self._plan.network

    @property
    def main(self) -> ServiceSandbox:
        """The agent's service."""
        if self._main is None:
            raise SandboxError("the compose project is not up")
        return self._main

    async def service(self, name: str) -> ServiceSandbox:
        """A service by name, as the sandbox its container is; ConfigError when there is none that runs."""
        async with self._connecting:
            box = self._services.get(name)
            if box is None or box.closed:
                found = await self._container(name)
                record = self._record(name, found)
                box = await ServiceSandbox(self, str(found["Id"]), record).connect_to()
                self._services[name] = box
            return box

    def _record(self, name: str, inspected: dict[str, Any]) -> Record:
        config, plan = from_docker(inspected["Config"]), self._plan
        main = name == MAIN
        return Record(
            key=f"{self.name}.{name}",
            name=None,
            image=str(inspected["Config"]["Image"]),
            parent=None,
            created=time.time(),
            env=config.env,
            workdir=(plan.workdir if main else None) or config.workdir,
            user=plan.user if main and plan.user is not None else config.user,
            limits=plan.limits if main else Limits(),
        )

    async def down(self) -> None:
        """End every service and remove what belongs to the project; twice is fine."""
        self.containers.guests.discard(self.down)
        for box in self._services.values():
            await box.detach()
        await remove_project(self.containers, self.name)

    async def start(self) -> None:
        """Bring it up and have `main` answer."""
        await asyncio.to_thread(self._prepare)
        compose = Compose(self.containers.engine.path, self.name, self._plan, self._work)
        tools, over = await self.containers.tools(), dict[str, Any]()
        for name, joins in (await compose.services()).items():
            place = self.containers.place(f"{self.name}.{name}")
            await asyncio.to_thread(make_place, place)
            over[name] = {"volumes": mounted(mounts(tools, place)), "restart": "no"}  # which would open ways again
            if self._plan.network.mode != "public" and not joins:
                over[name]["dns"] = ["127.0.0.1"]  # Docker asks outside for the names it does not know
        over[MAIN] |= {"environment": dict(self._plan.env), **bounds(self._plan.limits)}
        compose.lay_over(over)
        await self._brought_up(compose)
        running = [entry["Id"] for entry in await self._containers_of() if entry["State"] == "running"]
        await self.close_ways(*running)
        await self._all_well()
        self._main = await self.service(MAIN)
        if self._plan.network.mode == "allowlist":
            await self._main.set_network(self._plan.network)

    async def _brought_up(self, compose: Compose) -> None:
        """Have everything started. DiskMissing when a container of it came up without its disk (see `has_its_disk`)."""
        try:
            await compose.up()
        except SandboxError as err:
            if _NO_PROGRAM.search(str(err)):  # often a mistake of the project: then it comes again, and is told
                raise DiskMissing(str(err)) from err
            raise
        for entry in await self._containers_of():
            if entry["State"] == "running" and not has_its_disk(await self.containers.inspect(entry["Id"])):
                raise DiskMissing("the Engine started a service without its disk")

    def _prepare(self) -> None:
        self._work.mkdir(parents=True)
        for name in LOGS:
            (self._work / name).mkdir()
            (self._work / name).chmod(0o777)

    async def _containers_of(self) -> list[dict[str, Any]]:
        return await labelled(self.containers.engine, "containers", f"{PROJECT_LABEL}={self.name}")

    async def _container(self, name: str) -> dict[str, Any]:
        for entry in await self._containers_of():
            if entry["Labels"].get(SERVICE_LABEL) == name and entry["State"] == "running":
                return await self.containers.inspect(entry["Id"])
        raise ConfigError(f"the compose project has no service {name!r} that runs")

    async def logs(self, name: str, limit: int = LOG_LIMIT) -> str:
        """The end of what a service has written to its streams; ConfigError when there is no such service."""
        for entry in await self._containers_of():
            if entry["Labels"].get(SERVICE_LABEL) == name:
                return await self.containers.engine.logs(entry["Id"], limit)
        raise ConfigError(f"the compose project has no service {name!r}")

    async def close_ways(self, *names: str) -> None:
        """Leave containers no network but the project's; with the network public nothing is done."""
        if self._plan.network.mode != "public":
            networks = await labelled(self.containers.engine, "networks", f"{PROJECT_LABEL}={self.name}")
            ids = {str(entry["Id"]) for entry in await self._containers_of()}
            for container in names:
                await close_ways(self.containers, container, networks, ids)

    async def _all_well(self) -> None:
        """Wait until every service that has a health check is healthy; SandboxError when one has failed."""
        while True:
            waiting = False
            for entry in await self._containers_of():
                state = (await self.containers.inspect(entry["Id"]))["State"]
                health = (state.get("Health") or {}).get("Status", "")
                service = entry["Labels"].get(SERVICE_LABEL)
                if health == "unhealthy" or (not state["Running"] and (state["ExitCode"] != 0 or service == MAIN)):
                    how = "is unhealthy" if health == "unhealthy" else f"ended with {state['ExitCode']}"
                    raise SandboxError(f"the service {service!r} {how}: {await self.logs(str(service), 2000)}")
                waiting = waiting or health == "starting"
            if not waiting:
                return
            await asyncio.sleep(_LOOK_AGAIN)


async def bring_up(containers: Containers, plan: ComposePlan) -> Project:
    """A project that is up, or nothing of it. ConfigError for what cannot be, SandboxError for what failed."""
    try:
        return await _up(containers, plan)
    except DiskMissing:
        return await _up(containers, plan)


async def _up(containers: Containers, plan: ComposePlan) -> Project:
    project = Project(containers, plan)
    try:
        async with asyncio.timeout(plan.timeout):
            await project.start()
    except BaseException as err:
        await asyncio.shield(project.down())
        if isinstance(err, TimeoutError):
            raise SandboxError(f"the compose project was not up within {plan.timeout:g} s") from err
        raise
    return project


async def remove_project(containers: Containers, name: str) -> None:
    """Remove the containers of a project, then its networks, volumes and the images built for it."""
    engine, label = containers.engine, f"{PROJECT_LABEL}={name}"
    entries = await labelled(engine, "containers", label)
    for entry in entries:
        await engine.call("DELETE", f"/containers/{entry['Id']}", missing_ok=True, query=REMOVE)
    for kind, key in (("networks", "Id"), ("volumes", "Name")):
        for entry in await labelled(engine, kind, label):
            await engine.call("DELETE", f"/{kind}/{entry[key]}", missing_ok=True, conflict_ok=True)
    for image in {entry["Image"] for entry in entries if str(entry["Image"]).startswith((f"{name}_", f"{name}-"))}:
        await engine.call("DELETE", f"/images/{image}", missing_ok=True, conflict_ok=True)
    await asyncio.to_thread(_remove_folders, containers.home.resolve() / "run", name)


async def sweep_projects(containers: Containers) -> list[str]:
    """Remove the projects of dead owners; one sentence for each."""
    found: set[str] = set()
    for kind in ("containers", "networks", "volumes"):
        for entry in await labelled(containers.engine, kind, PROJECT_LABEL):
            found.add(str(entry["Labels"][PROJECT_LABEL]))
    removed = []
    for name in sorted(found):
        parts = _NAME.fullmatch(name)
        if parts and parts[1] == containers.home_id and containers.owners.is_dead(parts[2]):
            await remove_project(containers, name)
            removed.append(f"removed the compose project {name}, whose owner is gone")
    return removed


async def labelled(engine: Engine, kind: str, label: str) -> list[dict[str, Any]]:
    """What the Engine has of a kind ("containers", "networks", "volumes") with a label."""
    path = "/containers/json" if kind == "containers" else f"/{kind}"
    found = await engine.call("GET", path, query={"all": "1", "filters": {"label": [label]}})
    return list((found.get("Volumes") or []) if kind == "volumes" else found)


def _remove_folders(run: Path, name: str) -> None:
    for path in run.glob(f"{name}*"):
        remove_place(path)


async def _beside(containers: Containers, container: str, record: Record) -> Live:
    """Start what answers for a service whose container runs already."""
    tools = await containers.tools()
    body = {"Cmd": list(tools.command), "User": "0:0", "WorkingDir": "/", "Env": [f"{name}=" for name in UNSET]}
    with Meeting(containers.place(record.key)) as meeting:
        made = await containers.engine.call("POST", f"/containers/{container}/exec", body=body)
        await containers.engine.call("POST", f"/exec/{made['Id']}/start", body={"Detach": True})
        sock = await containers.called(meeting, container)
    return await containers.live(container, record, sock)
