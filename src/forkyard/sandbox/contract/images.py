"""What a provider with images promises."""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox.contract.archives import member, pack, unpack
from forkyard.sandbox.contract.life import new_name
from forkyard.sandbox.contract.promise import (
    PATIENCE,
    closing,
    expect,
    expect_equal,
    expect_raises,
    fresh,
    needs,
    sh,
    spec,
)
from forkyard.sandbox.protocol import ImageProvider, Provider
from forkyard.sandbox.values import Feature, ImageConfig, SandboxSpec

CONFIG = ImageConfig({"A": "of image", "B": "of  image"}, "/srv/my app", "65534", ("/bin/false",), ("no",))


def _possible(config: ImageConfig, provider: ImageProvider) -> ImageConfig:
    """The configuration without its user, where a sandbox cannot run as that one."""
    return config if Feature.USERS in provider.features else replace(config, user="")


@asynccontextmanager
async def _image(provider: ImageProvider, content: bytes, config: ImageConfig = CONFIG) -> AsyncIterator[str]:
    """A new image with /srv/my app/file holding `content`; removed at the end."""
    config = _possible(config, provider)
    name = new_name("contract/image") + ":1.0"
    async with fresh(provider) as box:
        await box.write("/srv/my app/file", content)
        await box.stop()
        info = await provider.commit(box, name, config)
        expect_equal((info.name, info.config), (name, config), "name and configuration of a committed image")
    try:
        yield name
    finally:
        if await provider.image(name):
            await provider.remove_image(name)


@needs(Feature.IMAGES)
async def check_a_sandbox_starts_as_its_image_says(provider: ImageProvider) -> None:
    """A sandbox has its image's files, environment, working directory and user; entry point and command never run."""
    async with _image(provider, b"content") as name:
        async with fresh(provider, SandboxSpec(image=name)) as box:
            expect_equal(box.info.image, name, "image in info")
            expect_equal(
                await sh(box, 'printf "%s|%s|" "$A" "$B"; cat file'), "of image|of  image|content", "A, B and file"
            )
            if Feature.USERS in provider.features:
                expect_equal(await sh(box, "id -u"), "65534\n", "user")
        wanted = SandboxSpec(image=name, env={"B": "own"}, workdir="/srv", user="0")
        async with fresh(provider, wanted) as box:
            got = await sh(box, "printf '%s|%s|' \"$A\" \"$B\"; cat 'my app/file'; id -u")
            expect_equal(got, "of image|own|content0\n", "A, B, file and user of a sandbox with its own spec")


@needs(Feature.IMAGES)
async def check_images_are_listed(provider: ImageProvider) -> None:
    """An image is found by name and in the list; an unknown one is None."""
    expect_equal(await provider.image(new_name("missing")), None, "an image that is not there")
    async with _image(provider, b"x") as name:
        info = await provider.image(name)
        expect(
            info is not None and info.config == _possible(CONFIG, provider),
            f"the image should be found with its configuration, got {info}",
        )
        expect_equal(
            [image for image in await provider.images() if image.name == name], [info], "its lines in the list"
        )
    expect_equal(await provider.image(name), None, "an image that was removed")


@needs(Feature.IMAGES)
async def check_commit_replaces_an_image(provider: ImageProvider) -> None:
    """Committing under a name in use replaces the image for new sandboxes and leaves the others as they are."""
    async with _image(provider, b"old") as name, fresh(provider, SandboxSpec(image=name, user="0")) as old:
        await old.stop()
        async with fresh(provider, SandboxSpec(image=name, user="0")) as box:
            await box.write("file", b"new")
            with expect_raises("committing a running sandbox", SandboxError):
                await provider.commit(box, name, CONFIG)
            await box.stop()
            await provider.commit(box, name, CONFIG)
            await box.start()
            await box.write("file", b"later")
        async with fresh(provider, SandboxSpec(image=name)) as box:
            expect_equal(await box.read("file"), b"new", "file of a sandbox of the new image")
        await old.start()
        expect_equal(await old.read("file"), b"old", "file of a sandbox of the old image")


@needs(Feature.IMAGES)
async def check_sandboxes_outlive_their_image(provider: ImageProvider) -> None:
    """Removing an image leaves its sandboxes alone and makes its name unknown; removing it again is a ConfigError."""
    async with _image(provider, b"content") as name, fresh(provider, SandboxSpec(image=name)) as box:
        await provider.remove_image(name)
        expect_equal(await sh(box, "cat file"), "content", "file of a sandbox whose image was removed")
        for what in ("making a sandbox of a removed image", "removing it again"):
            with expect_raises(what, ConfigError) as caught:
                if what.startswith("making"):
                    await (await provider.create(SandboxSpec(image=name))).close()
                else:
                    await provider.remove_image(name)
            caught.expect_named(name)


