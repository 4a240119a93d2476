"""What clients send and get of a sandbox's network; the names are the wire's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from forkyard.sandbox import NO_NETWORK, Network
from forkyard.sandbox.network import Rule
from forkyard.secrets import MARK
from forkyard.server.bodies import Sent
from forkyard.server.envelope import ApiError

Target = Annotated[str, StringConstraints(min_length=1, max_length=300)]
Targets = Annotated[list[Target], Field(max_length=1000)]


class Transform(Sent):
    """What is changed in requests: headers that take the place of those the sandbox sends."""

    headers: dict[str, str] = Field({}, max_length=64, repr=False, description=f"Told as {MARK!r}.")


class EgressRule(Sent):
    """A target that may be reached, and what is done with requests to it."""

    target: Target
    transform: Transform | None = None
    forward_url: Annotated[str, StringConstraints(max_length=2000)] | None = None


class Egress(Sent):
    """Which hosts are reached: `deny` wins over `allow`, and that over the default."""

    default: Literal["allow", "deny"]
    allow: Annotated[list[Target | EgressRule], Field(max_length=1000)] = []
    deny: Targets = []
    drain_on_pause: Targets = []


class NetworkPolicy(Sent):
    """A sandbox's network; without a policy nothing is reached."""

    egress: Egress | None = None


_ValueOf = Callable[[EgressRule, str, str], str]

NOTHING = NetworkPolicy(egress=Egress(default="deny"))


def network_of(policy: NetworkPolicy) -> Network:
    """The network of a policy. Raises ConfigError for hosts, headers and addresses that are none."""
    egress = policy.egress
    if egress is None or (egress.default == "deny" and not egress.allow):
        return NO_NETWORK
    return Network(
        "public" if egress.default == "allow" else "allowlist",
        tuple(each if isinstance(each, str) else each.target for each in egress.allow),
        tuple(egress.deny),
        tuple(
            Rule(rule.target, tuple(_headers(rule).items()), rule.forward_url)
            for rule in egress.allow
            if isinstance(rule, EgressRule) and (_headers(rule) or rule.forward_url is not None)
        ),
        tuple(egress.drain_on_pause),
    )


def masked(policy: NetworkPolicy) -> NetworkPolicy:
    """The policy as clients are told it: without the values of headers."""
    return _with_values(policy, lambda rule, name, value: MARK)


def unmasked(policy: NetworkPolicy, known: NetworkPolicy) -> NetworkPolicy:
    """A policy that may hold masked values, with those of `known` in their place. Raises ApiError for unknown ones."""
    values = {
        (rule.target, name.lower()): value
        for rule in (known.egress.allow if known.egress is not None else ())
        if isinstance(rule, EgressRule)
        for name, value in _headers(rule).items()
    }

    def value_of(rule: EgressRule, name: str, value: str) -> str:
        if value != MARK:
            return value
        try:
            return values[rule.target, name.lower()]
        except KeyError:
            raise ApiError(
                400, f"the header {name!r:.100} for {rule.target!r} had no value that could stay: send one"
            ) from None

    return _with_values(policy, value_of)


def _with_values(policy: NetworkPolicy, value_of: _ValueOf) -> NetworkPolicy:
    if policy.egress is None:
        return policy
    allow = [
        each
        if isinstance(each, str) or each.transform is None
        else each.model_copy(
            update={
                "transform": Transform(
                    headers={name: value_of(each, name, value) for name, value in _headers(each).items()}
                )
            }
        )
        for each in policy.egress.allow
    ]
    return NetworkPolicy(egress=policy.egress.model_copy(update={"allow": allow}))


def _headers(rule: EgressRule) -> dict[str, str]:
    return rule.transform.headers if rule.transform is not None else {}
