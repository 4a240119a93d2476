from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.forkyard import Forkyard
from tests.image.oci.parts import running_registry


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "own-home"


def root_archive(path: Path) -> Path:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        info = tarfile.TarInfo("etc/motd")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"hello"))
    path.write_bytes(data.getvalue())
    return path


def names(forkyard: Forkyard, *options: str) -> list[str]:
    lines = forkyard("image", "ls", *options).stdout.splitlines()[1:]
    return sorted(line.split()[0] for line in lines)


def test_an_image_goes_out_and_comes_back(forkyard: Forkyard, registry: str, tmp_path: Path) -> None:
    name = f"{registry}/tiny:1"
    assert forkyard("image", "import", root_archive(tmp_path / "root.tar"), "tiny:1", "--env", "A=1").returncode == 0
    pushed = forkyard("image", "push", "tiny:1", name)
    assert pushed.returncode == 0 and pushed.stdout.startswith("sha256:")
    assert forkyard("image", "pull", name).stdout == f"{name}\n"
    assert names(forkyard) == [name, "tiny:1"]
    assert [shown for shown in names(forkyard, "--all") if shown.startswith("layer:")] != []
    exported = forkyard("image", "export", name, "saved.tar")
    assert exported.returncode == 0 and exported.stdout.startswith("sha256:")
    assert forkyard("image", "rm", name, "tiny:1").returncode == 0
    assert names(forkyard, "--all") == []
    pruned = forkyard("image", "prune")
    assert (pruned.returncode, pruned.stdout) == (0, "") and "nothing is unneeded" in pruned.stderr
    assert forkyard("image", "import", "saved.tar", "again").stdout == "again\n"
    assert forkyard("sandbox", "create", "box", "--image", "again").returncode == 0
    with tarfile.open(tmp_path / "saved.tar") as archive:
        content = archive.extractfile("manifest.json")
        assert content is not None
        assert json.load(content)[0]["RepoTags"] == [name]


def test_what_cannot_be_pulled_or_made_is_told(forkyard: Forkyard, registry: str) -> None:
    for arguments, said in (
        (("pull", f"{registry}/none"), f"{registry} has no {registry}/none:latest"),
        (("pull", "debian:12"), "docker.io (by 127.0.0.1:9) cannot be reached"),
        (("pull", "debian:12"), "FORKYARD_MIRRORS=docker.io=URL"),
        (
            ("pull", "debian:12"),
            "`forkyard image import ARCHIVE debian:12`, make it of Debian's packages by `forkyard image bootstrap deb",
        ),
        (("pull", "No Reference"), "is no reference of an image"),
        (("push", "none"), "there is no image 'none'"),
        (("export", "none", "file"), "there is no image 'none'"),
        (("bootstrap", "fedora:40"), "only a Debian can be made of packages"),
    ):
        done = forkyard("image", *arguments)
        assert done.returncode == 1, done
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_missing_program_for_a_bootstrap_is_named(
    forkyard: Forkyard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = forkyard("image", "bootstrap", "debian:bookworm-slim")
    assert done.returncode == 1
    assert "apt-get install mmdebstrap" in done.stderr


def test_the_images_are_those_of_the_provider_that_is_named(forkyard: Forkyard, tmp_path: Path) -> None:
    for command in (
        ("import", root_archive(tmp_path / "root.tar"), "tiny:1"),
        ("build", tmp_path, "-t", "tiny:2"),
        ("pull", "tiny:1"),
        ("push", "tiny:1"),
        ("export", "tiny:1", "saved.tar"),
        ("bootstrap", "debian:stable"),
        ("ls",),
        ("rm", "tiny:1"),
        ("prune",),
    ):
        done = forkyard("image", *command, "-e", "subprocess")
        assert done.returncode == 1 and "the provider subprocess keeps no images" in done.stderr, command
    named = ("-e", "forkyard.sandbox.local:LocalProvider")
    assert forkyard("image", "import", tmp_path / "root.tar", "tiny:1", *named).stdout == "tiny:1\n"
    assert names(forkyard, *named) == names(forkyard) == ["tiny:1"]
