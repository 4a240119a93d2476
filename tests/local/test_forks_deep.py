"""Deep chains of forks are made shallow, and nothing in them changes by it; room and age of what is kept."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import SandboxError
from forkyard.sandbox import ImageConfig, Sandbox, SandboxSpec, patch
from forkyard.sandbox.contract.promise import sh
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.flatten import DEPTH
from forkyard.sandbox.local.sandbox import LocalSandbox
from tests.local.test_engine import left_on_disk
from tests.local.test_forks import listing

TOPS = ("/w", "/usr/forks")


def change(rng: random.Random, step: int) -> str:
    """A few changes of every kind, in a small tree so that they meet."""
    lines = []
    for _ in range(6):
        path = rng.choice(("/w", "/usr/forks")) + "/" + "/".join(rng.choice("abc") for _ in range(rng.randint(1, 3)))
        what = rng.choice(("write", "write", "remove", "replace", "link", "directory", "mode", "fifo"))
        lines.append(
            {
                "write": f"mkdir -p {path}; echo {step} > {path}/{rng.choice('xyz')}",
                "remove": f"rm -rf {path}",
                "replace": f"rm -rf {path}; mkdir -p {path}; echo {step} > {path}/new",
                "link": f"rm -rf {path}; ln -s {step} {path}; ln {path} {path}.hard",
                "directory": f"rm -rf {path}; echo file > {path}",
                "mode": f"chmod {rng.choice(('700', '1755', '755'))} {path}",
                "fifo": f"rm -rf {path}; mkfifo {path}",
            }[what]
        )
    return "; ".join(f"({line}) 2>/dev/null" for line in lines) + "; :"


async def files_of(box: Sandbox, *tops: str) -> dict[str, Any]:
    """The listing without numbers of links: overlayfs also counts names that were deleted in a layer above."""
    return {path: [*entry[:3], *entry[4:]] for path, entry in (await listing(box, *tops)).items()}


@pytest.mark.slow
async def test_a_chain_of_a_hundred_forks_stays_shallow_and_whole(tmp_path: Path) -> None:
    rng = random.Random(7)
    async with LocalProvider(tmp_path) as provider:
        box = await provider.create(SandboxSpec())
        await sh(box, "mkdir /w /usr/forks")
        flattened = 0
        for step in range(100):
            await sh(box, change(rng, step))
            watched = step % 4 == 0
            before = await files_of(box, *TOPS) if watched else None
            await box.stop()
            following = await box.fork()
            assert isinstance(following, LocalSandbox) and isinstance(box, LocalSandbox)
            assert len(following.box.stack) <= DEPTH + 1
            flattened += len(following.box.stack) < len(box.box.stack)
            if watched:
                assert await files_of(following, *TOPS) == before
            assert await following.changes() == []
            await box.close()
            box = following
        assert flattened >= 4
        await box.close()
    assert len(left_on_disk(tmp_path)["disks"]) == 1


@pytest.mark.parametrize("image", ["host", "scratch-like"])
async def test_a_flattened_sandbox_has_the_same_files_and_changes(tmp_path: Path, image: str) -> None:
    rng = random.Random(3)
    async with LocalProvider(tmp_path) as provider:
        if image != "host":
            made = await provider.create(SandboxSpec())
            archive = await made.pull("/", exclude=["usr"])
            await made.close()
            empty = await provider.create(SandboxSpec(image="scratch"))
            await empty.push(archive)
            await empty.stop()
            await provider.commit(empty, image, ImageConfig())
            await empty.close()
        box = await provider.create(SandboxSpec(image=image))
        assert isinstance(box, LocalSandbox)
        for step in range(DEPTH):
            if image == "host":
                await sh(box, "mkdir -p /w /usr/forks; " + change(rng, step))
            else:
                await box.write(f"/w/{step % 7}/f{step}", b"x" * step)
            if step == DEPTH - 1:
                break
            await box.stop()
            await box.start()
        before = await box.changes()
        files = await files_of(box, *TOPS) if image == "host" else await box.pull("/w")
        await box.stop()
        depth = len(box.box.stack)
        assert depth > DEPTH
        await box.start()
        assert len(box.box.stack) < DEPTH
        assert await box.changes() == before
        assert (await files_of(box, *TOPS) if image == "host" else await box.pull("/w")) == files
        assert before
        await box.close()


async def test_nested_forks_of_running_sandboxes_stay_shallow(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider:
        box = await provider.create(SandboxSpec())
        for number in range(DEPTH + 6):
            await sh(box, f"echo {number} > /f{number}; rm -f /f{number - 3}")
            following = await box.fork()
            await box.close()
            box = following
            assert isinstance(box, LocalSandbox) and len(box.box.stack) <= DEPTH
        assert (await box.run("ls -d /f*")).stdout.split() == [f"/f{DEPTH + 3}", f"/f{DEPTH + 4}", f"/f{DEPTH + 5}"]
        await box.close()
    assert len(left_on_disk(tmp_path)["disks"]) == 1


async def test_a_template_with_forks_can_be_removed_and_frees_what_nothing_stands_on(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider:
        template = await provider.create(SandboxSpec(name="template"))
        await template.run("head -c 1000000 /dev/urandom > /big")
        await template.stop()
        one, two = await template.fork("one"), await template.fork()
        await one.run("head -c 300000 /dev/urandom > /own")
        use = {usage.name: usage for usage in await provider.usage()}
        assert use["template"].own == 0 and use["template"].shared > 1_000_000
        assert use["one"].own > 300_000 and use["one"].shared >= use["template"].shared
        await template.close()
        assert len(await one.read("/big")) == 1_000_000
        await two.close()
        use = {usage.name: usage for usage in await provider.usage()}
        assert use["one"].own > 1_300_000 and "template" not in use
        await one.close()
    assert len(left_on_disk(tmp_path)["disks"]) == 1


async def test_a_sweep_by_age_takes_what_was_not_used_and_never_what_runs_or_an_image(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider:
        boxes = {}
        for name in ("old", "parent", "runs", "fresh"):
            boxes[name] = await provider.create(SandboxSpec(name=name))
            if name != "runs":
                await boxes[name].stop()
        child = await boxes["parent"].fork()
        provider.store.db.execute("UPDATE history SET used = ?", (time.time() - 8 * 86400,))
        provider.store.db.execute("UPDATE boxes SET created = created - ?", (8 * 86400,))
        await provider.open("fresh")
        assert await provider.sweep_unused(9 * 86400) == []
        assert await provider.sweep_unused(7 * 86400) == ["sandbox old: last used 8.0 days ago"]
        names = {info.name for info in await provider.sandboxes()}
        assert names == {"parent", "runs", "fresh", None}
        assert len(await provider.images()) == 1
        await child.close()
        for name in ("parent", "runs", "fresh"):
            await boxes[name].close()


async def test_a_patch_holds_text_and_names_the_rest(local: LocalProvider) -> None:
    template = await local.create(SandboxSpec())
    await sh(template, "mkdir /w; seq 30 > /w/text; seq 3 > /w/gone; printf 'a\\0b' > /w/binary; printf x > /w/end")
    await template.stop()
    fork = await template.fork()
    await sh(fork, "sed -i s/15/fifteen/ /w/text; rm /w/gone; printf 'a\\0c' > /w/binary; printf y > /w/end")
    await sh(fork, "echo new > /w/new; ln -s /etc/shadow /w/link; chmod 700 /w/new; yes | head -c 300000 > /w/large")
    expected = (
        "diff --git a/w/binary b/w/binary\nBinary files a/w/binary and b/w/binary differ\n"
        "diff --git a/w/end b/w/end\n--- a/w/end\n+++ b/w/end\n@@ -1,1 +1,1 @@\n"
        "-x\n\\ No newline at end of file\n+y\n\\ No newline at end of file\n"
        "diff --git a/w/gone b/w/gone\ndeleted file mode 100644\n--- a/w/gone\n+++ /dev/null\n"
        "@@ -1,3 +0,0 @@\n-1\n-2\n-3\n"
        "diff --git a/w/large b/w/large\nnew file mode 100644\nBinary files /dev/null and b/w/large differ\n"
        "diff --git a/w/new b/w/new\nnew file mode 100644\n--- /dev/null\n+++ b/w/new\n@@ -0,0 +1,1 @@\n+new\n"
        "diff --git a/w/text b/w/text\n--- a/w/text\n+++ b/w/text\n@@ -12,7 +12,7 @@\n"
        " 12\n 13\n 14\n-15\n+fifteen\n 16\n 17\n 18\n"
    )
    assert await patch(fork) == expected
    await fork.stop()
    assert await patch(fork) == expected
    with pytest.raises(SandboxError, match="over the 100 byte limit"):
        await patch(fork, max_bytes=100)
    await fork.close()
    await template.close()
