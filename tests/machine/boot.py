"""Start a virtual machine, have it run a script of `inside` over this checkout's package, and hear what it says.

The machine is emulated, whatever this one could do faster: so the same kernel runs everywhere, and as slowly.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.machine.packages import Parts, compile_tree

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "src/forkyard"
INSIDE = Path(__file__).parent / "inside"
MARK = "said: "  # what is before each line of a script
KINDS = {
    "x86_64": ["-M", "pc", "-cpu", "qemu64", "-append", "console=ttyS0 {}"],
    "aarch64": ["-M", "virt", "-cpu", "cortex-a57", "-append", "console=ttyAMA0 {}"],
}
KERNEL = "panic=-1 quiet loglevel=2 nowatchdog rcupdate.rcu_cpu_stall_suppress=1 mitigations=off {}"
PACKAGED = {"x86_64": "qemu-system-x86", "aarch64": "qemu-system-arm"}


@dataclass(frozen=True, slots=True)
class Said:
    """What became of one check inside."""

    name: str
    error: str
    seconds: float


def emulator(machine: str) -> str:
    """The program that is such a machine; skips the test where it is missing."""
    program = shutil.which(f"qemu-system-{machine}")
    if program is None:
        pytest.skip(f"qemu-system-{machine} is missing (apt-get install {PACKAGED[machine]})")
    return program


def boot(machine: str, parts: Parts, work: Path, script: str, seconds: float) -> list[Said]:
    """What the checks of a script said; AssertionError with the machine's last words when it did not reach its end."""
    brought = work / "forkyard.tar"
    _pack(brought, work / "package")
    command = [
        *(emulator(machine), "-accel", "tcg", "-m", "640", "-smp", "1", "-nographic", "-no-reboot", "-nic", "none"),
        *("-kernel", str(parts.kernel), "-initrd", str(parts.initramfs)),
        *(word.format(KERNEL.format(f"script={script}")) for word in KINDS[machine]),
    ]
    for number, path in enumerate((parts.disk, brought)):
        command += ["-drive", f"file={path},if=none,id=d{number},format=raw,snapshot=on"]
        command += ["-device", f"virtio-blk-pci,drive=d{number}"]
    console = work / "console"
    with console.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**os.environ, "TMPDIR": str(work)}
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
            process.wait()
    return _said(console.read_text(errors="replace"))


def _pack(archive: Path, copy: Path) -> None:
    """The package, without what is of no use to a machine without libraries, and the scripts."""
    shutil.copytree(PACKAGE / "sandbox", copy / "forkyard/sandbox", ignore=shutil.ignore_patterns("__pycache__"))
    for module in PACKAGE.glob("*.py"):
        shutil.copy(module, copy / "forkyard")
    shutil.copytree(INSIDE, copy / INSIDE.relative_to(CHECKOUT), ignore=shutil.ignore_patterns("__pycache__"))
    compile_tree(copy)
    with tarfile.open(archive, "w") as file:
        file.add(copy, ".")


def _said(console: str) -> list[Said]:
    lines = [line.partition(MARK)[2] for line in console.splitlines() if MARK in line]
    rows = [json.loads(line) for line in lines]
    assert rows and rows[-1] == "end", f"the machine did not come to its end; it said last:\n{console[-4000:]}"
    return [Said(**row) for row in rows[:-1]]
