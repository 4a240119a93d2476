"""Builds of several stages, of options, and of what images hand on to each other."""

import platform
from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.image import BuildError, BuildOptions, base_images, build, parse_dockerfile
from forkyard.image.stages import needed, this_platform
from forkyard.sandbox import Healthcheck, ImageConfig, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from tests.support.images import said


def write(context: Path, text: str) -> None:
    (context / "Dockerfile").write_text(text)


async def test_a_stage_takes_files_from_others(provider: LocalProvider, context: Path) -> None:
    (context / "f").write_text("context")
    write(
        context,
        """
FROM host AS maker
RUN mkdir -p /out/sub && echo one > /out/sub/one && echo two > /out/two && ln -s two /out/link && chmod 750 /out/sub
WORKDIR /left/at/the/end
FROM host AS unused
RUN false
FROM host
COPY --from=maker /out /all
COPY --from=0 /out/t* /out/link /some/
COPY --from=MAKER --exclude=sub out/ /less
COPY --from=maker /left /left
COPY f /
""",
    )
    image = await build(provider, context)
    assert image.ran == 6, "the stage that nobody needs was not built"
    found = await said(
        provider,
        image.name,
        "cd /; find all some less left | sort; readlink all/link; stat -c %a all/sub; cat some/link",
    )
    assert (
        found.split()
        == (
            "all all/link all/sub all/sub/one all/two left left/at left/at/the left/at/the/end less less/link less/two"
            " some some/link some/two two 750 two"
        ).split()
    )
    assert (await build(provider, context)).ran == 0


@pytest.mark.usefixtures("many_users")
async def test_files_of_other_stages_keep_their_owners_unless_given_one(provider: LocalProvider, context: Path) -> None:
    write(
        context,
        """
FROM host AS a
RUN mkdir /d && echo > /d/f && chown -R 5:6 /d && chmod 2711 /d
FROM scratch
COPY --from=a /d /kept
COPY --from=a --chown=7 --chmod=u=rwX,go=rX /d /given
COPY --from=a /d/f /one
""",
    )
    image = await build(provider, context)
    sandbox = await provider.create(SandboxSpec(image=image.name))
    target = await provider.create(SandboxSpec())
    await target.push(await sandbox.pull("/"), "/copy")
    told = (await target.run("cd /copy; stat -c '%n %a %u:%g' kept kept/f given given/f one")).stdout
    await target.close()
    await sandbox.close()
    assert told.splitlines() == ["kept 755 0:0", "kept/f 644 5:6", "given 755 7:7", "given/f 644 7:7", "one 644 5:6"]


async def test_a_stage_goes_on_from_another(provider: LocalProvider, context: Path) -> None:
    write(
        context,
        """
ARG WHO=nobody
FROM host AS base
ARG WHO
ENV GREETING="hello $WHO"
SHELL ["/bin/sh", "-ec"]
WORKDIR /base
FROM base AS next
RUN echo "$GREETING, $WHO" > told; pwd >> told
FROM next
CMD serve
""",
    )
    image = await build(provider, context, options=BuildOptions(arguments={"WHO": "world"}))
    assert await said(provider, image.name, "cat /base/told") == "hello world, world\n/base\n"
    assert image.config.cmd == ("/bin/sh", "-ec", "serve")
    base = await build(provider, context, options=BuildOptions(target="base"))
    assert base.config.env["GREETING"] == "hello nobody"
    assert base.ran == 0


async def test_a_change_in_a_stage_reaches_those_that_copy_from_it(provider: LocalProvider, context: Path) -> None:
    text = "FROM host AS a\nRUN echo {} > /f\nFROM host\nRUN true\nCOPY --from=a /f /f\n"
    write(context, text.format("one"))
    first = await build(provider, context)
    write(context, text.format("two"))
    second = await build(provider, context)
    assert (first.ran, second.ran) == (3, 2)
    assert await said(provider, second.name, "cat /f") == "two\n"


