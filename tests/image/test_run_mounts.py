"""RUN --mount: what a command sees, and that nothing of it stays."""

import itertools
from contextlib import suppress
from pathlib import Path

import pytest

from forkyard.errors import ConfigError, SandboxError
from forkyard.image import BuildError, BuildOptions, build
from forkyard.sandbox.local import LocalProvider
from tests.support.faults import FaultyProvider
from tests.support.images import said

LIST = "cd /; find . -path ./proc -prune -o -path ./sys -prune -o -path ./dev -prune -o -path ./usr -prune -o -print"
STATE = (
    f"{LIST} | sort | xargs stat -c '%n %F %a %u:%g %s'; cat /etc/passwd /w/kept; stat -c '%n %a %u:%g %Y' /w /w/sub"
)


def write(context: Path, *lines: str) -> None:
    made = "RUN mkdir -p /w/sub && echo kept > /w/kept && echo s > /w/sub/s && chmod 2750 /w && ln -s /w /link"
    (context / "Dockerfile").write_text("\n".join(["FROM host", made, *lines]) + "\n")


# a mount, what the command does with it, and what it says
SEEN = [
    ("type=tmpfs,target=/w", "ls -A /w; echo x > /w/x; stat -c %a /w", "1777\n"),
    ("type=tmpfs,target=/new/deep/er", "echo x > /new/deep/er/x; cat /new/deep/er/x", "x\n"),
    ("type=tmpfs,target=/link", "ls -A /link; touch /link/x; ls /w", "x\n"),
    ("type=cache,target=/w", "ls -A /w; echo x > /w/x; chmod 700 /w; rm -rf /w/x", ""),
    ("type=cache,target=/c,mode=0711", "stat -c '%a %u' /c; mkdir -p /c/d", "711 0\n"),
    ("type=bind,target=/w", "cat /w/f /w/dir/g; rm /w/f", "f\ng\n"),
    ("type=bind,source=f,target=/w/kept", "cat /w/kept; ls /w", "f\nkept\nsub\n"),
    ("type=bind,source=f,target=rel/f,rw", "cat rel/f; echo changed > rel/f", "f\n"),
    ("type=bind,source=dir,target=/w/sub", "ls /w/sub; ls /w", "g\nkept\nsub\n"),
    ("type=bind,from=host,source=/etc,target=/other", "test -s /other/passwd", ""),
    ("type=secret,id=key", "cat /run/secrets/key; stat -c ' %a' /run/secrets/key", "s3cr3t 400\n"),
    ("type=secret,id=key,target=/etc/passwd,mode=0444", "cat /etc/passwd", "s3cr3t"),
    ("type=secret,id=key,target=/w/k", "cat /w/k; rm /w/k", "s3cr3t"),
    ("type=secret,id=key,env=KEY", "echo $KEY; ls /run/secrets 2>&1 | wc -l", "s3cr3t\n1\n"),
    ("type=secret,id=other", "test ! -e /run/secrets", ""),
    ("type=cache,target=/a --mount=type=secret,id=key,target=/a/key", "cat /a/key", "s3cr3t"),
    ("type=bind,target=/a/b --mount=type=tmpfs,target=/a", "ls /a; ls /a/b", "b\nDockerfile\ndir\nf\n"),
]


@pytest.mark.parametrize(("options", "command", "told"), SEEN)
async def test_a_mount_is_seen_by_its_command_and_leaves_nothing(
    provider: LocalProvider, context: Path, options: str, command: str, told: str
) -> None:
    (context / "dir").mkdir()
    (context / "f").write_text("f\n")
    (context / "dir/g").write_text("g\n")
    asked = BuildOptions(secrets={"key": b"s3cr3t"})
    write(context)
    before = await said(provider, (await build(provider, context)).name, STATE)
    write(context, f"RUN --mount={options} {command}")
    after = await build(provider, context, options=asked)
    assert await said(provider, after.name, STATE) == before
    write(context, f"RUN --mount={options} ({command}); exit 3")
    with pytest.raises(BuildError) as caught:
        await build(provider, context, options=asked)
    assert caught.value.output == told.strip()
    assert await provider.sandboxes() == []


