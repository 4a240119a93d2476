"""Many append to one object, and the server is killed in between: what was acknowledged is there, once and whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.appenders import appended


@pytest.mark.slow
async def test_no_acknowledged_record_is_lost_or_torn_by_a_kill(tmp_path: Path) -> None:
    await appended(tmp_path, appenders=64, records=60, kills=1)