@needs(Feature.IMAGES)
async def check_scratch_is_empty(provider: ImageProvider) -> None:
    """The image "scratch" needs no download and has no program: files still go in and out, and it can be forked."""
    async with fresh(provider, SandboxSpec(image="scratch")) as box:
        expect_equal((await box.run(["sh"], timeout=PATIENCE)).exit_code, 127, "exit code of sh")
        await box.write("/bin/data", b"content", mode=0o755)
        expect_equal(await box.read("/bin/data"), b"content", "content of a file")
        await box.push(pack([member("sub/file", b"pushed", mode=0o600)]), "/srv")
        expect_equal(set(unpack(await box.pull("/srv"))), {"sub", "sub/file"}, "members of a tree")
        await box.stop()
        if Feature.FORK in provider.features:
            async with closing(await box.fork()) as fork:
                expect_equal(await fork.read("/srv/sub/file"), b"pushed", "content of a file in a fork")


_LOWER = """
mkdir -p root/old/deep root/full/sub root/kept root/was-a-directory/with outside
for f in old/deep/file full/a full/sub/b kept/k was-a-directory/with/x was-a-file; do printf lower > root/$f; done
printf lower > outside/file; ln -s ../outside root/out; ln -s kept root/was-a-link
"""
_LAYER = [
    member(".wh.old", b""),
    member(".wh.never-there", b""),
    member("no/such/.wh.place", b""),
    member("full/.wh..wh..opq", b""),
    member("full/new", b"upper"),
    member("kept/.wh..wh.plnk", b""),
    member("was-a-directory", b"upper"),
    member("was-a-file"),
    member("was-a-file/inside", b"upper"),
    member("was-a-link", mode=0o711),
    member("was-a-link/file", b"upper"),
    member("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
]


@needs(Feature.IMAGES)
async def check_layers_are_applied(provider: ImageProvider) -> None:
    """With `layer` whiteouts delete, members replace what is of another kind, and devices are left out."""
    async with fresh(provider) as box:
        await sh(box, _LOWER)
        await box.push(pack(_LAYER), "root", layer=True)
        found = unpack(await box.pull("root"))
        wanted = {"full", "full/new", "kept", "kept/k", "out", "was-a-directory", "was-a-file", "was-a-file/inside",
                  "was-a-link", "was-a-link/file"}  # fmt: skip
        expect_equal(set(found), wanted, "names after a layer")
        expect_equal(found["was-a-directory"][1], b"upper", "content of a file where a directory was")
        expect_equal(found["was-a-link"][0].mode & 0o7777, 0o711, "mode of a directory where a link was")
        await box.push(pack([member(".wh.out", b"")]), "root", layer=True)
        expect_equal(await box.read("outside/file"), b"lower", "a file behind a link that a whiteout deleted")
        expect("out" not in unpack(await box.pull("root")), "a whiteout should delete a link")


@needs(Feature.IMAGES)
async def check_layers_delete_nothing_outside(provider: ImageProvider) -> None:
    """A whiteout that is absolute, climbs, names nothing or passes through a link that leaves deletes nothing."""
    names = ("../outside/.wh.file", "out/.wh.file", "out/.wh..wh..opq", "/.wh.file", ".wh...", ".wh..", ".wh.")
    async with fresh(provider) as box:
        await sh(box, _LOWER)
        before = unpack(await box.pull("root")).keys()
        for name in names:
            with suppress(SandboxError):
                await box.push(pack([member(name, b"")]), "root", layer=True)
            expect_equal(await box.read("outside/file"), b"lower", f"a file outside after {name!r}")
            expect_equal(unpack(await box.pull("root")).keys(), before, f"names after {name!r}")


async def check_default_image_is_usable(provider: Provider) -> None:
    """The image under test has the few programs the checks use."""
    async with fresh(provider, spec()) as box:
        for command in (
            "sh",
            "cat",
            "head",
            "tail",
            "od",
            "stat",
            "readlink",
            "truncate",
            "mkfifo",
            "setsid",
            "sed",
            "grep",
        ):
            await sh(box, f"command -v {command}")