async def test_what_a_command_leaves_beside_a_mount_stays(provider: LocalProvider, context: Path) -> None:
    write(context, "RUN --mount=type=cache,target=/new/deep/cache echo x > /new/y && touch /new/deep/cache/z /w/z")
    image = await build(provider, context)
    assert (
        await said(provider, image.name, "find /new /w -type f | sort; ls /new")
        == "/new/y\n/w/kept\n/w/sub/s\n/w/z\ny\n"
    )


async def test_a_cache_is_found_again_by_other_builds(provider: LocalProvider, context: Path) -> None:
    for count in ("1", "2", "3"):
        write(
            context,
            f"RUN --mount=type=cache,id=shared,target=/c{count} "
            f"echo {count} >> /c{count}/log; cat /c{count}/log > /told",
        )
        image = await build(provider, context)
    assert (await said(provider, image.name, "cat /told")) == "1\n2\n3\n"
    write(context, "RUN --mount=type=cache,target=/c4 ls /c4 > /told")
    assert await said(provider, (await build(provider, context)).name, "cat /told") == ""


async def test_a_cache_can_begin_as_a_stage_has_it(provider: LocalProvider, context: Path) -> None:
    write(
        context,
        "FROM host",
        "RUN --mount=type=cache,target=/c,from=0,source=/w,sharing=locked ls /c > /told; rm /c/kept",
    )
    image = await build(provider, context)
    assert await said(provider, image.name, "cat /told; ls / | grep -c '^c$'; true") == "kept\nsub\n0\n"


async def test_a_secret_is_in_no_key_and_a_bind_is(provider: LocalProvider, context: Path) -> None:
    (context / "f").write_text("1")
    write(context, "RUN --mount=type=secret,id=k --mount=type=bind,source=f,target=/f wc -c /run/secrets/k /f > /told")
    first = await build(provider, context, options=BuildOptions(secrets={"k": b"one"}))
    assert (await build(provider, context, options=BuildOptions(secrets={"k": b"another"}))).ran == 0
    (context / "f").write_text("22")
    second = await build(provider, context, options=BuildOptions(secrets={"k": b"one"}))
    assert (first.ran, second.ran) == (2, 1)
    assert "s3cr3t" not in repr(BuildOptions(secrets={"k": b"s3cr3t"}))


async def test_a_process_left_running_cannot_bring_a_secret_back(provider: LocalProvider, context: Path) -> None:
    write(
        context,
        "RUN --mount=type=secret,id=k cp /run/secrets/k /dev/shm/k; "
        "(while :; do mkdir -p /run/secrets; cp /dev/shm/k /run/secrets/k; done) > /dev/null 2>&1 & sleep 0.1",
    )
    image = await build(provider, context, options=BuildOptions(secrets={"k": b"s3cr3t"}))
    assert await said(provider, image.name, "ls -d /run/secrets /dev/shm/k 2>/dev/null; true") == ""


# a mount that cannot be put there, and what is said of it
IMPOSSIBLE = [
    ("type=cache,target=/w/kept", "/w/kept is a file in the image, and the mount is a directory"),
    ("type=bind,source=f,target=/w", "/w is a directory in the image, and the mount is a file"),
    ("type=tmpfs,target=/w/kept/x", "/w/kept is a file in the image"),
    ("type=bind,from=host,source=/no,target=/x", "/no is not in the image"),
]


@pytest.mark.parametrize(("options", "complaint"), IMPOSSIBLE)
async def test_a_mount_that_is_not_possible_is_named(
    provider: LocalProvider, context: Path, options: str, complaint: str
) -> None:
    (context / "f").touch()
    write(context, f"RUN --mount={options} true")
    with pytest.raises((BuildError, ConfigError)) as caught:
        await build(provider, context)
    assert f"{context}/Dockerfile:3: " in str(caught.value)
    assert complaint in str(caught.value)


async def test_a_cache_that_could_not_be_saved_is_kept_as_it_was_and_the_build_says_so(
    provider: LocalProvider, context: Path
) -> None:
    fill = "RUN --mount=type=cache,target=/kept-cache echo {} >> /kept-cache/x"
    write(context, fill.format("one"))
    await build(provider, context)
    write(context, fill.format("two"))
    for number in itertools.count(1):
        faulty = FaultyProvider(provider, fail_at=number)
        with suppress(SandboxError):
            await build(faulty, context)
        if faulty.count < number:
            break
    write(context, "RUN --mount=type=cache,target=/kept-cache cp /kept-cache/x /seen")
    image = await build(provider, context)
    assert "one" in await said(provider, image.name, "cat /seen")
