"""PID 1 runs a program of the host, which may belong to the very user who is root inside: he shall not change it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ordinary_user import home_of_the_user, run_as_user

ATTACK = """
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
__attribute__((constructor)) static void attack(void) {
    int self = open("/proc/self/exe", O_RDONLY), changed = fchmod(self, 0777) == 0 ? 0 : errno;
    int written = open("/proc/self/exe", O_WRONLY) >= 0 ? 0 : errno;
    struct stat status;
    fstat(self, &status);
    printf("inode %lu chmod %d open %d\\n", (unsigned long)status.st_ino, changed, written);
    fflush(stdout);
    _exit(0);
}
"""

DRIVER = """
import asyncio, os, sys, sysconfig
from pathlib import Path
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.local import LocalProvider

async def main():
    async with LocalProvider(Path(sys.argv[1])) as provider:
        box = await provider.create(SandboxSpec())
        await box.write("/tmp/attack.so", Path(sys.argv[2]).read_bytes())
        await box.write("/tmp/script", b"#!/proc/self/exe\\n", 0o755)
        if sysconfig.get_config_var("Py_ENABLE_SHARED"):  # a Python that is a small program and a large library
            name, place = sysconfig.get_config_vars("INSTSONAME", "LIBDIR")
            await box.write(f"/tmp/{name}", Path(place, name).read_bytes())
        result = await box.run(["/tmp/script"], {"LD_PRELOAD": "/tmp/attack.so", "LD_LIBRARY_PATH": "/tmp"})
        print("own", os.stat(os.path.realpath(sys.executable)).st_ino, result.stdout, result.stderr)

asyncio.run(main())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed (apt-get install gcc)")
def test_an_interpreter_of_an_ordinary_user_cannot_be_changed_from_inside(tmp_path: Path) -> None:
    with home_of_the_user() as home:
        (tmp_path / "attack.c").write_text(ATTACK)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", home / "attack.so", tmp_path / "attack.c"], check=True)
        (home / "driver.py").write_text(DRIVER)
        subprocess.run([sys.executable, "-m", "venv", "--copies", "--without-pip", home / "venv"], check=True)
        program = home / "venv/bin/python"
        os.chown(program, 54321, 54321)
        packages = ":".join(path for path in sys.path if path)
        arguments = [str(program), str(home / "driver.py"), str(home / "data"), str(home / "attack.so")]
        done = run_as_user("env", f"PYTHONPATH={packages}", *arguments, home=home)
        assert done.returncode == 0, done.stderr
        words = done.stdout.split()
        said = dict(zip(words[::2], words[1::2], strict=False))
        assert said["inode"] == said["own"], done.stdout  # the attack did get hold of it
        assert (said["chmod"], int(said["open"]) > 0) == ("30", True), done.stdout  # a read-only file system
        assert program.stat().st_mode & 0o777 == 0o755
