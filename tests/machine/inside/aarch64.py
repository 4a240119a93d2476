"""What depends on the kind of machine: numbers of system calls, the filter and its calling convention, layouts."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from pathlib import Path

from forkyard.sandbox import Feature, Limits, Mount, Sandbox, SandboxSpec, StandsApart, Terminal
from forkyard.sandbox.inside import syscalls
from forkyard.sandbox.inside.rootfs import CAPABILITIES
from forkyard.sandbox.local import LocalProvider
from tests.machine.inside import limits
from tests.machine.inside.telling import try_all

MACHINE = os.uname().machine
CALL = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
for call in sys.argv[1:]:
    number, *arguments = map(int, call.split(","))
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, [*arguments, *[0] * (6 - len(arguments))]))
    print(result, ctypes.get_errno())
"""
PROGRAMS = """
import concurrent.futures, hashlib, mmap, os, select, socket, sqlite3, subprocess, tempfile, threading, time
assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    assert sum(pool.map(len, ["ab"] * 8)) == 16
if os.fork() == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
assert server.accept()[0].send(b"x") == 1 and client.recv(1) == b"x"
base = sqlite3.connect("/tmp/base")
base.execute("create table t (x)")
base.commit()
os.symlink("/etc/passwd", "/tmp/link")
os.rename("/tmp/link", "/tmp/moved")
os.setxattr("/tmp/base", "user.a", b"b")
assert os.getxattr("/tmp/base", "user.a") == b"b"
os.posix_fallocate(os.open("/tmp/room", os.O_CREAT | os.O_RDWR), 0, 100)
select.epoll().poll(0)
os.eventfd(0)
os.memfd_create("x")
os.sched_getaffinity(0)
os.nice(1)
assert len(os.getrandom(4)) == 4 and time.monotonic() > 0
print("ran")
"""
# mov r7, #20 (getpid); svc #0; mov r0, #0; mov r7, #1 (exit); svc #0: as a 32-bit program of ARM has them.
OLD_CODE = struct.pack("<5I", 0xE3A07014, 0xEF000000, 0xE3A00000, 0xE3A07001, 0xEF000000)
AT = 0x10000
OLD_HEAD = b"\x7fELF\x01\x01\x01" + bytes(9)
OLD_HEAD += struct.pack("<HHIIIIIHHHHHH", 2, 40, 1, AT + 84, 52, 0, 0x05000000, 52, 32, 1, 0, 0, 0)
OLD_PROGRAM = OLD_HEAD + struct.pack("<8I", 1, 0, AT, AT, 104, 104, 5, 0x1000) + OLD_CODE
REACH = """
while ! [ -s /run/verifier ]; do sleep 0.1; done
read pid < /run/verifier
kill -CONT $pid
ls /tests /proc/$pid/root/tests
cat /proc/$pid/environ
"""
NOT_TRIED = {"exit", "exit_group", "rt_sigreturn", "restart_syscall"}  # those that do not return
LAST = 450  # the last call of Linux 6.1
# What a kernel may have switched off, keys of pages, which not every processor has, and an operation no futex has.
MAY_LACK = {"memfd_secret", "pkey_alloc", "pkey_free", "pkey_mprotect", "futex"}
WAYS_OUT = (
    "python3 -c 'import socket; socket.socket(40)'",
    "busybox mount -t tmpfs none /mnt",
    "busybox mount -o bind / /mnt",
    "busybox unshare -U true",
    "busybox unshare -m true",
    "busybox mknod /tmp/disk b 254 0",
    "echo 1 > /proc/sys/kernel/panic",
    "echo c > /proc/sysrq-trigger",
    "chroot /proc/1/root true",
    "cat /proc/1/environ /proc/1/mem",
    "ls -l /proc/1/fd/",
    "readlink /proc/1/exe",
    "busybox hostname elsewhere",
    "busybox dmesg",
    "date -s 2000-01-01",
)


async def called(box: Sandbox, *calls: tuple[int, ...]) -> list[tuple[int, int]]:
    """What system calls return, and their errors."""
    result = await box.run(["python3", "-c", CALL, *(",".join(map(str, call)) for call in calls)])
    assert result.ok, result
    rows = [line.split() for line in result.stdout.splitlines()]
    return [(int(value), int(error)) for value, error in rows]


