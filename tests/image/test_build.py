import asyncio
import os
from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.image import BuildError, BuildOptions, build
from forkyard.image.context import Context
from forkyard.image.place import copy_files, find_owner
from forkyard.image.plan import CopyFiles
from forkyard.image.trees import of_source
from forkyard.sandbox import PUBLIC, ImageConfig, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from tests.support.images import said


def write(context: Path, *lines: str) -> None:
    (context / "Dockerfile").write_text("\n".join(["FROM host", *lines]) + "\n")


@pytest.mark.usefixtures("many_users")
async def test_a_dockerfile_becomes_an_image(provider: LocalProvider, context: Path) -> None:
    (context / "data.txt").write_text("hello\n")
    write(
        context,
        "ARG GREETING=good",
        "ENV LANGUAGE=english",
        'RUN echo "$GREETING morning in $LANGUAGE" > /etc/greeting',
        "WORKDIR /app",
        "COPY data.txt .",
        'RUN ["/bin/cp", "data.txt", "copy.txt"]',
        "USER nobody",
        'ENTRYPOINT ["/bin/false"]',
        'CMD ["serve"]',
        "LABEL ignored=yes",
    )
    image = await build(provider, context)
    assert image.ran == 3
    assert image.name.startswith("build:")
    assert await provider.image(image.name) is not None
    config = image.config
    assert (config.workdir, config.user) == ("/app", "nobody")
    assert (config.entrypoint, config.cmd) == (("/bin/false",), ("serve",))
    assert config.env["LANGUAGE"] == "english"
    assert "GREETING" not in config.env
    # the entrypoint is on record only: the sandbox lives
    assert await said(provider, image.name, "cat /etc/greeting; pwd; ls; cat *.txt; id -un") == (
        "good morning in english\n/app\ncopy.txt\ndata.txt\nhello\nhello\nnobody\n"
    )
    assert await provider.sandboxes() == []


@pytest.mark.usefixtures("many_users")
async def test_commands_run_as_user_in_workdir_with_home_and_arguments(provider: LocalProvider, context: Path) -> None:
    write(
        context,
        "RUN id -un > /who; pwd >> /who",
        "RUN echo 'builder:x:1234:1234::/home/builder:/bin/sh' >> /etc/passwd && echo 'builder:x:1234:' >> /etc/group",
        "WORKDIR /srv/made",
        "USER builder",
        "WORKDIR made/by/builder",
        "ARG A=1",
        'RUN test -z "$(cat)" && echo $(id -u):$(id -g) $PWD $HOME $A > out',
        "USER 77:88",
        "WORKDIR /tmp",
        "RUN id -u > ids; id -g >> ids",
        "USER root",
    )
    image = await build(provider, context)
    told = await said(
        provider,
        image.name,
        "cat /who /srv/made/made/by/builder/out /tmp/ids; stat -c '%u %a' /srv/made /srv/made/made",
    )
    assert told == ("root\n/\n1234:1234 /srv/made/made/by/builder /home/builder 1\n77\n88\n0 755\n1234 755\n")


async def test_what_was_built_is_found_again(provider: LocalProvider, context: Path) -> None:
    (context / "data").write_text("one")
    write(context, "RUN date +%N > /stamp", "COPY data /data", "RUN date +%N > /stamp2", "WORKDIR /end")
    first = await build(provider, context)
    again = await build(provider, context)
    assert (again.name, again.created, again.ran) == (first.name, first.created, 0)

    os.utime(context / "data", (1, 1))
    (context / "not copied").write_text("x")
    assert (await build(provider, context)).name == first.name

    (context / "data").write_text("two")
    changed = await build(provider, context)
    assert changed.name != first.name
    assert changed.ran == 2, "the first RUN is found, the COPY and what follows are not"
    assert await said(provider, changed.name, "cat /data") == "two"
    assert await said(provider, first.name, "cat /data") == "one"
    assert await said(provider, first.name, "cat /stamp") == await said(provider, changed.name, "cat /stamp")
    assert await said(provider, first.name, "cat /stamp2") != await said(provider, changed.name, "cat /stamp2")


async def test_another_process_finds_it_too(provider: LocalProvider, context: Path) -> None:
    write(context, "RUN date +%N > /stamp")
    first = await build(provider, context)
    async with LocalProvider(home=provider.store.home) as other:
        assert (await build(other, context)).created == first.created


@pytest.mark.usefixtures("many_users")
async def test_metadata_costs_nothing(provider: LocalProvider, context: Path) -> None:
    write(context, "ENV A=1", "USER nobody", "ENTRYPOINT x", "ARG B=2", "EXPOSE 1")
    image = await build(provider, context)
    assert image.ran == 0
    assert not [info.name for info in await provider.images() if info.name.startswith("cache:")]
    assert await said(provider, image.name, "id -un; echo $A $B") == "nobody\n1\n"


