"""What the store promises of its transactions, and the spawner of what it does before the first fork."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.box import SCRATCH
from forkyard.sandbox.local.idmap import id_map
from forkyard.sandbox.local.store import Store
from forkyard.sandbox.values import ImageConfig, SandboxSpec

NORMAL = (1,)  # of PRAGMA synchronous


def test_a_durable_change_that_fails_leaves_others_as_fast_as_they_were(tmp_path: Path) -> None:
    store = Store(tmp_path, id_map())
    try:
        box = store.add_running(SCRATCH, "a" * 32, "named", ImageConfig())
        store.remove(box)
        with pytest.raises(ConfigError, match="sandbox named was removed meanwhile"):
            store.put_image("image", box, ImageConfig())
        assert store.db.execute("PRAGMA synchronous").fetchone() == NORMAL
        assert store.all("image") == []
    finally:
        store.close(tidy=True)


def test_whoever_is_removed_meanwhile_is_called_what_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path, id_map())
    try:
        image = store.put_image("mine", store.add_running(SCRATCH, "b" * 32, None, ImageConfig()), ImageConfig())
        store.remove(image)
        with pytest.raises(ConfigError, match="image mine was removed meanwhile"):
            store.now(image)
        with pytest.raises(ConfigError, match="image mine was removed meanwhile"):
            store.add_running(image.origin, "c" * 32, None, ImageConfig())
    finally:
        store.close(tidy=True)


def test_a_home_that_is_refused_is_let_go(tmp_path: Path) -> None:
    Store(tmp_path, id_map()).close(tidy=True)
    with pytest.raises(ConfigError, match="another FORKYARD_HOME") as refused:
        Store(tmp_path, replace(id_map(), mode="another"))
    held = [path for path in Path("/proc/self/fd").iterdir() if str(tmp_path) in os.path.realpath(path)]
    assert (held, refused.type) == ([], ConfigError)  # while the error, and with it what failed, still stands


async def test_the_spawner_keeps_nothing_of_its_rehearsal(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec())
    engine = local.yard._engine
    assert engine is not None
    spawner = Path(f"/proc/{engine._process.pid}")
    assert (spawner / "cwd").readlink() == local.store.home / "disks"
    kinds = sorted(str(fd.readlink()).partition(":")[0] for fd in (spawner / "fd").iterdir())
    assert kinds == [*["/dev/null"] * 3, "pipe", "socket"]  # of the janitor, of this process
    await sandbox.close()
