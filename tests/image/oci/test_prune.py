from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from forkyard.image import prune, pull
from forkyard.sandbox.local import LocalProvider
from tests.image.oci.parts import made, member, publish, tar

DAYS_AGO = time.time() - 2 * 86400


def put(path: Path, when: float | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"part")
    if when is not None:
        os.utime(path, (when, when))
        os.utime(path.parent, (when, when))
    return path


async def test_old_downloads_go_and_those_under_way_stay(provider: LocalProvider) -> None:
    blobs = Path(os.environ["FORKYARD_HOME"]) / "blobs"
    blobs.mkdir()
    new = put(blobs / "sha256-new")
    fresh = put(blobs / "tmp-of-a-push" / "layer.tar.gz")
    held = put(blobs / "sha256-held", DAYS_AGO)
    old = put(blobs / "sha256-old", DAYS_AGO)
    killed = put(blobs / "tmp-of-a-killed-push" / "layer.tar.gz", DAYS_AGO).parent
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        removed = await prune(provider)
    assert removed == [f"{old}: a download nobody went on with", f"{killed}: left behind"]
    assert sorted(blobs.iterdir()) == sorted([new, fresh.parent, held])


async def test_a_layer_goes_with_its_last_image(provider: LocalProvider, registry: str) -> None:
    name = f"{registry}/prune:1"
    await publish(name, made(tar(member("a", b"a"))))
    await pull(provider, name)
    assert await prune(provider) == []
    await provider.remove_image(name)
    (said,) = await prune(provider)
    assert said.startswith("layer:sha256:") and said.endswith(": nothing stands on it")
    assert await provider.images() == []