async def test_builds_at_the_same_time_do_each_step_once(provider: LocalProvider, context: Path) -> None:
    write(context, "RUN date +%N > /stamp", "RUN date +%N > /stamp2")
    other = context.parent / "other"
    other.mkdir()
    write(other, "RUN date +%N > /stamp", "RUN true")
    built = await asyncio.gather(*(build(provider, directory) for directory in [context, other] * 3))
    assert sum(image.ran for image in built) == 3
    assert len({image.name for image in built}) == 2
    stamps = {await said(provider, image.name, "cat /stamp") for image in built}
    assert len(stamps) == 1


async def test_a_missing_image_is_refused_with_the_remedies(provider: LocalProvider, context: Path) -> None:
    (context / "Dockerfile").write_text("# top\nARG V=12\nFROM localhost:1/debian:$V\nRUN true\n")
    with pytest.raises(ConfigError) as caught:
        await build(provider, context)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{context}/Dockerfile:3: there is no image 'localhost:1/debian:12'")
    assert "forkyard image import" in problem
    assert "--base host" in problem


async def test_another_base_takes_the_place_of_from(provider: LocalProvider, context: Path) -> None:
    (context / "Dockerfile").write_text("FROM debian:bookworm-slim\nRUN echo x > /x\n")
    image = await build(provider, context, BuildOptions(base="host"))
    assert await said(provider, image.name, "cat /x") == "x\n"
    with pytest.raises(ConfigError, match="^there is no image 'none'"):
        await build(provider, context, BuildOptions(base="none"))


@pytest.mark.usefixtures("many_users")
async def test_an_image_is_found_by_the_name_it_was_given(provider: LocalProvider, context: Path) -> None:
    sandbox = await provider.create(SandboxSpec())
    await sandbox.write("/mark", b"first")
    await sandbox.stop()
    config = ImageConfig(env={"E": "1", "PATH": "/usr/bin:/bin"}, workdir="/not/there", user="nobody")
    await provider.commit(sandbox, "my/base:1", config)
    (context / "Dockerfile").write_text("ARG TAG=1\nFROM my/base:${TAG}\nRUN echo $E $PATH $PWD $(id -un) > /tmp/out\n")
    first = await build(provider, context)
    assert await said(provider, first.name, "cat /tmp/out /mark") == "1 /usr/bin:/bin /not/there nobody\nfirst"

    await sandbox.start()
    await sandbox.write("/mark", b"second")
    await sandbox.stop()
    await provider.commit(sandbox, "my/base:1", config)
    second = await build(provider, context)
    assert second.ran == 1, "an image replaced under its name is another base"
    assert await said(provider, second.name, "cat /mark") == "second"
    await sandbox.close()


async def test_scratch_holds_what_is_copied_and_nothing_else(provider: LocalProvider, context: Path) -> None:
    (context / "a").mkdir()
    (context / "a/b").write_text("b")
    (context / "Dockerfile").write_text("FROM scratch\nWORKDIR /w\nCOPY a x\n")
    image = await build(provider, context)
    sandbox = await provider.create(SandboxSpec(image=image.name))
    assert await sandbox.read("/w/x/b") == b"b"
    await sandbox.close()
    (context / "Dockerfile").write_text("FROM scratch\nRUN true\n")
    with pytest.raises(BuildError, match="Dockerfile:2: step 1 of 1: RUN true: exit code 127"):
        await build(provider, context)


async def test_a_failing_command_is_shown_with_its_place_and_output(provider: LocalProvider, context: Path) -> None:
    write(
        context,
        "RUN true",
        "",
        "RUN echo to stdout; \\",
        "  echo to $(id -un) >&2; printf '\\033[31m'; exit 3",
        "RUN true",
    )
    with pytest.raises(BuildError) as caught:
        await build(provider, context)
    error = caught.value
    assert error.where == f"{context}/Dockerfile:4"
    assert str(error).startswith(f"{context}/Dockerfile:4: step 2 of 3: RUN echo to stdout;   echo to")
    assert "exit code 3" in str(error)
    assert "to stdout" in error.output
    assert "to root" in error.output
    assert "\x1b" not in str(error)
    assert await provider.sandboxes() == []
    # what went well is kept, so that the mended file goes on from there
    write(context, "RUN true", "", "RUN echo mended")
    assert (await build(provider, context)).ran == 1


async def test_only_the_end_of_much_output_is_shown(provider: LocalProvider, context: Path) -> None:
    write(context, "RUN seq 100000; false")
    with pytest.raises(BuildError) as caught:
        await build(provider, context)
    assert caught.value.output.endswith("99999\n100000")
    assert len(str(caught.value)) < 5000


