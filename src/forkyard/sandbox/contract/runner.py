"""Find the checks and run them over a provider."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import time
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import dataclass
from enum import StrEnum

from forkyard.sandbox.contract.promise import (
    PATIENCE,
    Broken,
    CheckFunction,
    image_in_use,
    needs_of,
    patience_in_use,
)
from forkyard.sandbox.protocol import Provider
from forkyard.sandbox.values import Feature, SandboxSpec

CHECK_SECONDS = 120.0  # what one check may take
GIVE_UP_SECONDS = 15.0  # what it may take, once cancelled, to close its sandboxes
PREFIX = "check_"


class Outcome(StrEnum):
    """What became of a promise."""

    KEPT = "kept"
    BROKEN = "broken"
    NOT_DECLARED = "not_declared"


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the protocol: its name, its sentence, the features it belongs to, and the proof."""

    name: str
    promise: str
    topic: str
    needs: frozenset[Feature]
    function: CheckFunction


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How one check went; `message` says why when it was not kept."""

    name: str
    outcome: Outcome
    message: str = ""
    seconds: float = 0.0


def checks() -> tuple[Check, ...]:
    """Every check of the contract, in the order of its modules and lines; found by name, never listed."""
    return tuple(_discover())


def _discover() -> Iterator[Check]:
    package = __name__.rpartition(".")[0]
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{info.name}")
        for name, function in vars(module).items():
            if name.startswith(PREFIX) and getattr(function, "__module__", None) == module.__name__:
                promise = (function.__doc__ or name).strip().splitlines()[0]
                yield Check(name.removeprefix(PREFIX), promise, info.name, needs_of(function), function)


async def run_check(
    check: Check, provider: Provider, image: str = SandboxSpec().image, *, patience: float = PATIENCE
) -> CheckResult:
    """Try one promise. Never raises for what the provider does: that is the result.

    `patience` is how many seconds it waits for what should be there at once, before it calls the promise broken.
    """
    missing = sorted(check.needs - provider.features)
    if missing:
        return CheckResult(check.name, Outcome.NOT_DECLARED, f"{provider.name} does not promise {', '.join(missing)}")
    start = time.monotonic()
    message = await _broken_by(check, provider, image, patience)
    outcome = Outcome.KEPT if message is None else Outcome.BROKEN
    return CheckResult(check.name, outcome, message or "", time.monotonic() - start)


async def run_contract(provider: Provider, image: str = SandboxSpec().image) -> list[CheckResult]:
    """Try every promise of the contract, one after another, on sandboxes of `image` (a Debian or alike)."""
    return [await run_check(check, provider, image) for check in checks()]


async def _broken_by(check: Check, provider: Provider, image: str, patience: float) -> str | None:
    context = copy_context()
    context.run(image_in_use.set, image)
    context.run(patience_in_use.set, patience)
    task = context.run(asyncio.ensure_future, check.function(provider))
    try:
        await asyncio.wait([task], timeout=CHECK_SECONDS)
    finally:
        late = not task.done()
        if late:
            task.cancel()
            await asyncio.wait([task], timeout=GIVE_UP_SECONDS)
    if late or task.cancelled():
        return f"expected an end within {CHECK_SECONDS:g} s, it was still going on"
    error = task.exception()
    return None if error is None else _reason(error)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Broken):
        return str(error)
    if not isinstance(error, Exception):
        raise error
    return f"expected no error, got {type(error).__name__}: {error}"