async def test_files_come_from_any_image(provider: LocalProvider, context: Path) -> None:
    sandbox = await provider.create(SandboxSpec(image="scratch"))
    await sandbox.write("/data/f", b"of the image")
    await sandbox.stop()
    await provider.commit(sandbox, "my/data:1", ImageConfig())
    await sandbox.close()
    write(context, "FROM host\nCOPY --from=my/data:1 /data /data\n")
    image = await build(provider, context)
    assert await said(provider, image.name, "cat /data/f") == "of the image"
    write(context, "FROM host\nCOPY --from=my/data:1 /nowhere /data\n")
    with pytest.raises(BuildError, match="Dockerfile:2: .*nowhere is not in the image"):
        await build(provider, context)
    write(context, "FROM host\nCOPY --from=my/data:1 /no* /data/\n")
    with pytest.raises(
        BuildError, match=r"Dockerfile:2: .*nothing in the image it is .* matches /no\*: correct the pattern"
    ):
        await build(provider, context)
    write(context, "FROM host\nCOPY --from=my/data:1 --exclude=f /data/f /\n")
    with pytest.raises(BuildError, match=r"Dockerfile:2: .*its --exclude leaves out everything it would copy: delete"):
        await build(provider, context)
    assert await provider.sandboxes() == []


async def test_a_fresh_build_runs_everything_again(provider: LocalProvider, context: Path) -> None:
    write(
        context, "FROM host AS a\nRUN date +%N > /stamp\nFROM host\nCOPY --from=a /stamp /s\nCOPY --from=a /stamp /t\n"
    )
    first = await build(provider, context)
    stamp = await said(provider, first.name, "cat /s")
    again = await build(provider, context, options=BuildOptions(fresh=True))
    assert (again.ran, again.name) == (3, first.name)
    assert await said(provider, again.name, "cat /s") != stamp
    assert await said(provider, again.name, "cmp /s /t && echo same") == "same\n"
    assert (await build(provider, context)).created == again.created


async def test_an_onbuild_is_carried_out_by_who_builds_upon_it(provider: LocalProvider, context: Path) -> None:
    (context / "f").write_text("mine")
    write(context, "FROM host\nONBUILD COPY f /f\nONBUILD RUN cat /f > /told\nRUN true\n")
    base = await build(provider, context)
    assert base.config.onbuild == ("COPY f /f", "RUN cat /f > /told")
    sandbox = await provider.create(SandboxSpec(image=base.name))
    await sandbox.stop()
    await provider.commit(sandbox, "trigger", base.config)
    await sandbox.close()
    write(context, "FROM trigger\nENV A=1\n")
    image = await build(provider, context)
    assert image.ran == 2
    assert image.config.onbuild == ()
    assert await said(provider, image.name, "cat /told") == "mine"
    (context / "f").unlink()
    with pytest.raises(ConfigError, match="Dockerfile:1: f is not in the build context"):
        await build(provider, context)


async def test_the_configuration_is_kept(provider: LocalProvider, context: Path) -> None:
    write(
        context,
        """
FROM host
ARG V=1
LABEL a=$V "b c"='d'
EXPOSE 80 53/udp 7000-7001
VOLUME /data /x
STOPSIGNAL SIGINT
SHELL ["/bin/bash", "-c"]
HEALTHCHECK --interval=5s CMD true
ENTRYPOINT go
""",
    )
    config = (await build(provider, context)).config
    assert config.labels == {"a": "1", "b c": "d"}
    assert config.ports == ("53/udp", "7000/tcp", "7001/tcp", "80/tcp")
    assert config.volumes == ("/data", "/x")
    assert (config.stop_signal, config.shell) == ("SIGINT", ("/bin/bash", "-c"))
    assert config.healthcheck == Healthcheck(("CMD-SHELL", "true"), 5.0)
    assert config.entrypoint == ("/bin/bash", "-c", "go")
    async with LocalProvider(home=provider.store.home) as other:
        (image,) = [image for image in await other.images() if image.name.startswith("build:")]
        assert image.config == config