async def a_sandbox_is_forked_and_keeps_its_files(provider: LocalProvider) -> None:
    box = await provider.create(SandboxSpec())
    assert (await box.run("echo $(uname -m) $(id -u); echo one > /srv/file")).stdout == f"{MACHINE} 0\n"
    await box.run("ln -s /srv/file /srv/link")
    assert await box.read("/srv/link") == b"one\n"
    running = await box.fork()
    await running.write("/srv/file", b"two\n")
    await box.stop()
    stopped = await box.fork()
    assert (await running.read("/srv/file"), await stopped.read("/srv/file")) == (b"two\n", b"one\n")
    archive = await stopped.pull("/srv")
    await running.push(archive, "/opt")
    assert (await running.run("cat /opt/link /opt/file")).stdout == "two\none\n"
    assert {change.path for change in await running.changes()} >= {"/srv/file"}
    for one in (running, stopped, box):
        await one.close()


async def the_root_inside_is_nobody_outside(provider: LocalProvider) -> None:
    box = await provider.create(SandboxSpec())
    live = Path(f"/proc/{limits.pid_of(box)}/status").read_text()
    told = {line.partition(":")[0]: line.partition(":")[2].split() for line in live.splitlines()}
    assert told["Uid"] == ["1500000000"] * 4
    assert told["Seccomp"] == ["2"] and told["NoNewPrivs"] == ["1"]
    mask = sum(1 << number for number in CAPABILITIES)
    assert {int(told[name][0], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {mask}
    status = (await box.run("cat /proc/self/status", user="33")).stdout
    assert "Seccomp:\t2\n" in status and "Uid:\t33\t33\t33\t33\n" in status
    assert set((await box.run("ls -A / /root")).stdout.split()) <= set(
        "/: /root: bin boot dev etc home lib lib64 media mnt opt proc root run sbin srv sys tmp usr var".split()
    )
    await box.close()


async def ordinary_programs_run(provider: LocalProvider) -> None:
    box = await provider.create(SandboxSpec())
    result = await box.run(["python3", "-c", PROGRAMS])
    assert result.stdout == "ran\n", result
    process = await box.spawn(["bash", "-c", "tty; read x; echo got $x"], terminal=Terminal())
    await process.write(b"it\n")
    written = b"".join([piece async for _, piece in process.output()])
    assert b"/dev/pts/0" in written and b"got it" in written, written
    assert (await process.wait()).ok
    await box.close()


async def every_call_gets_the_answer_of_its_table(provider: LocalProvider) -> None:
    box = await provider.create(SandboxSpec())
    refused = sorted(syscalls.refused(MACHINE).values())
    assert await called(box, *((number,) for number in refused)) == [(-1, errno.EPERM)] * len(refused)
    tables = (syscalls.allowed, syscalls.refused, syscalls.checked)
    known = {number for table in tables for number in table(MACHINE).values()}
    unknown = [number for number in range(600) if number not in known]
    answers = await called(box, *((number,) for number in unknown))
    assert answers == [(-1, errno.ENOSYS)] * len(unknown), dict(zip(unknown, answers, strict=True))
    await box.close()


async def every_call_the_table_allows_reaches_the_kernel(provider: LocalProvider) -> None:
    """Each with arguments that no call takes, so that the kernel's own refusal is seen, or its lack of the call."""
    box = await provider.create(SandboxSpec())
    numbers = {name: number for name, number in syscalls.allowed(MACHINE).items() if name not in NOT_TRIED}
    answers = await called(box, *((number, *[-1] * 6) for number in numbers.values()))
    for (name, number), answer in zip(numbers.items(), answers, strict=True):
        assert answer != (-1, errno.ENOSYS) or name in MAY_LACK or number > LAST, name
        assert answer != (-1, errno.EPERM) or name == "setsid", name  # for who leads a session already
    await box.close()


async def some_calls_depend_on_their_first_argument(provider: LocalProvider) -> None:
    box = await provider.create(SandboxSpec())
    number = syscalls.checked(MACHINE)
    refused: list[tuple[int, ...]]
    refused = [(number["clone"], flag | 17) for flag in (0x10000000, 0x20000, 0x20000000, 0x2000000, 0x40000000)]
    refused += [(number["prlimit64"], 1, 7), (number["personality"], 0x0400000)]
    families = [(number["socket"], 17, 3), (number["socket"], 38, 5), (number["socketpair"], 30, 1)]
    hidden = [(one,) for one in syscalls.hidden(MACHINE).values()]
    answers = await called(box, *refused, *families, *hidden)
    wanted = [(-1, errno.EPERM)] * len(refused) + [(-1, errno.EAFNOSUPPORT)] * len(families)
    assert answers == [*wanted, *[(-1, errno.ENOSYS)] * len(hidden)], answers
    (made, _), (told, _) = await called(box, (number["socket"], 1, 1), (number["personality"], 0xFFFFFFFF))
    assert made > 2 and told == 0
    await box.close()


async def another_calling_convention_ends_the_process(provider: LocalProvider) -> None:
    outside = Path("/tmp/old")
    outside.write_bytes(OLD_PROGRAM)
    outside.chmod(0o755)
    assert await (await asyncio.create_subprocess_exec(outside)).wait() == 0  # so it is one
    box = await provider.create(SandboxSpec())
    await box.write("/tmp/old", OLD_PROGRAM, 0o755)
    result = await box.run(["/tmp/old"])
    assert result.signal == 31, result  # SIGSYS
    await box.close()


async def a_way_out_is_refused(provider: LocalProvider) -> None:
    box = await provider.create(SandboxSpec())
    for attack in WAYS_OUT:
        result = await box.run(attack)
        assert not result.ok and "not found" not in result.stderr, (attack, result)
    assert (await box.run("cat /proc/sys/user/max_user_namespaces")).stdout == "0\n"
    assert (await box.run("cat /proc/kallsyms /proc/kcore /proc/timer_list 2>/dev/null")).stdout == ""
    await box.close()


async def a_directory_of_the_host_is_mounted_with_its_owners_shifted(provider: LocalProvider) -> None:
    source = Path("/root/mounted")
    source.mkdir()
    for read_only in (False, True):
        box = await provider.create(SandboxSpec(mounts=(Mount(source, "/mnt/here", read_only),)))
        result = await box.run("echo written > /mnt/here/file")
        assert result.ok is not read_only, result
        await box.close()
    assert ((source / "file").read_text(), (source / "file").stat().st_uid) == ("written\n", 0)


async def the_loopback_inside_is_served_from_outside(provider: LocalProvider) -> None:
    box = await provider.create(SandboxSpec())
    listener = await box.listen(8080)
    asking = asyncio.ensure_future(box.run(["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080; cat <&3"]))
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    connection, _ = await loop.sock_accept(listener)
    await loop.sock_sendall(connection, b"hello")
    connection.close()
    assert (await asking).stdout == "hello"
    listener.close()
    await box.close()


async def a_verifier_stands_apart(provider: LocalProvider) -> None:
    box = await provider.create(SandboxSpec(limits=Limits(memory_mb=64)))
    assert isinstance(box, StandsApart)
    await box.run("sleep 12345 >/dev/null 2>&1 & echo $! > /run/agent")
    apart = await box.apart(("/tests",))
    assert apart is not None
    await apart.write("/tests/secret", b"hidden\n")
    process = await apart.spawn("echo $$ > /run/verifier; read x; cat /tests/secret")
    reached = await box.run(REACH)
    assert "not permitted" in reached.stderr and "secret" not in reached.stdout and not reached.ok, reached
    members = limits.said(limits.group_of(limits.pid_of(box)), "cgroup.procs").split()
    assert len(members) >= 4, members  # PID 1 and the agent's, and what stands apart with its command
    await process.write(b"go\n")
    written = b"".join([piece async for _, piece in process.output()])
    assert (written, (await process.wait()).ok) == (b"hidden\n", True)
    assert (await apart.run("kill $(cat /run/agent)")).ok
    await apart.close()
    await box.close()


async def limits_are_kept(provider: LocalProvider) -> None:
    assert {Feature.LIMIT_CPU, Feature.LIMIT_MEMORY, Feature.LIMIT_PIDS} <= provider.features
    box = await provider.create(SandboxSpec(limits=Limits(memory_mb=24, cpus=1, pids=30, disk_mb=20)))
    assert (await box.run(limits.HOG)).ended_by == "oom"
    await box.close()


async def findings_have_no_fault_that_is_needed(provider: LocalProvider) -> None:
    found = {one.name: one for one in await provider.findings()}
    assert found["verifiers apart"].ok
    assert [one for one in found.values() if one.needed and not one.ok] == []
    assert MACHINE in found["kernel"].detail
    assert found["idmapped mounts"].ok and found["users"].ok


def main() -> None:
    checks = (
        findings_have_no_fault_that_is_needed,
        a_sandbox_is_forked_and_keeps_its_files,
        the_root_inside_is_nobody_outside,
        ordinary_programs_run,
        every_call_gets_the_answer_of_its_table,
        every_call_the_table_allows_reaches_the_kernel,
        some_calls_depend_on_their_first_argument,
        another_calling_convention_ends_the_process,
        a_way_out_is_refused,
        a_directory_of_the_host_is_mounted_with_its_owners_shifted,
        the_loopback_inside_is_served_from_outside,
        a_verifier_stands_apart,
        limits_are_kept,
        limits.nothing_is_left_of_groups,
    )
    asyncio.run(try_all(MACHINE, Path("/root/home"), *checks))


if __name__ == "__main__":
    main()