# lines that cannot be carried out, and what is said of it
IMPOSSIBLE = [
    (["USER nosuch", "RUN true"], "Dockerfile:3: step 1 of 1: RUN true: .*nosuch"),
    (["RUN kill -9 $$"], "Dockerfile:2: .*ended by signal 9"),
    (['RUN ["/no/such"]'], "Dockerfile:2: .*exit code 127"),
    (["WORKDIR /etc/passwd"], "Dockerfile:2: WORKDIR /etc/passwd: /etc/passwd is a file"),
    (["WORKDIR /etc/passwd/x", "RUN true"], "Dockerfile:2: WORKDIR /etc/passwd/x: .* is a file"),
    (["USER nosuch", "WORKDIR /new"], "Dockerfile:3: WORKDIR /new: 'nosuch' is not in the image's /etc/passwd"),
    (["COPY . /etc/passwd"], "Dockerfile:2: .*/etc/passwd is a file"),
    (["COPY Dockerfile /etc/passwd/"], "Dockerfile:2: .*/etc/passwd is a file"),
    (["COPY Dockerfile /etc/passwd/x"], "Dockerfile:2: .*/etc/passwd.* is a file"),
    (["COPY * /one"], "Dockerfile:2: .*2 files cannot all become /one: end the destination with a slash"),
    (["COPY --chown=nosuch . /x/"], "Dockerfile:2: .*'nosuch' is not in the image's /etc/passwd"),
    (["COPY --chown=0:nosuch . /x/"], "Dockerfile:2: .*'nosuch' is not in the image's /etc/group"),
    (["COPY --chown=99999999999 . /x/"], "Dockerfile:2: .*not a user or group number"),
]


@pytest.mark.usefixtures("many_users")
async def test_a_step_that_is_not_possible_is_named(provider: LocalProvider, context: Path) -> None:
    (context / "second").touch()
    for lines, complaint in IMPOSSIBLE:
        write(context, *lines)
        with pytest.raises(BuildError, match=complaint):
            await build(provider, context)
    assert await provider.sandboxes() == []


async def test_nothing_runs_when_the_dockerfile_or_its_context_is_wrong(provider: LocalProvider, context: Path) -> None:
    write(context, "RUN true", "COPY nowhere .")
    with pytest.raises(ConfigError, match="Dockerfile:3: nowhere is not in the build context"):
        await build(provider, context)
    with pytest.raises(ConfigError, match="cannot be read"):
        await build(provider, context / "none")
    assert [info.name for info in await provider.images() if info.name.startswith("cache:")] == []


async def test_the_time_limit_covers_the_whole_build(provider: LocalProvider, context: Path) -> None:
    write(context, "RUN true")
    await build(provider, context)  # what follows finds the engine at work
    write(context, "RUN echo begun; sleep 600 & wait")
    with pytest.raises(BuildError, match="longer than its time limit") as caught:
        await build(provider, context, BuildOptions(timeout=3.0))
    assert caught.value.output == "begun"
    assert await provider.sandboxes() == []


