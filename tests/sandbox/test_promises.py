"""What a provider declares, held against what is asked of it; and what is derived from the bounds there are."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from forkyard.errors import ConfigError
from forkyard.harness.shell import describe
from forkyard.run.check import LACKING
from forkyard.sandbox import NO_NETWORK, PUBLIC, Feature, Limits, Network, ProgramResult, SandboxSpec, image_provider
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.network import Rule
from forkyard.sandbox.promises import check_spec, network_features
from forkyard.sandbox.subprocess import SubprocessProvider
from forkyard.sandbox.values import BOUNDS, EndedBy
from forkyard.task.directory import verifier

LISTED = Network("allowlist", ("example.org",))
BLOCKING = Network("public", block=("example.org",))
RULED = Network("public", rules=(Rule("example.org", (("X-Key", "secret"),)),))


@pytest.mark.parametrize(
    ("network", "needed"),
    [
        (NO_NETWORK, {Feature.NO_NETWORK}),
        (LISTED, {Feature.ALLOWLIST}),
        (PUBLIC, {Feature.PUBLIC_NETWORK}),
        (BLOCKING, {Feature.PUBLIC_NETWORK, Feature.ALLOWLIST}),
        (RULED, {Feature.PUBLIC_NETWORK, Feature.NETWORK_RULES}),
    ],
)
def test_a_network_needs_the_features_of_its_mode_and_of_what_else_it_does(
    network: Network, needed: set[Feature]
) -> None:
    assert network_features(network) == needed


def test_a_network_that_is_not_promised_is_refused_and_none_is_nothing_asked_for() -> None:
    check_spec("bare", SandboxSpec(network=NO_NETWORK), set())
    check_spec("full", SandboxSpec(network=BLOCKING), set(Feature))
    with pytest.raises(ConfigError, match=r"the provider half has no network 'public'.* promise allowlist"):
        check_spec("half", SandboxSpec(network=BLOCKING), {Feature.PUBLIC_NETWORK})
    with pytest.raises(ConfigError, match=r"provider plain has no network 'public'.* promise network_rules\)") as told:
        check_spec("plain", SandboxSpec(network=RULED), {Feature.PUBLIC_NETWORK, Feature.ALLOWLIST})
    assert "secret" not in str(told.value)


def test_everything_wrong_with_a_spec_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as told:
        check_spec("bare", SandboxSpec(network=LISTED, limits=Limits(cpus=1, output_mb=1)), set())
    assert [word for problem in told.value.problems for word in ("cpus", "output_mb", "allowlist") if word in problem]
    assert len(told.value.problems) == 3


async def test_the_subprocess_provider_does_not_pretend_to_have_a_network(tmp_path: Path) -> None:
    async with SubprocessProvider(tmp_path) as provider:
        with pytest.raises(ConfigError, match="has no network 'public'"):
            await provider.create(SandboxSpec(network=PUBLIC))


async def test_images_are_had_of_a_provider_that_keeps_them_only(tmp_path: Path, local: LocalProvider) -> None:
    assert image_provider(local) is local
    async with SubprocessProvider(tmp_path) as provider:
        with pytest.raises(ConfigError, match="the provider subprocess keeps no images"):
            image_provider(provider)


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_every_bound_is_checked_declared_and_described(name: str) -> None:
    bound = BOUNDS[name]
    assert bound.feature.startswith("limit_")
    assert bound.words
    Limits(**{name: bound.least})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"limits.{name} = 0 must be a number of at least {bound.least}"):
        Limits(**{name: 0})


def test_every_bound_a_task_asks_for_has_a_mend() -> None:
    assert {LACKING[BOUNDS[name].feature][0] for name in ("cpus", "memory_mb", "disk_mb")} == {
        "resources.cpu",
        "resources.memory",
        "resources.disk",
    }


@pytest.mark.parametrize("why", get_args(EndedBy))
def test_whatever_ends_a_command_is_said_in_words_to_models_and_on_records(why: EndedBy) -> None:
    result = ProgramResult(-9, ended_by=why)
    assert {"oom": "memory", "disk": "disk", "output": "output"}[why] in describe(result, 1.0, 1000)
    assert {"oom": "memory", "disk": "disk", "output": "output"}[why] in verifier._ending(result)
