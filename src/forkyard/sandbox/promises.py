"""What a provider promises, held against what is asked of it: bounds and networks it does not declare are refused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import cast

from forkyard.errors import ConfigError
from forkyard.sandbox.network.policy import Network
from forkyard.sandbox.protocol import ImageProvider, Provider
from forkyard.sandbox.values import BOUNDS, Feature, Limits, Mount, SandboxSpec

_MODES = {"none": Feature.NO_NETWORK, "allowlist": Feature.ALLOWLIST, "public": Feature.PUBLIC_NETWORK}


def network_features(network: Network) -> set[Feature]:
    """The features without which a network is not kept."""
    found = {_MODES[network.mode]}
    if network.block or network.drain:
        found.add(Feature.ALLOWLIST)
    if network.rules:
        found.add(Feature.NETWORK_RULES)
    return found


def unkept(limits: Limits, features: Set[Feature]) -> list[str]:
    """The names of the bounds in `limits` that a provider with these features would not keep."""
    return [
        name for name, bound in BOUNDS.items() if getattr(limits, name) is not None and bound.feature not in features
    ]


def kept(limits: Limits, features: Set[Feature]) -> Limits:
    """The bounds in `limits` that such a provider keeps."""
    return replace(limits, **dict.fromkeys(unkept(limits, features)))


def check_spec(provider: str, spec: SandboxSpec, features: Set[Feature]) -> None:
    """Raise ConfigError for what `provider`, with these features, would not keep: bounds, network, mounts, survival.

    The network "none" is what a spec has that asks for nothing, and passes: who depends on it asks for `no_network`.
    """
    problems = [
        f"the provider {provider} cannot bound {name} on this machine (it does not promise {BOUNDS[name].feature}): "
        "leave it None; `forkyard doctor` says what is missing"
        for name in unkept(spec.limits, features)
    ]
    if spec.network.mode != "none" and (missing := network_features(spec.network) - features):
        problems.append(
            f"the provider {provider} has no network {spec.network.mode!r} as asked for (it does not promise "
            f"{', '.join(sorted(missing))}): leave it 'none', or choose another provider, such as `local`"
        )
    if spec.survives and Feature.SURVIVES not in features:
        problems.append(
            f"no sandbox of the provider {provider} outlives its process (it does not promise {Feature.SURVIVES}): "
            "leave `survives` False, or choose another provider, such as `local`"
        )
    if spec.mounts:
        problems += _mount_problems(provider, spec.mounts, features)
    if problems:
        raise ConfigError(*problems)


def _mount_problems(provider: str, mounts: Sequence[Mount], features: Set[Feature]) -> list[str]:
    if Feature.MOUNTS not in features:
        return [
            f"the provider {provider} mounts no directories of the host (it does not promise {Feature.MOUNTS}): "
            "give it none, or choose another provider, such as `local`"
        ]
    targets = sorted(f"{mount.target}/" for mount in mounts)
    return [
        f"two mounts are in each other's way: {one[:-1]} and {other[:-1]}"
        for one, other in itertools.pairwise(targets)
        if other.startswith(one)
    ]


def image_provider(provider: Provider) -> ImageProvider:
    """The same provider, which keeps images. Raises ConfigError for one that does not promise to."""
    if Feature.IMAGES not in provider.features:
        raise ConfigError(f"the provider {provider.name} keeps no images: choose one that does, such as `local`")
    return cast(ImageProvider, provider)
