"""The docker provider: sandboxes that are containers of a Docker Engine on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox.common import default_home
from forkyard.sandbox.composing import ComposePlan
from forkyard.sandbox.docker.compose import HOW, find_program
from forkyard.sandbox.docker.containers import Containers
from forkyard.sandbox.docker.engine import Engine, ask, socket_path
from forkyard.sandbox.docker.images import HOME_LABEL, SCRATCH, described, name_of, reference, to_docker
from forkyard.sandbox.docker.project import Project, bring_up
from forkyard.sandbox.docker.record import Record, record_of, state_of
from forkyard.sandbox.docker.sandbox import DockerSandbox, launched
from forkyard.sandbox.docker.sweep import has_ended, owner_is_dead, sweep
from forkyard.sandbox.findings import Finding
from forkyard.sandbox.local.cgroups import ROOT
from forkyard.sandbox.local.mounts import check_sources
from forkyard.sandbox.promises import check_spec
from forkyard.sandbox.protocol import Sandbox
from forkyard.sandbox.values import NETWORKED, Feature, ImageConfig, ImageInfo, SandboxInfo, SandboxSpec
from forkyard.values import new_id

_ALWAYS = frozenset(
    {
        Feature.ISOLATED,
        Feature.NO_NETWORK,
        *NETWORKED,
        Feature.IMAGES,
        Feature.FORK,
        Feature.FORK_RUNNING,
        Feature.PAUSE,
        Feature.SURVIVES,
        Feature.MOUNTS,
        Feature.USERS,
        Feature.PROCESSES,
        Feature.TERMINALS,
        Feature.LIMIT_FILES,
        Feature.LIMIT_OUTPUT,
    }
)


class DockerProvider:
    """Containers of the Engine at `host` (unix://PATH; else DOCKER_HOST, else the usual socket).

    `home` holds what this process and its containers share, `docker` in FORKYARD_HOME unless given. ConfigError when no
    Engine answers.
    """

    name = "docker"

    def __init__(self, home: Path | None = None, host: str | None = None) -> None:
        path = socket_path(host)
        self._facts = ask(path, "/info")
        self._features = _ALWAYS | set(_found_in(self._facts))
        self._containers = Containers(Engine(path), home or default_home() / "docker")
        self._boxes: dict[str, DockerSandbox] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def features(self) -> frozenset[Feature]:
        """What holds for every sandbox of this Engine."""
        return self._features

    async def findings(self) -> list[Finding]:
        """What `forkyard doctor` says of this machine."""
        facts = self._facts
        engine = f"{facts.get('ServerVersion')} at unix://{self._containers.engine.path}, {facts.get('Driver')}"
        found = [Finding("Docker Engine", True, engine, needed=True)]
        for feature in (Feature.LIMIT_CPU, Feature.LIMIT_MEMORY, Feature.LIMIT_PIDS):
            if feature not in self._features:
                found.append(Finding(feature, False, "the Engine has no control group for it", "see `docker info`"))
        program = find_program()
        found.append(Finding("compose", program is not None, program or "no docker-compose", "" if program else HOW))
        return found

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A running container (see the protocol)."""
        check_spec(self.name, spec, self.features)
        check_sources(spec.mounts)
        image, config = await self._source(spec.image)
        record = Record(
            key=new_id(),
            name=spec.name,
            image=spec.image,
            parent=None,
            created=time.time(),
            env={**config.env, **spec.env},
            workdir=spec.workdir or config.workdir or "/",
            user=config.user if spec.user is None else spec.user,
            limits=spec.limits,
            mounts=spec.mounts,
            survives=spec.survives,
        )
        box = await launched(self._containers, record, image)
        return await box.on_network(spec.network)

    async def open(self, id_or_name: str) -> Sandbox:
        """A stopped sandbox kept earlier (see the protocol)."""
        for container, record in await self._all():
            if id_or_name in (container["Id"], record.name):
                return self._opened(container, record, await self._is_stopped(container, record))
        raise ConfigError(
            f"there is no sandbox {id_or_name!r} in Docker; `docker ps --all --filter label={HOME_LABEL}` lists them"
        )

    async def _is_stopped(self, container: dict[str, Any], record: Record) -> bool:
        """Whether a container does not run; one that outlives its owner may be about to end with it."""
        if state_of(container) == "stopped":
            return True
        orphaned = record.survives and owner_is_dead(self._containers, container)
        return orphaned and await has_ended(self._containers, container["Id"])

    def _opened(self, container: dict[str, Any], record: Record, stopped: bool) -> DockerSandbox:
        box = self._boxes.get(container["Id"])
        if not stopped:
            raise ConfigError(
                f"sandbox {record.name or container['Id'][:12]!r} is running; only a stopped one is opened"
            )
        if box is None or box.closed:
            box = DockerSandbox(self._containers, container["Id"], record, container["ImageID"], None)
        self._boxes = {key: kept for key, kept in self._boxes.items() if not kept.closed}
        self._boxes[box.id] = box
        return box

    async def sandboxes(self) -> list[SandboxInfo]:
        """Every sandbox of this home, those of other processes too."""
        return [record.info(container["Id"], state_of(container)) for container, record in await self._all()]

    async def _all(self) -> list[tuple[dict[str, Any], Record]]:
        filters = {"label": [f"{HOME_LABEL}={self._containers.home_id}"]}
        found = await self._containers.engine.call("GET", "/containers/json", query={"all": "1", "filters": filters})
        pairs = [(container, record) for container in found if (record := record_of(container))]
        return sorted(pairs, key=lambda pair: pair[1].created)

    async def sweep(self) -> list[str]:
        """Remove what dead owners left behind (see the protocol)."""
        return await sweep(self._containers, await self._all())

    async def compose(self, plan: ComposePlan) -> Project:
        """A compose project that is up, with its service `main` as a sandbox; needs the feature `compose`.

        Raises ConfigError for a file or a network that cannot be, SandboxError for what failed; nothing is left then.
        """
        return await bring_up(self._containers, plan)

    async def close(self) -> None:
        """End every sandbox this process runs; stopped named ones stay."""
        await self._containers.close()

    async def images(self) -> list[ImageInfo]:
        """Every image of the Engine that has a name."""
        names = {name for entry in await self._tagged() for name in names_of(entry)} - {SCRATCH}
        found = [await self.image(name) for name in sorted(names)]
        return [image for image in found if image is not None]

    async def _tagged(self) -> list[dict[str, Any]]:
        return list(await self._containers.engine.call("GET", "/images/json"))

    async def image(self, name: str) -> ImageInfo | None:
        """One image; "scratch" always exists."""
        if name == SCRATCH:
            return ImageInfo(name, ImageConfig(), 0.0)
        found = await self._inspected(name)
        return None if found is None else described(name, found)

    async def _inspected(self, name: str) -> dict[str, Any] | None:
        found = await self._containers.engine.call("GET", f"/images/{reference(name)}/json", missing_ok=True)
        return None if found is None else dict(found)

    async def _source(self, name: str) -> tuple[str, ImageConfig]:
        found = await self._inspected(name)
        if found is None and name == SCRATCH:
            repository, _, tag = reference(name).rpartition(":")
            query = {"fromSrc": "-", "repo": repository, "tag": tag}
            await self._containers.engine.call("POST", "/images/create", data=bytes(1024), query=query)
            found = await self._inspected(name)
        if found is None:
            raise ConfigError(
                f"the Docker Engine has no image {name!r}: get it with `docker pull {name}`, or build it with "
                f"`docker build -t {name} DIRECTORY`"
            )
        return str(found["Id"]), ImageConfig() if name == SCRATCH else described(name, found).config

    async def commit(self, sandbox: Sandbox, name: str, config: ImageConfig) -> ImageInfo:
        """The disk of a stopped sandbox as an image; an image of that name is replaced."""
        if name == SCRATCH:
            raise ConfigError(f"{SCRATCH!r} is always the empty image; choose another name")
        if not isinstance(sandbox, DockerSandbox):
            raise SandboxError(f"sandbox {sandbox.id[:12]} is none of Docker's: it cannot become the image {name!r}")
        before = await self._inspected(name)
        await sandbox.commit_as(reference(name), to_docker(name, config, {HOME_LABEL: self._containers.home_id}))
        if before is not None:
            await self._containers.drop_image(str(before["Id"]))
        made = await self._inspected(name)
        if made is None:
            raise SandboxError(f"the image {name!r} was removed while it was made")
        return described(name, made)

    async def remove_image(self, name: str) -> None:
        """Forget an image; sandboxes made from it keep what they share."""
        if name == SCRATCH or await self._inspected(name) is None:
            raise ConfigError(f"there is no image {name!r} to remove from the Docker Engine")
        await self._containers.engine.call(
            "DELETE", f"/images/{reference(name)}", missing_ok=True, query={"force": "1"}
        )

    async def prune_images(self, prefix: str) -> list[str]:
        """Forget the images of a prefix that nothing else stands on."""
        engine = self._containers.engine
        every = await engine.call("GET", "/images/json", query={"all": "1"})
        parents = {entry["Id"]: entry.get("ParentId") for entry in every}
        doomed = {name: entry["Id"] for entry in every for name in names_of(entry) if name.startswith(prefix)}
        standing = [
            container["ImageID"] for container in await engine.call("GET", "/containers/json", query={"all": "1"})
        ]
        standing += [entry["Id"] for entry in every if any(not name.startswith(prefix) for name in names_of(entry))]
        needed = _with_ancestors(standing, parents)
        names = [name for name, image in doomed.items() if image not in needed]
        for name in names:
            await engine.call("DELETE", f"/images/{reference(name)}", missing_ok=True, query={"force": "1"})
        return names


def names_of(entry: dict[str, Any]) -> list[str]:
    """The names of an image in a list of the Engine's."""
    tags = [tag for tag in entry.get("RepoTags") or () if tag != "<none>:<none>"]
    return [SCRATCH if tag == reference(SCRATCH) else name_of(tag, entry.get("Labels")) for tag in tags]


def _with_ancestors(images: Iterable[str], parents: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    for image in images:
        while image and image not in found:
            found.add(image)
            image = parents.get(image) or ""
    return found


def _found_in(facts: dict[str, Any]) -> Iterable[Feature]:
    """What this Engine keeps of what others may not, and what is beside it."""
    if facts.get("CpuCfsQuota"):
        yield Feature.LIMIT_CPU
    if facts.get("MemoryLimit") and facts.get("SwapLimit") and ROOT.is_dir():
        yield Feature.LIMIT_MEMORY
    if facts.get("PidsLimit"):
        yield Feature.LIMIT_PIDS
    if find_program() is not None:
        yield Feature.COMPOSE
