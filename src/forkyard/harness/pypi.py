"""Programs of PyPI for the Python of an image: fetched as wheels by the host's pip, unpacked inside a sandbox."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

from forkyard.errors import HarnessError
from forkyard.harness.equipment import checked
from forkyard.harness.packages import on_its_way, packages_directory, settle, used
from forkyard.programs import run
from forkyard.sandbox import Sandbox
from forkyard.sandbox.archive import pack
from forkyard.values import printable

OLDEST = (3, 10)
_SHOWN = 2000
_SECONDS = 900.0
_ASK = """\
import json, os, platform, sys
libc, version = platform.libc_ver()
print(json.dumps([sys.implementation.name, list(sys.version_info[:2]), libc if libc == "glibc" else "musl", version,
                  sys.executable]))
"""
# pip on the host takes the markers of requirements for those of its own Python, which is newer.
_BACKPORTS = {(3, 10): ("exceptiongroup", "tomli", "async-timeout")}
_UNPACK = """\
import os, shutil, sys, zipfile
wheels, place = sys.argv[1:]
for name in sorted(os.listdir(wheels)):
    with zipfile.ZipFile(os.path.join(wheels, name)) as wheel:
        wheel.extractall(place)
for name in os.listdir(place):
    if name.endswith(".data"):
        for kind in ("purelib", "platlib"):
            source = os.path.join(place, name, kind)
            if os.path.isdir(source):
                shutil.copytree(source, place, dirs_exist_ok=True)
        shutil.rmtree(os.path.join(place, name))
shutil.rmtree(wheels)
"""


@dataclass(frozen=True, slots=True)
class Python:
    """Where it is, and what wheels must fit: the version of CPython, the processor, the C library and its version."""

    executable: str

    version: tuple[int, int]
    machine: str
    libc: str
    libc_version: tuple[int, int]

    @property
    def tag(self) -> str:
        """ "cp311"."""
        return "cp{}{}".format(*self.version)

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platform tags of wheels that run on it, newest first."""
        major, minor = self.libc_version
        family, oldest, older = ("manylinux", 17, ("manylinux2014",)) if self.libc == "glibc" else ("musllinux", 1, ())
        newer = (f"{family}_{major}_{number}" for number in range(minor, oldest - 1, -1))
        names = (*newer, *older, *(("manylinux2010", "manylinux1") if older and self.machine == "x86_64" else ()))
        return tuple(f"{name}_{self.machine}" for name in names)


async def python_of(sandbox: Sandbox, program: str) -> Python:
    """The Python of an image. Raises HarnessError when it is none that `program` runs on."""
    oldest = ".".join(map(str, OLDEST))
    needs = f"{program} needs Python {oldest} or newer in the image"
    said = await checked(sandbox, ["python3", "-c", _ASK], needs)
    try:
        implementation, (major, minor), libc, version, executable = json.loads(said)
        numbers = re.match(r"([0-9]{1,2})\.([0-9]{1,3})", version)
        libc_version = (int(numbers[1]), int(numbers[2])) if numbers else (1, 2)
        found = Python(str(executable), (int(major), int(minor)), platform.machine(), str(libc), libc_version)
    except (ValueError, TypeError):
        raise HarnessError(f"{needs}, and its python3 cannot say what it is") from None
    if implementation != "cpython" or found.version < OLDEST:
        raise HarnessError(f"{needs}, and it has {printable(str(implementation))} {major}.{minor}")
    return found


async def push_program(sandbox: Sandbox, name: str, version: str, place: str, *, without: Sequence[str] = ()) -> Python:
    """Put a program and what it requires, but for `without`, into the directory `place` of a sandbox.

    Returns the Python it is for. Raises HarnessError for an image without a fitting Python, and when the packages
    cannot be had.
    """
    python = await python_of(sandbox, name)
    wheels = await program_wheels(name, version, python, without)
    pushed = f"{place}.wheels"
    await sandbox.push(await asyncio.to_thread(pack, wheels), pushed)
    argv = [python.executable, "-c", _UNPACK, pushed, place]
    await checked(sandbox, argv, f"{name} {version} cannot be unpacked by the image's Python")
    return python


async def program_wheels(name: str, version: str, python: Python, without: Sequence[str] = ()) -> Path:
    """The directory with the wheels of a program: those fetched earlier, or fetched now. Raises HarnessError."""
    fits = f"{python.tag}-{python.libc}{'.'.join(map(str, python.libc_version))}-{python.machine}"
    target = packages_directory() / f"pypi-{name}-{version}-{fits}"
    if target.is_dir():
        return used(target)
    with on_its_way(target) as here:
        wheels = here / "wheels"
        await _pip(python, wheels, ["--no-deps", f"{name}=={version}"])
        required = await asyncio.to_thread(_required, next(wheels.glob("*.whl")), without)
        await _pip(python, wheels, [*required, *_BACKPORTS.get(python.version, ())])
        settle(wheels, target)
    return target


def _required(wheel: Path, without: Sequence[str]) -> list[str]:
    """What a wheel requires of others, extras aside."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        said = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    wanted = (each for each in said if "extra ==" not in each)
    return [each for each in wanted if re.split(r"[^A-Za-z0-9._-]", each, maxsplit=1)[0] not in without]


async def _pip(python: Python, directory: Path, words: Sequence[str]) -> None:
    """Fetch wheels that fit `python`. Raises HarnessError with what pip says."""
    fitting = ["--only-binary=:all:", "--implementation", "cp", "--abi", python.tag]
    fitting += ["--python-version", ".".join(map(str, python.version))]
    for name in python.platforms:
        fitting += ["--platform", name]
    argv = [*_pip_command(), "download", "--quiet", "--no-input", "--dest", str(directory), *fitting, *words]
    try:
        code, _, complaints = await run(argv, seconds=_SECONDS, keep=_SHOWN)
    except TimeoutError:
        raise HarnessError(f"pip took longer than {_SECONDS:g} s to fetch {words[-1]}") from None
    if code != 0:
        said = printable(complaints.decode("utf-8", "replace")).strip()
        raise HarnessError(f"pip cannot fetch {words[-1]} for {python.tag} on {python.platforms[0]}: {said}")


def _pip_command() -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if (found := shutil.which("pip3") or shutil.which("pip")) is not None:
        return [found]
    raise HarnessError("fetching packages of PyPI needs pip on this machine: `python3 -m ensurepip`, or install it")
