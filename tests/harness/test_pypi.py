from __future__ import annotations

import pytest

from forkyard.errors import HarnessError
from forkyard.harness.pypi import Python, python_of
from forkyard.sandbox import Sandbox


async def test_the_python_of_an_image_says_what_fits_it(sandbox: Sandbox) -> None:
    python = await python_of(sandbox, "tool")
    said = await sandbox.run(["python3", "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"])
    assert python.tag == said.stdout.strip()
    assert python.executable == "/usr/bin/python3"
    assert (python.libc, python.libc_version[0]) == ("glibc", 2)


def test_wheels_for_older_c_libraries_fit_too() -> None:
    python = Python("/usr/bin/python3", (3, 12), "x86_64", "glibc", (2, 19))
    newest = [f"manylinux_2_{minor}_x86_64" for minor in (19, 18, 17)]
    assert list(python.platforms) == [*newest, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]


def test_musl_has_wheels_of_its_own() -> None:
    assert Python("/usr/bin/python3", (3, 12), "aarch64", "musl", (1, 2)).platforms == (
        "musllinux_1_2_aarch64",
        "musllinux_1_1_aarch64",
    )


async def test_an_image_without_python_is_told(bare_sandbox: Sandbox) -> None:
    with pytest.raises(HarnessError, match="tool needs Python 3.10 or newer in the image: python3: exit code 127"):
        await python_of(bare_sandbox, "tool")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('["cpython", [3, 9], "glibc", "2.31", "/p"]', "and it has cpython 3.9"),
        ('["pypy", [3, 10], "glibc", "2.31", "/p"]', "and it has pypy 3.10"),
        ('["cpython", [3]]', "and its python3 cannot say what it is"),
        ("hello", "and its python3 cannot say what it is"),
        ('["cpython", [3, 12], "glibc", {}, "/p"]', "and its python3 cannot say what it is"),
    ],
)
async def test_a_python_that_does_not_fit_is_told(bare_sandbox: Sandbox, said: str, told: str) -> None:
    await bare_sandbox.write("/bin/python3", f"#!/bin/sh\necho '{said}'\n".encode(), 0o755)
    with pytest.raises(HarnessError, match=f"tool needs Python 3.10 or newer in the image, {told}"):
        await python_of(bare_sandbox, "tool")
