"""What an image says of its processes goes out and comes back whole, by every way there is."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from forkyard.image import ImageSourceError, build, export, import_archive, pull, push
from forkyard.image.oci.config import read_settings, written_settings
from forkyard.sandbox import Healthcheck, ImageConfig, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from tests.image.oci.parts import made, member, publish, tar

FULL = ImageConfig(
    env={"A": "1", "B": "x=y"},
    workdir="/srv",
    user="5:6",
    entrypoint=("/bin/entry", "--flag"),
    cmd=("serve",),
    labels={"org.example.note": "kept", "empty": ""},
    ports=("53/udp", "80/tcp"),
    volumes=("/data",),
    stop_signal="SIGQUIT",
    shell=("/bin/bash", "-ec"),
    healthcheck=Healthcheck(("CMD-SHELL", "true"), 30.0, 1.5, 0.25, 5.0, 3),
    onbuild=("RUN echo built", "COPY . /srv"),
)


async def made_image(provider: LocalProvider) -> None:
    sandbox = await provider.create(SandboxSpec(image="scratch"))
    await sandbox.write("/srv/file", b"content")
    await sandbox.stop()
    await provider.commit(sandbox, "full", FULL)
    await sandbox.close()


def test_every_field_of_a_configuration_is_told_and_read() -> None:
    plain = ImageConfig()
    for field in fields(ImageConfig):
        assert getattr(FULL, field.name) != getattr(plain, field.name), f"{field.name} is to be tried, too"
        alone = ImageConfig(**{field.name: getattr(FULL, field.name)})
        assert read_settings(written_settings(alone), "it") == alone
    assert read_settings(written_settings(FULL), "it") == FULL
    assert read_settings(written_settings(plain), "it") == plain


async def test_an_exported_configuration_comes_back_whole(provider: LocalProvider, tmp_path: Path) -> None:
    await made_image(provider)
    await export(provider, "full", tmp_path / "full.tar")
    image = await import_archive(provider, tmp_path / "full.tar", "again", ImageConfig())
    assert image.config == FULL


async def test_a_pushed_configuration_comes_back_whole(provider: LocalProvider, registry: str) -> None:
    await made_image(provider)
    await push(provider, "full", f"{registry}/full:1")
    assert (await pull(provider, f"{registry}/full:1")).config == FULL


async def test_triggers_and_shell_of_a_pulled_base_count(provider: LocalProvider, registry: str, context: Path) -> None:
    said = {"OnBuild": ["LABEL from=trigger", "CMD told"], "Shell": ["/bin/other", "-c"]}
    await publish(f"{registry}/trigger:1", made(tar(member("etc/motd", b"hello")), config=said))
    (context / "Dockerfile").write_text(f"FROM {registry}/trigger:1\n")
    image = await build(provider, context)
    assert image.config.labels == {"from": "trigger"}
    assert image.config.cmd == ("/bin/other", "-c", "told")
    assert image.config.onbuild == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Env", {"A": "1"}),
        ("Env", ["A=\0"]),
        ("WorkingDir", 5),
        ("User", "a\0b"),
        ("Labels", ["a"]),
        ("Labels", {"a": 1}),
        ("ExposedPorts", ["80/tcp"]),
        ("Volumes", "/data"),
        ("Shell", [1]),
        ("OnBuild", {"RUN": "x"}),
        ("Healthcheck", ["CMD"]),
        ("Healthcheck", {"Test": ["NONE"], "Interval": -1}),
        ("Healthcheck", {"Test": ["NONE"], "Retries": "many"}),
        ("Healthcheck", {"Test": ["NONE"], "Timeout": 10**400}),
    ],
)
def test_a_key_that_holds_something_else_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ImageSourceError, match=f"the configuration of it has {key} that is no "):
        read_settings({key: value}, "it")
