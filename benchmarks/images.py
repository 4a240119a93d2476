"""Pull, build and build again: Forkyard beside Docker, Podman and Buildah, in one run.

    python -m benchmarks.images [--rounds 5] [--root ARCHIVE]

Everybody pulls the same image from a docker-registry of this machine that the script starts, a Debian made by
debootstrap (or the root file system in ARCHIVE), and builds the same Dockerfile on it: after its context changed, and
again with nothing changed. Rivals take turns in one run, and who is not installed is named. Numbers are milliseconds of
wall clock, median and longest. Forkyard is called as its users' programs call it, the others by their command lines.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.dockerd import Docker, running_docker
from benchmarks.sandboxes import debian_archive, median, timed
from forkyard.image import LAYER_PREFIX, build, import_archive, pull, push
from forkyard.sandbox import ImageConfig
from forkyard.sandbox.local import LocalProvider

DOCKERFILE = "FROM {base}\nCOPY data /srv/data\nRUN cat /srv/data > /srv/copy\nRUN rm /srv/data\nENV DONE=1\n"


@dataclass
class Samples:
    """Milliseconds of each step, over all rounds."""

    pulled: list[float] = field(default_factory=list)
    built: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)


@dataclass
class Rival:
    """How somebody forgets an image, pulls it, and builds a directory."""

    name: str
    forget: Callable[[], Awaitable[None]]
    pull: Callable[[], Awaitable[None]]
    build: Callable[[], Awaitable[None]]
    samples: Samples = field(default_factory=Samples)


def forkyard(provider: LocalProvider, image: str, context: Path) -> Rival:
    async def forget() -> None:
        if await provider.image(image) is not None:
            await provider.remove_image(image)
        # Images built on it keep its layers: those go first.
        for found in await provider.images():
            await provider.remove_image(found.name)
        await provider.prune_images(LAYER_PREFIX)

    async def do_pull() -> None:
        await pull(provider, image)

    async def do_build() -> None:
        await build(provider, context)

    return Rival("forkyard", forget, do_pull, do_build)


def by_command(name: str, pulling: list[str], forgetting: list[str], building: list[str], **env: str) -> Rival:
    """Somebody with a command line."""

    async def run(command: list[str], check: bool = True) -> None:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        if check and process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{output.decode(errors='replace')[-2000:]}")

    return Rival(name, lambda: run(forgetting, check=False), lambda: run(pulling), lambda: run(building))


def rivals(docker: Docker | None, image: str, context: Path, directory: Path) -> Iterator[Rival]:
    """Those that are installed; the others are named."""
    directory_of_context = str(context)
    if docker is not None:
        client = ["docker", "-H", docker.address]
        yield by_command(
            "docker",
            [*client, "pull", "-q", image],
            [*client, "image", "prune", "-af"],
            [*client, "build", "-q", directory_of_context],
            DOCKER_BUILDKIT="0",  # the builder that every installation has
        )
    store = ["--root", f"{directory}/root", "--runroot", f"{directory}/run"]
    plain = "--tls-verify=false"
    for name, words, more in (("podman", ("pull", "rmi", "build"), ["-q"]), ("buildah", ("pull", "rmi", "bud"), [])):
        if shutil.which(name) is None:
            print(f"{name} is not installed (apt-get install {name}): going on without it")
            continue
        client = [name, *store]
        building = [*client, words[2], *more, "--layers", plain, directory_of_context]
        yield by_command(name, [*client, words[0], plain, image], [*client, words[1], "-af"], building)


@contextmanager
def running_registry(directory: Path) -> Iterator[str]:
    """A docker-registry of our own; "host:port"."""
    if shutil.which("docker-registry") is None:
        raise SystemExit("docker-registry is not installed (apt-get install docker-registry)")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    config = directory / "config.yml"
    storage = f"storage:\n  filesystem:\n    rootdirectory: {directory}/store\n"
    config.write_text(f"version: 0.1\nlog:\n  level: info\n{storage}http:\n  addr: {address}\n")
    log = (directory / "log").open("w+")
    process = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log)
    try:
        while "listening on" not in (directory / "log").read_text():
            if process.poll() is not None:
                raise SystemExit(f"the registry does not start: {(directory / 'log').read_text()[-2000:]}")
        yield address
    finally:
        process.terminate()
        process.wait()
        log.close()


async def measure(rival: Rival, context: Path, content: str) -> None:
    """One turn."""
    samples = rival.samples
    await rival.forget()
    with timed(samples.pulled):
        await rival.pull()
    (context / "data").write_text(content)
    with timed(samples.built):
        await rival.build()
    with timed(samples.again):
        await rival.build()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--root", type=Path, help="a root file system as a tar archive, in place of debootstrap's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forkyard-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        os.environ["FORKYARD_HOME"] = os.environ["DOCKER_CONFIG"] = str(directory / "home")
        for part in ("home", "registry", "context", "others"):
            (directory / part).mkdir()
        (directory / "home/config.json").write_text("{}")  # nobody's login; Podman wants the file
        archive = options.root or debian_archive(directory)
        if archive is None:
            raise SystemExit("without a root file system there is nothing to pull: name one with --root")
        image = f"{stack.enter_context(running_registry(directory / 'registry'))}/bench/debian:1"
        async with LocalProvider() as provider:
            await import_archive(provider, archive, image, ImageConfig(cmd=("sh",)))
            await push(provider, image)
            context = directory / "context"
            (context / "Dockerfile").write_text(DOCKERFILE.format(base=image))
            docker = stack.enter_context(running_docker(archive, "bench:root"))
            # Podman and Buildah leave their storage mounted.
            unmount = ["umount", str(directory / "others/root/overlay")]
            stack.callback(subprocess.run, unmount, capture_output=True, check=False)
            taking_part = [forkyard(provider, image, context), *rivals(docker, image, context, directory / "others")]
            for number in range(options.rounds):
                for rival in taking_part:
                    await measure(rival, context, f"{rival.name} {number}")
    report(taking_part)


def report(taking_part: list[Rival]) -> None:
    print(f"{'who':10}" + "".join(f"  {title:>22}" for title in ("pull", "build after a change", "build again")))
    ours = taking_part[0].samples
    for rival in taking_part:
        print(f"{rival.name:10}" + "".join(f"  {median(s):12.1f} ({max(s):7.0f})" for s in steps(rival.samples)))
        if rival is not taking_part[0]:
            ratios = [median(a) / median(b) for a, b in zip(steps(rival.samples), steps(ours), strict=True)]
            print(f"{'ratio':10}" + "".join(f"  {f'{ratio:.1f}x':>22}" for ratio in ratios))


def steps(samples: Samples) -> tuple[list[float], ...]:
    return samples.pulled, samples.built, samples.again


if __name__ == "__main__":
    asyncio.run(main())