async def test_a_dockerfile_elsewhere_has_its_own_ignore_file(provider: LocalProvider, context: Path) -> None:
    (context / "a").write_text("a")
    (context / "b").write_text("b")
    (context / ".dockerignore").write_text("a")
    file = context / "docker/My.Dockerfile"
    file.parent.mkdir()
    file.write_text("FROM host\nCOPY . /c/\n")
    image = await build(provider, context, options=BuildOptions(file=file))
    assert await said(provider, image.name, "ls /c") == "b\ndocker\n"
    file.with_name("My.Dockerfile.dockerignore").write_text("b\ndocker\n.dockerignore")
    image = await build(provider, context, options=BuildOptions(file=file))
    assert await said(provider, image.name, "ls -A /c") == "a\n"


async def test_shells_and_heredocs_run(provider: LocalProvider, context: Path) -> None:
    write(
        context,
        """# syntax=docker/dockerfile:1
FROM host
ARG WHO=me
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN <<EOF
cd /
echo "for $WHO" > one
[[ -e one ]]
EOF
RUN <<-'EOF'
	#!/usr/bin/env python3
	import os
	open("/two", "w").write(os.environ["WHO"])
	EOF
RUN cat <<A > /three && cat <<'B' >> /three
$WHO
A
$WHO
B
COPY <<hello.txt <<"raw" /files/
Hello ${WHO:-you}
hello.txt
$WHO
raw
COPY --chmod=700 <<EOF /run.sh
#!/bin/sh
EOF
""",
    )
    image = await build(provider, context)
    assert await said(
        provider,
        image.name,
        "cd /; cat one two three files/hello.txt files/raw; stat -c %a files/raw run.sh; ls /dev/shm",
    ) == ("for me\nmeme\n$WHO\nHello me\n$WHO\n644\n700\n")


async def test_a_proxy_is_given_to_commands_and_is_part_of_nothing(provider: LocalProvider, context: Path) -> None:
    write(context, "FROM host\nRUN echo $http_proxy > /told\n")
    image = await build(provider, context, options=BuildOptions(arguments={"http_proxy": "http://a"}))
    assert await said(provider, image.name, "cat /told") == "http://a\n"
    assert "http_proxy" not in image.config.env
    assert (await build(provider, context, options=BuildOptions(arguments={"http_proxy": "http://b"}))).ran == 0


async def test_steps_are_announced_and_one_out_of_time_is_named(provider: LocalProvider, context: Path) -> None:
    write(context, "FROM host AS first\nRUN true\nFROM host\nRUN echo a\nRUN echo b; sleep 600\n")
    steps: list[str] = []
    await build(provider, context, BuildOptions(target="first"))  # what follows finds the engine at work
    with pytest.raises(BuildError) as caught:
        await build(provider, context, options=BuildOptions(timeout=3.0, on_step=steps.append))
    assert "Dockerfile:5: step 2 of 2: RUN echo b; sleep 600: the build took longer than" in str(caught.value)
    assert caught.value.output == "b"
    assert steps == ["step 1 of 2: RUN echo a", "step 2 of 2: RUN echo b; sleep 600"]


