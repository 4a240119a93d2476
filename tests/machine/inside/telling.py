"""How the scripts try their checks, and tell what became of them: one line each."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from forkyard.sandbox.local import LocalProvider

Check = Callable[[LocalProvider], Awaitable[None]]
PATIENCE = 240  # seconds for one check, on a machine that is emulated beside others


def tell(name: str, error: str, started: float) -> None:
    row = {"name": name, "error": error[-2000:], "seconds": round(time.monotonic() - started, 1)}
    print(f"\nsaid: {json.dumps(row)}", flush=True)


async def try_all(whose: str, home: Path, *checks: Check) -> None:
    """Try checks one after another over one provider, and that nothing is left of it at the end."""
    started = time.monotonic()
    try:
        async with LocalProvider(home) as provider:
            for check in checks:
                await _try(f"{whose}: {check.__name__}", check, provider)
                started = time.monotonic()
    except Exception:  # noqa: BLE001 - whatever it is, the test outside is told
        tell(f"{whose}: provider", traceback.format_exc(), started)


async def _try(name: str, check: Check, provider: LocalProvider) -> None:
    started, error = time.monotonic(), ""
    try:
        async with asyncio.timeout(PATIENCE):
            await check(provider)
    except Exception:  # noqa: BLE001 - likewise
        error = traceback.format_exc()
    tell(name, error, started)
