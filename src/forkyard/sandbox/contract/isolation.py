"""What an isolated provider promises: the host and other sandboxes cannot be seen."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from forkyard.sandbox.contract.files import host_secret
from forkyard.sandbox.contract.promise import (
    PATIENCE,
    alive,
    eventually,
    expect,
    expect_alive,
    expect_equal,
    fresh,
    needs,
    new_mark,
    sh,
)
from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import Feature

VARIABLE = "FORKYARD_CONTRACT_SECRET"


@contextmanager
def _environment_variable(value: str) -> Iterator[None]:
    os.environ[VARIABLE] = value
    try:
        yield
    finally:
        del os.environ[VARIABLE]


async def check_no_host_environment_leaks(provider: Provider) -> None:
    """Variables of the calling process are not in the environment of commands, however they are started."""
    secret = uuid.uuid4().hex
    with _environment_variable(secret):
        async with fresh(provider) as box:
            for what, result in (
                ("env", await box.run(["env"], timeout=PATIENCE)),
                ("a script", await box.run("env", {"A": "1"}, timeout=PATIENCE)),
            ):
                expect(secret not in result.stdout, f"{what} should not show the caller's variables, it does")
            keys = {line.partition("=")[0] for line in result.stdout.splitlines()}
            expect("PATH" in keys and "A" in keys, f"PATH and A should be set, there is {sorted(keys)}")


@needs(Feature.ISOLATED)
async def check_host_processes_cannot_be_seen(provider: Provider) -> None:
    """No process of the host, nor its environment, can be seen from inside."""
    mark, secret = new_mark(), uuid.uuid4().hex
    with _environment_variable(secret):
        process = await asyncio.create_subprocess_exec("sleep", mark)
    try:
        async with fresh(provider) as box:
            expect(not await alive(box, mark), "a process of the host should not be seen, it is")
            seen = await box.run(f"cat /proc/[0-9]*/environ 2>/dev/null | grep -c {secret}", timeout=PATIENCE)
            expect_equal(seen.stdout, "0\n", "environments that hold a variable of a host process")
    finally:
        process.kill()
        await process.wait()


@needs(Feature.ISOLATED)
async def check_host_files_cannot_be_seen(provider: Provider) -> None:
    """A file of the host cannot be reached by path, nor through /proc."""
    async with host_secret() as secret, fresh(provider) as box:
        for path in (str(secret), f"/proc/1/root{secret}", f"/proc/self/root{secret}", f"/proc/1/cwd{secret}"):
            result = await box.run(["cat", path], timeout=PATIENCE)
            expect(b"host secret" not in result.stdout_bytes, f"{path} should not show the host's file, it does")
        await box.run(["sh", "-c", 'mkdir -p "$0" && echo x > "$0/new"', str(secret.parent)], timeout=PATIENCE)
        expect_equal([path.name for path in secret.parent.iterdir()], ["secret"], "the host's files")


@needs(Feature.ISOLATED)
async def check_two_sandboxes_cannot_see_each_other(provider: Provider) -> None:
    """Processes, files and shared memory of one sandbox do not exist in another."""
    mark = new_mark()
    async with fresh(provider) as one, fresh(provider) as two:
        await sh(one, f"sleep {mark} >/dev/null 2>&1 & echo secret > /tmp/{mark}; echo secret > /dev/shm/{mark}")
        await expect_alive(one, mark, "a process, seen from its own sandbox,")
        expect(not await alive(two, mark), "a process should not be seen in another sandbox, it is")
        found = await two.run(["ls", f"/tmp/{mark}", f"/dev/shm/{mark}"], timeout=PATIENCE)
        expect_equal(found.stdout, "", "files of the other sandbox")
        await sh(one, "ipcmk -M 4096 >/dev/null || :")
        expect_equal(await sh(two, "sed 1d /proc/sysvipc/shm || :"), "", "shared memory of the other sandbox")


@needs(Feature.ISOLATED, Feature.NO_NETWORK)
async def check_abstract_sockets_are_each_sandboxes_own(provider: Provider) -> None:
    """An abstract Unix socket of the host, or of another sandbox, does not exist in a sandbox."""
    name = f"forkyard-contract-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        async with fresh(provider) as one, fresh(provider) as two:
            expect_equal(await _abstract_sockets(one, name), 0, "abstract sockets of the host seen inside")
            await one.run(["sh", "-c", 'perl -MSocket -e "$0" "$1" >/dev/null 2>&1 &', LISTEN, name], timeout=PATIENCE)
            if (await one.run(["perl", "-MSocket", "-e", "1"], timeout=PATIENCE)).ok:

                async def listens() -> bool:
                    return await _abstract_sockets(one, name) == 1

                await eventually(listens, "an abstract socket should be seen in its own sandbox, it is not")
            expect_equal(await _abstract_sockets(two, name), 0, "abstract sockets of another sandbox seen inside")


LISTEN = 'socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, pack_sockaddr_un("\\0$ARGV[0]")); listen(S, 1); sleep 600'


async def _abstract_sockets(box: Sandbox, name: str) -> int:
    return int((await sh(box, f"cat /proc/net/unix 2>/dev/null | grep -c '@{name}' || :")).strip())