# a Dockerfile, what was asked, and what is said of it
REFUSED: list[tuple[str, BuildOptions, str]] = [
    ("FROM host", BuildOptions(target="x"), "Dockerfile: there is no stage 'x': it has 0"),
    ("FROM host AS a\nFROM host AS b", BuildOptions(target="5"), "there is no stage '5': it has a, b"),
    (
        "FROM host\nARG NAME",
        BuildOptions(arguments={"NAM": "1"}),
        "no ARG takes the build argument NAM: did you mean NAME",
    ),
    ("FROM host", BuildOptions(arguments={"X": "1"}), "declare it with ARG X"),
    ("FROM host\nCOPY --from=3 a b", BuildOptions(), "Dockerfile:2: there is no stage 3"),
    ("FROM host\nCOPY --from=0 a b", BuildOptions(), "Dockerfile:2: the stage 0 does not come before this one"),
    (
        "FROM host\nCOPY --from=b a b\nFROM host AS b\nCOPY --from=0 x y",
        BuildOptions(),
        "Dockerfile:2: the stage b does",
    ),
    ("FROM --platform=linux/s390x host", BuildOptions(), "this machine builds linux/"),
    ("FROM host\nRUN --mount=type=secret,id=k,required=true x", BuildOptions(), "give it with --secret id=k,src=FILE"),
    (
        "FROM host\nRUN --mount=type=bind,source=no,target=/x x",
        BuildOptions(),
        "Dockerfile:2: no is not in the build context",
    ),
    ("FROM host\nRUN --mount=type=cache,target=/ x", BuildOptions(), "would hide the image"),
    ("FROM host\nEXPOSE x", BuildOptions(), "EXPOSE x is no port"),
    ("FROM host\nEXPOSE 5-3", BuildOptions(), "EXPOSE 5-3 is no port"),
    ("FROM host\nCOPY http://x/y /", BuildOptions(), "write ADD"),
    ("FROM host\nADD https://x/y.git /", BuildOptions(), "clone it before the build"),
    ("FROM host\nADD --checksum=md5:x http://x/y /", BuildOptions(), "write sha256:"),
    ("FROM host\nADD --checksum=sha256:" + "0" * 64 + " Dockerfile /", BuildOptions(), "give each its own ADD"),
]


@pytest.mark.parametrize(("text", "options", "complaint"), REFUSED)
async def test_what_cannot_be_built_is_refused_before_anything_runs(
    provider: LocalProvider, context: Path, text: str, options: BuildOptions, complaint: str
) -> None:
    write(context, text)
    with pytest.raises(ConfigError) as caught:
        await build(provider, context, options=options)
    assert complaint in str(caught.value)


def test_only_what_the_target_needs_is_needed() -> None:
    text = b"""ARG T=12
FROM debian:$T AS a
FROM alpine AS b
FROM a AS c
COPY --from=tools /x /x
FROM b AS d
RUN --mount=from=c,target=/x true
"""
    dockerfile = parse_dockerfile(text, "Dockerfile")
    assert base_images(dockerfile) == ("alpine", "tools", "debian:12")
    assert base_images(dockerfile, BuildOptions(base="host")) == ("host", "tools")
    wanted = needed(dockerfile, BuildOptions(target="C", arguments={"T": "13"}))
    assert [stage.name for stage in wanted.stages] == ["a", "c"]
    assert wanted.images == {"tools": "Dockerfile:5", "debian:13": "Dockerfile:2"}


def test_this_machine_may_be_named_as_the_platform() -> None:
    text = "FROM --platform=$BUILDPLATFORM a\nFROM --platform=$TARGETPLATFORM b\n"
    assert base_images(parse_dockerfile(text.encode(), "Dockerfile")) == ("b",)
    assert this_platform().startswith("linux/")
    assert platform.machine() not in ("x86_64", "aarch64") or this_platform() in ("linux/amd64", "linux/arm64")


async def test_hard_links_are_taken_along_and_whole_when_the_first_name_is_not(
    provider: LocalProvider, context: Path
) -> None:
    write(
        context,
        """
FROM host AS maker
RUN mkdir -p /out && echo content > /out/a && ln /out/a /out/b && ln /out/a /out/c
FROM host
COPY --from=maker /out /all
COPY --from=maker --exclude=a /out /less
""",
    )
    image = await build(provider, context)
    assert await said(provider, image.name, "stat -c %h /all/a; ls /less; cat /less/b /less/c") == (
        "3\nb\nc\ncontent\ncontent\n"
    )
