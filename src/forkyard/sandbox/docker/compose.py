"""Bringing a compose project up by the program that does that, `docker compose` or `docker-compose`.

The program reads the task's file and has the Engine build, make and start; what comes after is done by the Engine
itself, so that a project can be ended, or swept, by whoever finds it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError, SandboxError
from forkyard.programs import run
from forkyard.sandbox.composefile import MAIN, brings_image
from forkyard.sandbox.composing import ComposePlan
from forkyard.sandbox.docker.images import reference
from forkyard.sandbox.values import Limits
from forkyard.values import MIB, tail

HOW = "install one (Debian: `apt-get install docker-compose`)"
LOGS = ("verifier", "agent", "artifacts")
_VERSION = re.compile(r"""^version:\s*["']?([0-9.]+)""", re.MULTILINE)
_SERVICES = re.compile(r"^services:\n((?:[ ].*\n|\n)*)", re.MULTILINE)
_SERVICE = re.compile(r"  ['\"]?([\w.-]+)['\"]?:")
_JOINS = re.compile(r"    network_mode: ['\"]?(?:service|container):")
_FORWARDED = ("PATH", "HOME", "DOCKER_CONFIG")
_PLUGINS = [f"/usr/{place}/docker/cli-plugins" for place in ("local/lib", "local/libexec", "lib", "libexec")]
_SAID = 4000
_KEPT = 1 << 20


def find_program() -> str | None:
    """The program, which Docker's own packages keep among the plugins of `docker`; None where there is none."""
    config = os.environ.get("DOCKER_CONFIG") or str(Path.home() / ".docker")
    places = [Path(place) / "docker-compose" for place in (f"{config}/cli-plugins", *_PLUGINS)]
    plugin = next((str(place) for place in places if os.access(place, os.X_OK)), None)
    return plugin or shutil.which("docker-compose")


class Compose:
    """One project and the program: `files` in the order in which they are laid over each other."""

    def __init__(self, socket: Path, project: str, plan: ComposePlan, work: Path) -> None:
        program = find_program()
        if program is None:
            raise ConfigError(f"there is neither `docker compose` nor `docker-compose`: {HOW}")
        self._program, self._socket, self._project, self._plan, self._work = program, socket, project, plan, work
        self._version = _VERSION.search(plan.file().read_text(errors="replace"))
        self.files = [self._write("base.json", {"services": {MAIN: self._base()}}), plan.file()]

    def _base(self) -> dict[str, Any]:
        """What `main` is where the project's own file does not say."""
        built: dict[str, Any] = {}
        if not brings_image(self._plan.file()):
            if self._plan.image is not None:
                built = {"image": reference(self._plan.image)}
            elif (self._plan.directory / "Dockerfile").is_file():
                built = {"build": {"context": str(self._plan.directory)}}
        return {**built, "command": ["sh", "-c", "sleep infinity"]}

    def lay_over(self, services: Mapping[str, Any]) -> None:
        """Say more of services than the project's file does, and close the network it has by default if asked to."""
        said: dict[str, Any] = {"services": services}
        if self._plan.network.mode != "public":
            said["networks"] = {"default": {"internal": True}}
        self.files.append(self._write("over.json", said))

    def _write(self, name: str, said: Mapping[str, Any]) -> Path:
        # Versions have to agree; a file without one is of the newest.
        head = {"version": self._version[1]} if self._version else {}
        path = self._work / name
        path.write_text(json.dumps({**head, **said}).replace("$", "$$"))
        return path

    async def services(self) -> dict[str, bool]:
        """The project's services, and whether each joins the network of another; ConfigError for a bad file."""
        try:
            said = await self._run("config")
        except SandboxError as err:
            raise ConfigError(f"{self._plan.file()}: {err}") from err
        block = _SERVICES.search(said)  # the program writes every file in one way
        found, name = dict[str, bool](), ""
        for line in (block[1] if block else "").splitlines():
            if service := _SERVICE.fullmatch(line):
                name = service[1]
                found[name] = False
            elif _JOINS.match(line):
                found[name] = True
        return found

    async def up(self) -> None:
        """Build what is not there and start everything."""
        await self._run("up", "--detach", "--no-color", "--quiet-pull")

    async def _run(self, *arguments: str) -> str:
        """What the program writes; SandboxError when it fails, TimeoutError when it needs longer than the whole may."""
        files = [word for file in self.files for word in ("--file", str(file))]
        options = ["--project-name", self._project, "--project-directory", str(self._plan.directory), *files]
        argv = [self._program, *options, *arguments]
        code, said, complaints = await run(argv, env=self._environment(), seconds=self._plan.timeout, keep=_KEPT)
        if code != 0:
            text = complaints.decode("utf-8", "replace").strip()
            raise SandboxError(f"`{self._program} {arguments[0]}` failed: {tail(text, _SAID)}")
        return said.decode("utf-8", "replace")

    def _environment(self) -> dict[str, str]:
        plan = self._plan
        # A file that builds `main` gives what it built this name, which must not be another's.
        image = None if plan.image is None or brings_image(plan.file()) else reference(plan.image)
        variables = {
            "CPUS": str(plan.limits.cpus or os.cpu_count() or 1),
            "MEMORY": f"{plan.limits.memory_mb}M" if plan.limits.memory_mb else "",
            "MAIN_IMAGE_NAME": image or f"{self._project}_{MAIN}",
            "PREBUILT_IMAGE_NAME": image or "",
            "CONTEXT_DIR": str(plan.directory),
            "TEST_DIR": "/tests",
        }
        for name in LOGS:
            word = "ARTIFACTS_PATH" if name == "artifacts" else f"{name.upper()}_LOGS_PATH"
            variables |= {f"HOST_{word}": str(self._work / name), f"ENV_{word}": f"/logs/{name}"}
        own = {name: os.environ[name] for name in _FORWARDED if name in os.environ}
        return {**own, **variables, **plan.variables, "DOCKER_HOST": f"unix://{self._socket}"}


def bounds(limits: Limits) -> dict[str, Any]:
    """The bounds of a service, in the words of a compose file."""
    found: dict[str, Any] = {}
    if limits.cpus is not None:
        found["cpus"] = limits.cpus
    if limits.memory_mb is not None:
        found["mem_limit"] = found["memswap_limit"] = limits.memory_mb * MIB
    if limits.pids is not None:
        found["pids_limit"] = limits.pids
    return found


def mounted(sources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mounts of the Engine's words in those of a compose file."""
    return [{"type": "bind", "source": each["Source"], "target": each["Target"], "read_only": True} for each in sources]
