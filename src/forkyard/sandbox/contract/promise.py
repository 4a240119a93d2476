"""The words checks are written in: what a check needs, what it expects, and the small scripts many of them share."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import Feature, SandboxSpec

CheckFunction = Callable[[Any], Awaitable[None]]  # over a Provider, or an ImageProvider where it needs one
PATIENCE = 20.0  # seconds given to what should need none

image_in_use: ContextVar[str] = ContextVar("image_in_use", default=SandboxSpec().image)
patience_in_use: ContextVar[float] = ContextVar("patience_in_use", default=PATIENCE)
_needs: dict[CheckFunction, frozenset[Feature]] = {}


class Broken(Exception):
    """A promise was not kept; the message says what was expected and what came."""


def needs(*features: Feature) -> Callable[[CheckFunction], CheckFunction]:
    """Mark a check that only a provider declaring all of `features` has to pass."""

    def mark(function: CheckFunction) -> CheckFunction:
        _needs[function] = frozenset(features)
        return function

    return mark


def needs_of(function: CheckFunction) -> frozenset[Feature]:
    """The features a check needs."""
    return _needs.get(function, frozenset())


def expect(condition: object, message: str) -> None:
    """Raise Broken(message) unless the condition holds."""
    if not condition:
        raise Broken(message)


def expect_equal(got: object, wanted: object, what: str) -> None:
    """Raise Broken unless both are equal, showing a bounded piece of each."""
    expect(got == wanted, f"{what}: expected {short(wanted)}, got {short(got)}")


def short(value: object) -> str:
    """`repr` of a value, its middle left out when it is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]} ... {text[-80:]} ({len(text)} characters)"


@dataclass(slots=True)
class Caught:
    """What `expect_raises` caught."""

    error: BaseException | None = None

    def expect_named(self, *words: str) -> None:
        """Raise Broken unless the error's message holds one of `words`."""
        text = str(self.error)
        expect(any(word in text for word in words), f"the error should name {' or '.join(words)}, it says: {text!r}")


@contextmanager
def expect_raises(what: str, *errors: type[Exception]) -> Iterator[Caught]:
    """Raise Broken unless the body raises one of `errors`."""
    names = " or ".join(error.__name__ for error in errors)
    caught = Caught()
    try:
        yield caught
    except errors as err:
        caught.error = err
        return
    except (Broken, TimeoutError):
        raise
    except Exception as err:
        raise Broken(f"{what}: expected {names}, got {type(err).__name__}: {err}") from err
    raise Broken(f"{what}: expected {names}, nothing was raised")


def spec(**fields: Any) -> SandboxSpec:
    """A SandboxSpec of the image under test."""
    return replace(SandboxSpec(image=image_in_use.get()), **fields)


@asynccontextmanager
async def fresh(provider: Provider, wanted: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
    """A new sandbox, closed at the end."""
    async with closing(await provider.create(wanted or spec())) as box:
        yield box


@asynccontextmanager
async def closing(box: Sandbox) -> AsyncIterator[Sandbox]:
    """Close a sandbox at the end."""
    try:
        yield box
    finally:
        await box.close()


async def sh(box: Sandbox, script: str, **options: Any) -> str:
    """The standard output of a shell script that must succeed."""
    options.setdefault("timeout", patience_in_use.get())
    result = await box.run(script, **options)
    expect(result.ok, f"{script!r} should succeed; it ended with {result.exit_code}, timed_out={result.timed_out}, "
           f"stderr {short(result.stderr)}")  # fmt: skip
    return result.stdout


async def eventually(holds: Callable[[], Awaitable[bool]], message: str) -> None:
    """Raise Broken unless `holds` becomes true in time; for what a kernel finishes just after a call returns."""
    end = time.monotonic() + patience_in_use.get()
    while not await holds():
        expect(time.monotonic() < end, message)
        await asyncio.sleep(0.05)


class Stopwatch:
    """Measures from its making on."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def expect_under(self, seconds: float, what: str) -> None:
        """Raise Broken when more than `seconds` have passed."""
        took = time.monotonic() - self._start
        expect(took < seconds, f"{what} should take less than {seconds:g} s, it took {took:.1f} s")


_marks = iter(range(1_000, 1_000_000))


def new_mark() -> str:
    """A duration for `sleep` that no other process uses, by which a check finds its own processes."""
    return f"{900_000 + os.getpid() % 90_000}.{next(_marks)}{time.time_ns() % 1000:03}"


async def alive(box: Sandbox, mark: str) -> bool:
    """Whether a process with `mark` as an argument lives, as seen from inside the sandbox."""
    pattern = f"{mark[:-1]}[{mark[-1]}]"  # does not match itself in grep's own arguments
    script = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c -x '{pattern}' || :"
    return (await sh(box, script)).strip() != "0"


def alive_on_host(mark: str) -> bool:
    """Whether a process with `mark` as an argument lives on this machine."""
    wanted = os.fsencode(mark)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                return True
        except OSError:  # it ended meanwhile
            continue
    return False


async def expect_alive(box: Sandbox, mark: str, what: str) -> None:
    """Raise Broken unless a process with `mark` runs in the sandbox, or soon does: it may only just be starting."""

    async def here() -> bool:
        return await alive(box, mark)

    await eventually(here, f"{what} should be alive, it is not")


async def expect_gone(box: Sandbox, mark: str, what: str) -> None:
    """Raise Broken unless no process with `mark` is left in the sandbox."""

    async def gone() -> bool:
        return not await alive(box, mark)

    await eventually(gone, f"{what} should be dead, it still runs")
