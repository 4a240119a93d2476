"""The contract finds bugs of mounts: each class below plants one in the local provider."""

import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.sandbox import Mount, Sandbox, SandboxSpec
from forkyard.sandbox.contract import Outcome, checks, run_check
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.sandbox import LocalSandbox

CHECKS = {check.name: check for check in checks()}


class Planted(LocalProvider):
    """A provider with a bug; `caught_by` names the checks that have to find it."""

    caught_by: tuple[str, ...] = ()


class MountsNothing(Planted):
    caught_by = ("a_mounted_directory_is_the_hosts",)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        box = await super().create(replace(spec, mounts=()))
        for mount in spec.mounts:
            await box.run(["mkdir", "-p", mount.target])
        return box


class CopiesInsteadOfMounting(Planted):
    caught_by = ("a_mounted_directory_is_the_hosts", "mounted_files_are_not_on_the_sandboxes_disk")

    async def create(self, spec: SandboxSpec) -> Sandbox:
        box = await super().create(replace(spec, mounts=()))
        for mount in spec.mounts:
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                archive.add(mount.source, ".")
            await box.push(buffer.getvalue(), mount.target)
        return box


class LetsReadOnlyBeWritten(Planted):
    caught_by = ("a_read_only_mount_cannot_be_written",)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await super().create(replace(spec, mounts=tuple(replace(one, read_only=False) for one in spec.mounts)))


class ForksLoseMounts(Planted):
    caught_by = ("mounts_stay_with_a_sandbox_and_its_forks",)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        box = await super().create(spec)
        assert isinstance(box, LocalSandbox)
        stop = box._stop

        async def forgetful() -> None:
            await stop()
            box.box = replace(box.box, mounts=())

        box._stop = forgetful  # type: ignore[method-assign]
        return box


class StartLosesMounts(Planted):
    caught_by = ("mounts_stay_with_a_sandbox_and_its_forks", "a_link_cannot_lead_a_mount_to_the_host")

    async def create(self, spec: SandboxSpec) -> Sandbox:
        box = await super().create(spec)
        self.store.db.execute("DELETE FROM mounts")
        return box


class FollowsLinksOfTargets(Planted):
    caught_by = ("a_link_cannot_lead_a_mount_to_the_host",)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        box = await super().create(spec)
        assert isinstance(box, LocalSandbox)
        start = box._start

        async def careless() -> None:
            await start()
            led = (await box.run(["readlink", "/data"])).stdout.strip()
            if led:
                (Path(led) / "here").write_text("made where the link leads on the host")

        box._start = careless  # type: ignore[method-assign]
        return box


class FollowsLinksOfSources(Planted):
    caught_by = ("mounts_that_cannot_be_are_refused",)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await super().create(
            replace(spec, mounts=tuple(replace(one, source=one.source.resolve()) for one in spec.mounts))
        )


class MakesMissingSources(Planted):
    caught_by = ("mounts_that_cannot_be_are_refused",)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        for mount in spec.mounts:
            with suppress(FileExistsError):
                mount.source.mkdir()
        return await super().create(spec)


class MountsOverMounts(Planted):
    caught_by = ("mounts_that_cannot_be_are_refused",)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        try:
            return await super().create(spec)
        except ConfigError:
            if len(spec.mounts) < 2:
                raise
            return await super().create(replace(spec, mounts=spec.mounts[:1]))


MUTANTS = [
    pytest.param(planted, check, id=f"{planted.__name__}-{check}")
    for planted in Planted.__subclasses__()
    for check in planted.caught_by
]


@pytest.fixture
async def sound(home: Path) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(home) as provider:
        yield provider


@pytest.mark.parametrize(("planted", "check"), MUTANTS)
async def test_a_planted_bug_of_mounts_is_found_by_its_check(planted: type[Planted], check: str, home: Path) -> None:
    async with planted(home) as provider:
        result = await run_check(CHECKS[check], provider, patience=2.0)
        assert await provider.sandboxes() == []
    assert result.outcome is Outcome.BROKEN
    assert result.message


@pytest.mark.parametrize(
    "check", [check for check in checks() if check.topic == "mounts"], ids=lambda check: check.name
)
async def test_the_local_provider_keeps_its_promises_of_mounts(check: object, sound: LocalProvider) -> None:
    result = await run_check(check, sound)  # type: ignore[arg-type]
    assert result.outcome is Outcome.KEPT, result.message


def test_a_mount_is_a_value_that_says_what_is_wrong_with_it() -> None:
    with pytest.raises(ConfigError) as caught:
        Mount(Path("relative"), "also/relative")
    assert "relative, must be the absolute path" in str(caught.value)
    assert "'also/relative'" in str(caught.value)
