"""`forkyard doctor`: what each provider can do on this machine, and how to get what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from forkyard.cli.options import option
from forkyard.cli.output import say
from forkyard.errors import ConfigError, ForkyardError
from forkyard.sandbox import Feature
from forkyard.sandbox.findings import Examined, Finding, Unusable
from forkyard.sandbox.registry import make_provider, provider_names
from forkyard.values import strict_json

DEFAULT = "local"
UNUSABLE = 1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is known of one provider here."""

    name: str
    features: frozenset[Feature]
    findings: tuple[Finding, ...]

    @property
    def works(self) -> bool:
        """Whether everything it needs is there."""
        return all(finding.ok for finding in self.findings if finding.needed)


def doctor(
    as_json: Annotated[bool, option("--json", help="One JSON object on standard output.")] = False,
) -> int:
    """Say what each provider can do on this machine, and how to get what is missing.

    A sandbox is started to find out. Exit code 1 when the default provider does not work.
    """
    found = asyncio.run(_diagnoses())
    usable = next((one.works for one in found if one.name == DEFAULT), False)
    if as_json:
        typer.echo(strict_json({"ok": usable, "providers": {one.name: _as_record(one) for one in found}}))
    else:
        say("\n\n".join("\n".join(_lines(one)) for one in found))
    return 0 if usable else UNUSABLE


async def _diagnoses() -> list[Diagnosis]:
    names = sorted(provider_names(), key=lambda name: name != DEFAULT)
    return [await _diagnosis(name) for name in names]


async def _diagnosis(name: str) -> Diagnosis:
    try:
        provider = make_provider(name)
    except ConfigError as err:
        return _unusable(name, err)
    try:
        features = provider.features
        findings = await provider.findings() if isinstance(provider, Examined) else []
    except ConfigError as err:
        return _unusable(name, err)
    finally:
        await _closed(provider)
    return Diagnosis(name, features, tuple(findings))


def _unusable(name: str, err: ConfigError) -> Diagnosis:
    what, mend = (err.what, err.mend) if isinstance(err, Unusable) else (str(err), "")
    return Diagnosis(name, frozenset(), (Finding("provider", False, what, mend, needed=True),))


async def _closed(provider: Any) -> None:
    try:
        await provider.close()
    except ForkyardError:  # it never worked: its findings say why
        return


def _as_record(one: Diagnosis) -> dict[str, Any]:
    return {
        "works": one.works,
        "features": {str(feature): feature in one.features for feature in Feature},
        "findings": [asdict(finding) for finding in one.findings],
    }


def _lines(one: Diagnosis) -> Iterator[str]:
    yield f"{one.name}: {'works' if one.works else 'DOES NOT WORK'}"
    if one.features:
        yield f"  promises  {_listed(one.features)}"
    if lacking := frozenset(Feature) - one.features:
        yield f"  lacks     {_listed(lacking)}"
    for finding in one.findings:
        mark = "ok" if finding.ok else "MISSING" if finding.needed else "missing"
        yield f"  {mark:<8}  {finding.name}: {finding.detail}"
        if finding.mend:
            yield f"            -> {finding.mend}"


def _listed(features: frozenset[Feature]) -> str:
    return ", ".join(feature for feature in Feature if feature in features)
