"""`forkyard doctor`: what each provider can do on this machine, and how to get what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from forkyard.cli.options import option
from forkyard.cli.output import say
from forkyard.errors import ConfigError, ForkyardError
from forkyard.sandbox import Feature, default_home
from forkyard.sandbox.findings import Examined, Finding, Unusable
from forkyard.sandbox.registry import DEFAULT_PROVIDER, make_provider, provider_factory, provider_names
from forkyard.values import strict_json

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
    names: Annotated[list[str] | None, typer.Argument(metavar="PROVIDER", help="Those to tell everything of.")] = None,
    as_json: Annotated[bool, option("--json", help="One JSON object on standard output.")] = False,
) -> int:
    """Say what providers can do on this machine, and how to get what is missing.

    Without a PROVIDER everything is told of the default one, and of each other whether it works. A sandbox is started
    to find out. Exit code 1 when one that is told everything of does not work.
    """
    wanted = tuple(dict.fromkeys(names or [DEFAULT_PROVIDER]))
    others = () if names else tuple(name for name in provider_names() if name not in wanted)
    for name in wanted:
        if name not in provider_names():
            provider_factory(name)  # ConfigError: nobody offers it
    found = asyncio.run(_diagnoses((*wanted, *others)))
    asked, beside = found[: len(wanted)], found[len(wanted) :]
    usable = all(one.works for one in asked)
    if as_json:
        typer.echo(strict_json({"ok": usable, "providers": {one.name: _as_record(one) for one in found}}))
    else:
        told = ["\n".join(_lines(one)) for one in asked]
        if beside:
            told.append("\n".join([*map(_line, beside), "`forkyard doctor PROVIDER` tells more of one"]))
        say("\n\n".join(told))
    return 0 if usable else UNUSABLE


async def _diagnoses(names: Sequence[str]) -> list[Diagnosis]:
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
    if Feature.LIMIT_DISK in features:
        findings = [*findings, _served_storage()]
    return Diagnosis(name, features, tuple(findings))


def _served_storage() -> Finding:
    from forkyard.server.storage import default_storage_mib

    bound = default_storage_mib(default_home())
    told = f"a sandbox of `forkyard serve` may write {bound} MiB to its disk, if nobody says otherwise (--storage-mib)"
    return Finding("disk space", True, told)


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


def _line(one: Diagnosis) -> str:
    missing = next((finding.detail for finding in one.findings if finding.needed and not finding.ok), "")
    return f"{one.name}: {'works' if one.works else f'does not work here: {missing}'}"


def _lines(one: Diagnosis) -> Iterator[str]:
    yield f"{one.name}: {'works' if one.works else 'DOES NOT WORK'}"
    if one.features:
        yield f"  promises  {_listed(one.features)}"
    if one.features and (lacking := frozenset(Feature) - one.features):
        yield f"  lacks     {_listed(lacking)}"
    for finding in one.findings:
        mark = "ok" if finding.ok else "MISSING" if finding.needed else "missing"
        yield f"  {mark:<8}  {finding.name}: {finding.detail}"
        if finding.mend:
            yield f"            -> {finding.mend}"


def _listed(features: frozenset[Feature]) -> str:
    return ", ".join(feature for feature in Feature if feature in features)
