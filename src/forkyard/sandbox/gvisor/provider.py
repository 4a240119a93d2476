"""The gvisor provider: the sandboxes of the `local` one, each around a kernel of its own that is an ordinary process.

The store, the images, the disks and the spawner are those of `local`: a fork is the same mount. In the place of its
PID 1 stands a guard that runs gVisor's runsc, so that a guest's system calls never reach the machine's kernel. Its
network is the sandbox's own as with `local`: what gVisor sends for its guests goes to a namespace that holds nothing.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.sandbox.common import default_home
from forkyard.sandbox.findings import Finding
from forkyard.sandbox.local.provider import YardProvider
from forkyard.sandbox.local.yard import Yard
from forkyard.sandbox.values import NETWORKED, Feature

_GUARD = (
    "import sys; sys.path += [sys.argv[2], {here!r}]; from guard import guard; control = int(sys.argv[1]); "
    "guard.main(control, guard.spawner.configuration(control), {runsc!r}, {ports!r})"
)
_OLDEST = 20240729  # in older ones `ls` of coreutils 9.1 fails, and under load processes die for nothing
_HOW = (
    "the package runsc of Debian 13 or of a newer Ubuntu (`apt-get install runsc`), or a release from "
    "https://gvisor.dev/docs/user_guide/install"
)
_PROCESSES = 4096  # of the host for one sandbox: gVisor's own, runsc's, and one or two for each of a guest
_FEATURES = frozenset(
    {
        Feature.ISOLATED,
        Feature.NO_NETWORK,
        Feature.IMAGES,
        Feature.FORK,
        Feature.FORK_RUNNING,
        Feature.PAUSE,
        Feature.SURVIVES,
        Feature.CHANGES,
        Feature.MOUNTS,
        Feature.USERS,
        Feature.PROCESSES,
        Feature.LIMIT_FILES,
        Feature.LIMIT_DISK,
        Feature.LIMIT_OUTPUT,
    }
)
_BEYOND = Finding(
    "beyond gVisor",
    False,
    "terminals (gVisor's have neither a name nor /dev/tty inside), and bounds on memory, processes and processor time",
    "-e local or -e docker has them; `--unbounded` plays tasks without the bounds that are lacking",
)


@dataclass(frozen=True, slots=True)
class Runsc:
    """The program, and the release it says it is."""

    path: str
    version: str


def find_runsc() -> Runsc:
    """The machine's runsc. ConfigError says how to get one that works, or that this machine cannot have it."""
    if platform.machine() != "x86_64":
        raise ConfigError(f"the gvisor provider is made for x86_64, this machine is {platform.machine()}")
    found = shutil.which("runsc")
    if found is None:
        raise ConfigError(f"the gvisor provider needs gVisor's program runsc, which is not in PATH: take {_HOW}")
    path = os.path.realpath(found)
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, env={})
    version = done.stdout.partition("\n")[0].removeprefix("runsc version ")
    date = re.search(r"\d{8}", version)
    if date is None or int(date[0]) < _OLDEST:
        raise ConfigError(
            f"the gvisor provider needs a runsc of {_OLDEST} or newer, {path} says it is {version!r}: take {_HOW}"
        )
    return Runsc(path, version)


class GvisorProvider(YardProvider):
    """Sandboxes on this machine, in gVisor. `home` defaults to FORKYARD_HOME. ConfigError where there is no runsc.

    Without `ports` no guest has any way out, not even to a model, and gVisor may make no socket on this machine: the
    harder wall, behind which a fork takes two thirds of the processor time.
    """

    name = "gvisor"

    def __init__(self, home: Path | None = None, ports: bool = True) -> None:
        self._runsc = find_runsc()
        self._ports = ports
        program = _GUARD.format(here=str(Path(__file__).parent), runsc=self._runsc.path, ports=ports)
        super().__init__(Yard(home or default_home(), program, _PROCESSES))
        if not self.yard.many_users:
            raise ConfigError(
                "the gvisor provider needs more than one user id: run as root, or install uidmap and add a range "
                "for this user to /etc/subuid and /etc/subgid"
            )

    @property
    def features(self) -> frozenset[Feature]:
        """What holds for every sandbox."""
        return _FEATURES | NETWORKED if self._ports else _FEATURES

    async def findings(self) -> list[Finding]:
        """What `forkyard doctor` says of this machine."""
        found = Finding("runsc", True, f"{self._runsc.version} ({self._runsc.path})", needed=True)
        others = [other for other in await super().findings() if other.needed or other.name == "slirp4netns"]
        return [found, *others, _BEYOND]
