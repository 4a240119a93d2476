"""The same Dockerfiles built by Docker and by us: the same files, the same configuration."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkyard.image import build, import_archive
from forkyard.sandbox import ImageConfig, SandboxSpec
from forkyard.sandbox.local import LocalProvider

pytestmark = pytest.mark.slow


def _dockerd() -> Any:
    """The benchmark's way to a Docker, which is in no package."""
    path = Path(__file__).parents[2] / "benchmarks/dockerd.py"
    spec = importlib.util.spec_from_file_location("dockerd_of_benchmarks", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BASE = "small:1"
OF_CONTAINERS = ("dev", "proc", "sys", ".dockerenv", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab")

DOCKERFILES = {
    "copies": """
FROM small:1
RUN mkdir -p /d/sub /t && chmod 2750 /d/sub && chown 5:6 /d/sub && ln -s d /l && echo old > /d/old
COPY f /new
COPY f /new2/
COPY f /d
COPY f run tree/*.x /several/
COPY tree /tree
COPY tree /d
COPY tree/ /l/below
COPY --chown=7 tree /owned
COPY --chown=worker:8 f run /owned2/
COPY --chown=worker tree /named
COPY ["with blank", "/with blank 2"]
COPY link /followed
COPY linkdir /followed2
COPY . /all
WORKDIR /work
COPY f .
COPY f rel/
COPY f run ./
""",
    "stages": """
ARG FIRST=small:1
FROM $FIRST AS base
ENV A=base
WORKDIR /b
RUN mkdir -p out/sub && echo one > out/one && echo two > out/sub/two && ln -s one out/link && chown -R 9:9 out/sub
RUN chmod 1733 out && chmod 711 out/one
FROM base AS middle
RUN echo "$A" > told && pwd >> told
FROM small:1
COPY --from=base /b/out /out
COPY --from=0 /b/out/o* /b/out/link /some/
COPY --from=base --chown=3:4 /b/out /given
COPY --from=middle /b/told /told
COPY --from=base /b/out/link /file
""",
    "adds": """
FROM small:1
ADD packed.tar.gz /x/
ADD packed.tar.gz f /y/
ADD f /plain
COPY packed.tar.gz /kept
ADD tree /tree
""",
    "configuration": """
FROM small:1
ARG V=1
ARG LIST="a b"
ENV A=$V B="two words" C=${UNSET:-default} D=${V:+set} E='$V'
ENV OLD the rest of it
LABEL one=$V "two words"="three" four='f'
EXPOSE 80 53/udp 7000-7002
RUN mkdir /data /more /v1
VOLUME /data
VOLUME ["/more", "/v$V"]
STOPSIGNAL SIGINT
HEALTHCHECK --interval=5s --timeout=1m30s --start-period=2s --retries=4 CMD test -e /x
WORKDIR /made/here
WORKDIR rel
USER worker
RUN echo "$V $LIST $A $PWD" > /tmp/told; id -u >> /tmp/told
SHELL ["/bin/sh", "-ec"]
ENTRYPOINT exec top
CMD ["a", "b"]
ONBUILD RUN echo triggered
ONBUILD COPY f /f
""",
    "lines": """# escape=`
FROM small:1
# a comment
RUN echo one `
  # within
  two `

  three > /lines
run ["/bin/sh", "-c", "echo exec > /exec"]
RUN echo 'a  b' "c\\d" > /quotes && `
    printf '%s\\n' "$(echo `
    nested)" >> /quotes
COPY f /C:`f
""",
}


def parts(directory: Path) -> None:
    """What the Dockerfiles copy."""
    for name, mode in {
        "f": 0o644,
        "run": 0o750,
        "with blank": 0o600,
        "tree/a.x": 0o640,
        "tree/deep/er/b": 0o604,
    }.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(mode)
    (directory / "tree/deep").chmod(0o711)
    (directory / "tree").chmod(0o2755)
    (directory / "tree/to").symlink_to("a.x")
    (directory / "tree/out").symlink_to("/nowhere")
    (directory / "link").symlink_to("f")
    (directory / "linkdir").symlink_to("tree")
    (directory / "ignored").mkdir()
    (directory / "ignored/kept").write_text("k")
    (directory / "ignored/x").write_text("x")
    (directory / "ignored/deep").mkdir()
    (directory / "ignored/deep/y").write_text("y")
    (directory / ".dockerignore").write_text(
        "# what stays\nignored\n!ignored/kept\n**/er\nrun/\n*.gz\n!packed.tar.gz\n!run\n"
    )
    with tarfile.open(directory / "packed.tar.gz", "w:gz") as tar:
        for name, kind, mode in [
            ("p", tarfile.DIRTYPE, 0o751),
            ("p/f", tarfile.REGTYPE, 0o4711),
            ("q/r/f", tarfile.REGTYPE, 0o600),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.uid, info.gid = kind, mode, 5, 6
            tar.addfile(info)
        link = tarfile.TarInfo("p/l")
        link.type, link.linkname = tarfile.SYMTYPE, "f"
        tar.addfile(link)


def owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with a shell and little else."""
    found = shutil.which("busybox")
    if found is None or b"not a dynamic" not in subprocess.run(["ldd", found], capture_output=True, check=False).stderr:
        pytest.skip("busybox is not installed, or not as one file (apt-get install busybox-static)")
    root = tmp_path_factory.mktemp("small")
    for name in ("bin", "etc", "tmp", "home/worker"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    shutil.copy(found, root / "bin/busybox")
    for name in "sh mkdir chmod chown ln echo id test cat printf".split():
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nworker:x:1001:1002::/home/worker:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nworker:x:1002:\n")
    path = tmp_path_factory.mktemp("archive") / "small.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(root, ".", filter=owned_by_root)
    return path


@pytest.fixture(scope="module")
def docker(archive: Path) -> Iterator[Any]:
    with _dockerd().running_docker(archive, BASE) as found:
        if found is None:
            pytest.skip("no Docker is to be had here (apt-get install docker.io)")
        yield found


def tree(archive: bytes) -> dict[str, tuple[Any, ...]]:
    """Every path with what has to be equal of it."""
    found: dict[str, tuple[Any, ...]] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for info in tar:
            name = info.name.rstrip("/").removeprefix("./")
            if name in OF_CONTAINERS or name.split("/")[0] in OF_CONTAINERS:
                continue
            if info.islnk():
                found[name] = found[info.linkname]
                continue
            content = tar.extractfile(info) if info.isreg() else None
            what = content.read() if content else info.linkname
            found[name] = (info.type, None if info.issym() else info.mode & 0o7777, info.uid, info.gid, what)
    return found


def of_docker(docker: Any, context: Path) -> tuple[dict[str, tuple[Any, ...]], dict[str, Any]]:
    """The files and the configuration of the image Docker's own builder makes."""
    client = ["docker", "-H", f"unix://{docker._path}", "build", "-q", "--network=none", "-t", "compared", str(context)]
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    done = subprocess.run(client, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()
    container = json.loads(docker.call("POST", "/containers/create", {"Image": "compared", "Cmd": ["x"]}))["Id"]
    try:
        files = tree(docker.call("GET", f"/containers/{container}/export"))
    finally:
        docker.delete(container)
    return files, json.loads(docker.call("GET", "/images/compared/json"))["Config"]


def as_docker_says(config: ImageConfig) -> dict[str, Any]:
    """A configuration in Docker's words."""
    check = config.healthcheck
    return {
        "Env": sorted(f"{name}={value}" for name, value in config.env.items()),
        "WorkingDir": config.workdir if config.workdir != "/" else "",
        "User": config.user,
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.cmd),
        "Labels": dict(config.labels),
        "ExposedPorts": dict.fromkeys(config.ports, {}),
        "Volumes": dict.fromkeys(config.volumes, {}),
        "StopSignal": config.stop_signal,
        "Shell": list(config.shell),
        "OnBuild": list(config.onbuild),
        "Healthcheck": check
        and {
            "Test": list(check.test),
            "Interval": int(check.interval * 1e9),
            "Timeout": int(check.timeout * 1e9),
            "StartPeriod": int(check.start_period * 1e9),
            "Retries": check.retries,
        },
    }


@pytest.mark.usefixtures("many_users")
@pytest.mark.parametrize("name", DOCKERFILES)
async def test_docker_builds_the_same(
    provider: LocalProvider, context: Path, archive: Path, docker: Any, name: str
) -> None:
    parts(context)
    (context / "Dockerfile").write_text(DOCKERFILES[name].lstrip("\n"))
    files, config = of_docker(docker, context)
    await import_archive(provider, archive, BASE, ImageConfig())
    image = await build(provider, context)
    sandbox = await provider.create(SandboxSpec(image=image.name))
    ours = tree(await sandbox.pull("/"))
    await sandbox.close()
    assert {
        path: (ours.get(path), files.get(path)) for path in {*ours, *files} if ours.get(path) != files.get(path)
    } == {}
    said = as_docker_says(image.config)
    theirs = {key: config.get(key) or (said[key] if not said[key] else None) for key in said}
    environment: list[str] = sorted(config["Env"] or [])
    theirs["Env"] = environment
    if not any(text.startswith("PATH=") for text in environment):  # ours says which one it used
        said["Env"] = [text for text in said["Env"] if not text.startswith("PATH=")]
    assert said == theirs
