"""Docker by its API over a Unix socket, as small as the benchmark needs it; the daemon is started when none runs."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Not Docker's own range: what another dockerd has left in the packet filter rewrites what goes on in a bridge there.
_POOL = "base=10.213.0.0/16,size=24"
DEFAULT_SOCKET = Path("/var/run/docker.sock")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("docker", timeout=120)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Docker:
    """A handful of calls of the Engine's API. One connection a call, safe from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def address(self) -> str:
        """What its command line client takes as -H."""
        return f"unix://{self._path}"

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        connection = _UnixConnection(self._path)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            data = response.read()
            if response.status >= 400:
                raise RuntimeError(f"docker {method} {path}: {response.status} {data[:300]!r}")
            return data
        finally:
            connection.close()

    def start(self, image: str) -> str:
        """A running container with no network."""
        host = {"NetworkMode": "none", "PidsLimit": 512}
        made = self.call("POST", "/containers/create", {"Image": image, "Cmd": ["sleep", "1000"], "HostConfig": host})
        container = str(json.loads(made)["Id"])
        self.call("POST", f"/containers/{container}/start")
        return container

    def run(self, container: str, argv: list[str]) -> None:
        """Run a command to its end and check that it exited 0."""
        asked = {"Cmd": argv, "AttachStdout": True, "AttachStderr": True}
        execution = json.loads(self.call("POST", f"/containers/{container}/exec", asked))["Id"]
        self.call("POST", f"/exec/{execution}/start", {"Detach": False})
        if json.loads(self.call("GET", f"/exec/{execution}/json"))["ExitCode"] != 0:
            raise RuntimeError(f"{argv} failed in docker")

    def delete(self, container: str) -> None:
        self.call("DELETE", f"/containers/{container}?force=1")


@contextmanager
def running_docker(archive: Path, image: str, *, bridge: bool = False) -> Iterator[Docker | None]:
    """A Docker with `archive` imported as `image`; None, with the reason said, where there is none to be had."""
    if _answers(DEFAULT_SOCKET):
        yield _with_image(Docker(DEFAULT_SOCKET), DEFAULT_SOCKET, archive, image)
        return
    with (
        tempfile.TemporaryDirectory(prefix="forkyard-dockerd-") as name,
        started_docker(Path(name), bridge=bridge) as daemon,
    ):
        yield None if daemon is None else _with_image(Docker(daemon.socket), daemon.socket, archive, image)


class Daemon:
    """A dockerd of our own, over a directory that may be another's before and after it."""

    def __init__(self, directory: Path, bridge: bool = False) -> None:
        self.socket = directory / "docker.sock"
        self._directory, self._log = directory, directory / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                ["dockerd", "-H", f"unix://{self.socket}", "--data-root", f"{directory}/data"]
                + ["--exec-root", f"{directory}/exec", "--pidfile", f"{directory}/pid"]
                + ([] if bridge else ["--bridge=none", "--iptables=false", f"--default-address-pool={_POOL}"]),
                stdout=log,
                stderr=log,
            )

    def wait_until_ready(self) -> str | None:
        """Why it does not start, or None once it answers."""
        deadline = time.monotonic() + 120
        while not _answers(self.socket):
            if self.process.poll() is not None or time.monotonic() > deadline:
                return " ".join(self._log.read_text(errors="replace").strip().splitlines()[-1:])[:200]
            time.sleep(0.1)
        return None

    def kill(self) -> None:
        """Let it die with its containerd, as in a crash; containers live on."""
        self.process.kill()
        self.process.wait()
        containerd = self._directory / "exec/containerd/containerd.pid"
        os.kill(int(containerd.read_text()), signal.SIGKILL)
        containerd.unlink()  # where nobody buries it, the next dockerd would take it for alive

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextmanager
def started_docker(directory: Path, bridge: bool = False) -> Iterator[Daemon | None]:
    """A dockerd over a directory, with its network when told; None, with the reason said, where there is none."""
    if shutil.which("dockerd") is None:
        print("Docker is not installed (apt-get install docker.io): going on without it")
        yield None
        return
    daemon = Daemon(directory, bridge)
    try:
        reason = daemon.wait_until_ready()
        if reason is not None:
            print(f"Docker does not start here ({reason}): going on without it")
        yield daemon if reason is None else None
    finally:
        daemon.end()
        for mounted in (directory / "data", *(directory / "exec/netns").glob("*")):
            subprocess.run(["umount", "-R", str(mounted)], capture_output=True, check=False)


def _answers(path: Path) -> bool:
    try:
        return Docker(path).call("GET", "/_ping") == b"OK"
    except (OSError, RuntimeError):
        return False


def _with_image(docker: Docker, path: Path, archive: Path, image: str) -> Docker:
    client = ["docker", "-H", f"unix://{path}", "import", str(archive), image]
    subprocess.run(client, check=True, capture_output=True)
    return docker