async def test_the_time_limit_covers_what_is_no_command(provider: LocalProvider, context: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    write(context, "RUN true")
    await build(provider, context)
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    host = f"localhost:{server.sockets[0].getsockname()[1]}"
    async with server:
        for lines, named in (
            ((f"FROM {host}/base:1",), f"Dockerfile:1: the pull of {host}/base:1"),
            (("FROM host", f"ADD http://{host}/f /"), f"Dockerfile:2: ADD http://{host}/f /"),
        ):
            (context / "Dockerfile").write_text("\n".join(lines))
            with pytest.raises(BuildError, match=f"{named}: .*longer than its time limit"):
                await build(provider, context, BuildOptions(timeout=2.0))
    assert await provider.sandboxes() == []


async def test_a_cancelled_build_leaves_no_sandbox(provider: LocalProvider, context: Path) -> None:
    write(context, "RUN sleep 600")
    task = asyncio.create_task(build(provider, context))
    while not [info for info in await provider.sandboxes() if info.state == "running"]:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await provider.sandboxes() == []


# a COPY into an image that has the directory /d with a file /d/old, what is then found beneath /d and /new
COPIES = [
    ("COPY f /new", "/new"),
    ("COPY f /new/", "/new/f"),
    ("COPY f /new/g", "/new/g"),
    ("COPY f /d", "/d/f"),
    ("COPY f /d/old", ""),
    ("COPY f /d/a/b/c", "/d/a/b/c"),
    ("COPY t /new", "/new/u/v /new/w"),
    ("COPY t/ /new/", "/new/u/v /new/w"),
    ("COPY t /d", "/d/u/v /d/w"),
    ("COPY t f /new/", "/new/f /new/u/v /new/w"),
    ("COPY t/* /new/", "/new/v /new/w"),
    ("COPY *.x /d", "/d/1.x /d/2.x"),
    ("COPY none* f /new/", "/new/f"),
    ("COPY link /new/", "/new/link"),
    ('COPY ["with blank", "/new/and blank"]', "/new/and blank"),
]


async def test_copy_puts_files_where_docker_does(provider: LocalProvider, context: Path) -> None:
    for name in ("f", "1.x", "2.x", "with blank", "t/u/v", "t/w"):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(name)
    (context / "link").symlink_to("f")
    found = {}
    for line, _ in COPIES:
        write(context, "RUN mkdir /d && echo old > /d/old", line)
        image = await build(provider, context)
        files = (await said(provider, image.name, "find /d /new -type f 2>&1 | sort; true")).splitlines()
        found[line] = " ".join(name for name in files if name.startswith("/") and name != "/d/old")
    assert found == dict(COPIES)


@pytest.mark.usefixtures("many_users")
async def test_copy_keeps_modes_and_links_and_sets_owners(provider: LocalProvider, context: Path) -> None:
    tree = context / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/run").write_text("#!/bin/sh\n")
    (tree / "sub/run").chmod(0o750)
    (tree / "sub").chmod(0o711)
    tree.chmod(0o700)
    (tree / "link").symlink_to("/nowhere/at all")
    write(
        context,
        "RUN echo 'u:x:1001:1002::/:/bin/sh' >> /etc/passwd; echo 'g:x:1003:' >> /etc/group; mkdir -m 1777 /there",
        "COPY tree /plain/t",
        "COPY --chown=u tree /named/t",
        "COPY --chown=u:g tree/sub/run /named/g/run",
        "COPY --chown=1001 tree/sub/run /number",
        "COPY --chown=:g tree/sub/run /group",
        "COPY --chmod=604 tree/sub/run /mode",
        "COPY --chown=u tree /there",
    )
    image = await build(provider, context)
    lines = (
        await said(
            provider,
            image.name,
            "stat -c '%n %a %u:%g' /plain /plain/t /plain/t/sub /plain/t/sub/run "
            "/named /named/t /named/t/link /named/t/sub/run /named/g /named/g/run "
            "/number /group /mode /there /there/sub",
        )
    ).splitlines()
    assert lines == [
        "/plain 755 0:0",
        "/plain/t 755 0:0",
        "/plain/t/sub 711 0:0",
        "/plain/t/sub/run 750 0:0",
        "/named 755 1001:1002",
        "/named/t 755 1001:1002",
        "/named/t/link 777 1001:1002",
        "/named/t/sub/run 750 1001:1002",
        "/named/g 755 1001:1003",
        "/named/g/run 750 1001:1003",
        "/number 750 1001:1001",
        "/group 750 0:1003",
        "/mode 604 0:0",
        "/there 1777 0:0",
        "/there/sub 711 1001:1002",
    ]
    assert await said(provider, image.name, "readlink /plain/t/link") == "/nowhere/at all\n"


async def test_names_that_are_no_text_are_copied(provider: LocalProvider, context: Path) -> None:
    name = os.fsdecode(b"raw\xff" + b"n" * 200)
    (context / "t").mkdir()
    (context / "t" / name).write_text("x")
    write(context, "COPY t /t")
    image = await build(provider, context)
    assert await said(provider, image.name, "cd /t; cat raw*; ls | wc -c") == "x205\n"


async def test_a_file_that_changes_between_its_digest_and_its_copy_is_noticed(
    provider: LocalProvider, context: Path
) -> None:
    (context / "f").write_text("one")
    sources = Context(context).take(["f"])
    copy = CopyFiles(sources, "/f", "", None)
    (context / "f").write_text("two")
    sandbox = await provider.create(SandboxSpec(image="scratch"))
    with pytest.raises(Exception, match="changed while the image was built"):
        await copy_files(sandbox, copy, [of_source(source) for source in sources])
    assert await find_owner(sandbox, "5:6") == (5, 6)
    await sandbox.close()


async def test_commands_reach_the_network_of_the_build_and_leave_its_name_servers_behind(
    provider: LocalProvider, context: Path
) -> None:
    write(
        context,
        "RUN ls /sys/class/net > /seen; env | grep -i proxy >> /seen; echo changed > /etc/resolv.conf; sleep 1000 &",
        'RUN ["touch", "/quiet"]',
    )
    before = await said(provider, "host", "cat /etc/resolv.conf || echo none")
    image = await build(provider, context, BuildOptions(network=PUBLIC))
    seen = (await said(provider, image.name, "cat /seen")).split()
    assert "tap0" in seen or any(line.startswith("https_proxy=") for line in seen)
    if "tap0" in seen:
        assert await said(provider, image.name, "cat /etc/resolv.conf || echo none") == before
    assert (await said(provider, image.name, "ls /sys/class/net")).split() == ["lo"]
