"""The first process of a virtual machine: mounts what a system has mounted, runs a script, and ends it all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MOUNTS = (
    ("proc", "/proc", "defaults"),
    ("sysfs", "/sys", "defaults"),
    ("cgroup2", "/sys/fs/cgroup", "nsdelegate,memory_recursiveprot"),  # as systemd has it
    ("devpts", "/dev/pts", "defaults"),
    ("tmpfs", "/run", "defaults"),
)


def run(*command: str) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)


def main() -> None:
    os.environ.update(HOME="/root", PATH="/usr/sbin:/usr/bin:/sbin:/bin", LANG="C.UTF-8", PYTHONPATH="/forkyard")
    Path("/dev/pts").mkdir()
    for kind, target, options in MOUNTS:
        run("busybox", "mount", "-t", kind, "-o", options, kind, target)
    words = Path("/proc/cmdline").read_text().split()
    script = next(word.partition("=")[2] for word in words if word.startswith("script="))
    run(sys.executable, "-m", f"tests.machine.inside.{script}")
    print('\nsaid: "end"', flush=True)


try:
    main()
finally:
    run("busybox", "poweroff", "-f")
