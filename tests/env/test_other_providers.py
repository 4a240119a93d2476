"""Providers of other packages: what they can is known by their methods, not by their class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import forkyard as vf
from forkyard.env.composing import composed
from forkyard.env.loan import Loan
from forkyard.errors import SandboxError
from forkyard.grade.artifacts import restore
from forkyard.grade.services import collect_from_services
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.composing import ComposePlan
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.subprocess import SubprocessProvider
from forkyard.task import Artifact
from forkyard.task.machine import Origin


class ComposedTask(vf.Task):
    """Of several containers."""

    @property
    def origin(self) -> Origin:
        return Origin(compose=Path("/tasks/a"))


@dataclass
class Project:
    main: vf.Sandbox


class Main:
    """A sandbox of another package, with one service beside it."""

    def __init__(self, inner: vf.Sandbox, service: vf.Sandbox) -> None:
        self._inner, self._service = inner, service

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def service(self, name: str) -> vf.Sandbox:
        if name != "api":
            raise vf.ConfigError(f"there is no service {name!r}")
        return self._service


@dataclass
class Composing:
    """A provider that brings up projects in its own way: of each only `main`."""

    inner: LocalProvider
    name: str = "composing"
    plans: list[ComposePlan] = field(default_factory=list)

    @property
    def features(self) -> frozenset[vf.Feature]:
        return self.inner.features | {vf.Feature.COMPOSE}

    async def compose(self, plan: ComposePlan) -> Project:
        self.plans.append(plan)
        return Project(await self.inner.create(SandboxSpec(plan.image or "host")))


async def test_any_provider_with_the_method_brings_up_projects(local: LocalProvider) -> None:
    provider = Composing(local)
    task = ComposedTask(vf.TaskData(name="a", prompt="?"))
    box = await composed(provider, task, "host")  # type: ignore[arg-type]
    assert (await box.run("echo up")).stdout == "up\n"
    await box.close()
    assert [(plan.directory, plan.image) for plan in provider.plans] == [(Path("/tasks/a"), "host")]
    with pytest.raises(SandboxError, match="the provider local brings up no compose project"):
        await composed(local, task, "host")


class EvidentTask(vf.Task):
    """Wants a file of each of two services."""

    @property
    def services(self) -> Mapping[str, Sequence[Artifact]]:
        return {"api": [Artifact(source="/said")], "lost": [Artifact(source="/other")]}


async def test_any_sandbox_with_services_beside_it_has_evidence_collected_of_them(local: LocalProvider) -> None:
    main, service = [await local.create(SandboxSpec("host")) for _ in range(2)]
    await service.run("echo evidence > /said")
    trace = vf.Trace()
    task = EvidentTask(vf.TaskData(name="a", prompt="?"))
    collected = await collect_from_services(task, trace, Main(main, service), stop=True)  # type: ignore[arg-type]
    assert main.info.state == "stopped"
    assert [path for path, archive in collected.items() if archive is not None] == ["/said"]
    (failed,) = trace.verifier["failed_hooks"]
    assert failed == {"service": "lost", "error": "there is no service 'lost'"}
    for box in (main, service):
        await box.close()


class Wrapped:
    """A sandbox of another package around a directory of this machine."""

    def __init__(self, inner: vf.Sandbox, directory: Path) -> None:
        self._inner, self.directory = inner, directory

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


async def test_any_sandbox_that_is_a_plain_directory_is_known_as_one(tmp_path: Path) -> None:
    async with SubprocessProvider(tmp_path) as provider:
        plain = await provider.create(SandboxSpec("host"))
        assert (plain.directory / "file").parent.is_dir()
        for box in (plain, Wrapped(plain, plain.directory)):
            with pytest.raises(TypeError, match="names an image, and it was given a plain directory"):
                Loan(box, None, None).check(vf.Task(vf.TaskData(name="a", image="debian")))  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="cannot be restored into a plain directory"):
                await restore(box, {})  # type: ignore[arg-type]
        await plain.close()
