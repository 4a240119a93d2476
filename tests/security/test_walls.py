"""What hostile code inside a sandbox tries, one attack a test. docs/threat-model.md names these tests."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from forkyard.errors import SandboxError
from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider


@pytest_asyncio.fixture(loop_scope="module")
async def box(local: LocalProvider) -> AsyncIterator[Sandbox]:
    sandbox = await local.create(SandboxSpec())
    yield sandbox
    await sandbox.close()


async def out(box: Sandbox, command: str) -> str:
    result = await box.run(command, timeout=20)
    return result.stdout + result.stderr


async def test_nothing_of_the_machine_but_usr_is_visible(box: Sandbox) -> None:
    listed = await out(box, "ls -A /root /home /var/log /srv /opt /mnt /tmp; cat /etc/shadow; ls /etc/ssh")
    assert "No such file" in listed
    assert set((await out(box, "ls -A /")).split()) <= set(
        "bin boot dev etc home lib lib32 lib64 libx32 media mnt opt proc root run sbin srv sys tmp usr var".split()
    )
    project = Path(__file__).parents[2]
    assert "No such file" in await out(box, f"ls {project}")
    assert "No such file" in await out(box, f"ls -d {Path(sys.prefix).resolve()}")


async def test_no_process_of_the_machine_is_visible(box: Sandbox) -> None:
    pids = (await out(box, "ls /proc | grep -E '^[0-9]+$' | sort -n | tr '\\n' ' '")).split()
    assert pids[0] == "1"
    assert len(pids) < 8


async def test_the_root_inside_is_nobody_outside(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec())
    try:
        assert (await sandbox.run(["id", "-u"])).stdout == "0\n"
        live = sandbox._live  # type: ignore[attr-defined]
        status = Path(f"/proc/{live.pid}/status").read_text()
        uid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:"))
        assert uid != 0 or os.getuid() != 0
    finally:
        await sandbox.close()


@pytest.mark.parametrize(
    "attack",
    [
        "mount -t tmpfs none /mnt",
        "prlimit --pid 1 --nofile=6",
        "prlimit --pid 1 --msgqueue=0:0",
        "python3 -c 'import socket; socket.socket(40)'",
        "mount --bind / /mnt",
        "unshare --user true",
        "unshare --mount true",
        "unshare --user --map-root-user true",
        "mknod /tmp/disk b 259 0",
        "echo 1 > /proc/sys/kernel/panic",
        "echo c > /proc/sysrq-trigger",
        "echo x > /sys/kernel/uevent_helper",
        "chroot /proc/1/root true",
        "nsenter --target 1 --mount true",
        "cat /proc/1/environ /proc/1/mem",
        "ls -l /proc/1/fd/",
        "readlink /proc/1/exe",
        "hostname elsewhere",
        "dmesg",
        "date -s 2000-01-01",
    ],
)
async def test_a_way_out_is_refused(box: Sandbox, attack: str) -> None:
    result = await box.run(attack, timeout=20)
    assert result.exit_code != 0, result.stdout


async def test_the_kernels_memory_addresses_and_logs_cannot_be_read(box: Sandbox) -> None:
    for path in ("/proc/kcore", "/proc/kmsg", "/proc/timer_list", "/proc/kpagecount", "/sys/firmware/acpi/tables/DSDT"):
        assert await out(box, f"cat {path} 2>/dev/null | head -c 100 | wc -c") == "0\n", path
    assert await out(box, "grep -cv '^0* ' /proc/kallsyms") == "0\n"


async def test_what_the_kernel_says_of_itself_is_covered(box: Sandbox) -> None:
    for name in ("kallsyms", "config.gz", "keys", "timer_list", "sched_debug", "kcore"):
        assert await out(box, f"cat /proc/{name} 2>/dev/null | wc -c") == "0\n", name
    assert await out(box, "ls -A /proc/acpi /proc/scsi 2>/dev/null | grep -v :") == ""
    writable = (
        "find /proc/sys /proc/irq /proc/bus /proc/fs /sys -type f "
        '-exec sh -c \'for file do { true >> "$file"; } 2>/dev/null && echo "$file"; done\' sh {} +'
    )
    assert await out(box, writable.replace("/sys -type", "/sys/kernel /sys/module -type") + " | head -3") == ""


async def test_no_user_namespace_can_be_made_inside(box: Sandbox) -> None:
    assert await out(box, "cat /proc/sys/user/max_user_namespaces") == "0\n"


async def test_pid_1_tells_nothing_of_the_machine(box: Sandbox) -> None:
    arguments = (await out(box, "tr '\\0' ' ' < /proc/1/cmdline; cat /proc/1/comm")).split()
    assert arguments == ["forkyard", "forkyard"]
    for name in ("environ", "mem", "maps", "fd/0", "cwd/x", "root/x", "exe", "map_files", "stack", "syscall", "io"):
        assert await out(box, f"head -c 1 /proc/1/{name} 2>/dev/null | wc -c") == "0\n", name
    project = str(Path(__file__).parents[2])
    told = await out(
        box, "cat /proc/1/stat* /proc/1/mounts /proc/self/mountinfo /proc/1/cgroup /proc/mounts 2>/dev/null"
    )
    assert project not in told
    assert sys.prefix not in told
    assert "/tmp" not in told


async def test_the_mounts_of_a_sandbox_and_of_the_machine_are_apart(local: LocalProvider, box: Sandbox) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    other = await local.create(SandboxSpec())
    shared = [line for line in (await out(other, "cat /proc/self/mountinfo")).splitlines() if " shared:" in line]
    slaves = [line for line in (await out(other, "cat /proc/self/mountinfo")).splitlines() if " master:" in line]
    assert (shared, slaves) == ([], [])
    assert str(local.store.home) not in before
    await other.close()


async def test_a_device_keeps_the_mode_it_has_on_the_machine(box: Sandbox) -> None:
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        assert not (await box.run(["chmod", "600", f"/dev/{name}"])).ok
        assert not (await box.run(["chown", "1:1", f"/dev/{name}"])).ok
    assert await out(box, "echo x > /dev/null && head -c 2 /dev/zero | wc -c") == "2\n"


FORGER = """
import glob, os
while True:
    for path in glob.glob("/proc/[0-9]*/fd/1"):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            os.write(fd, b"forged")
            os.close(fd)
        except OSError:
            pass
"""


async def test_a_process_left_behind_forges_nothing_in_a_fork(box: Sandbox) -> None:
    await box.run(["sh", "-c", 'python3 -c "$0" >/dev/null 2>&1 &', FORGER])
    await box.stop()
    fork = await box.fork()
    for _ in range(10):
        assert (await fork.run("cat /etc/hostname >/dev/null; echo honest")).stdout == "honest\n"
    await fork.close()


async def test_devices_are_the_usual_ones_and_cannot_be_added_to(box: Sandbox) -> None:
    assert set((await out(box, "ls /dev")).split()) == set(
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero".split()
    )
    assert (await box.run("touch /dev/x; echo x > /dev/null; rm -f /dev/null; mount -o remount,rw /dev")).exit_code != 0
    assert (
        await out(box, "touch /dev/x 2>/dev/null; echo x > /dev/null && echo fine; ls /dev/x 2>/dev/null") == "fine\n"
    )
    assert await out(box, "echo private > /dev/shm/f; cat /dev/shm/f; tty < /dev/null") == "private\nnot a tty\n"


async def test_nothing_is_regained_by_a_setuid_program(box: Sandbox) -> None:
    await box.run("cp /usr/bin/id /tmp/id && chown root /tmp/id && chmod 4755 /tmp/id && chmod 1777 /tmp")
    if (await box.run(["id", "-u"], user="nobody")).stdout != "65534\n":
        pytest.skip("only root exists inside")
    assert "uid=65534" in text_of(await box.run("/tmp/id", user="nobody"))
    assert "euid=0" not in text_of(await box.run("/tmp/id", user="nobody"))


def text_of(result: object) -> str:
    return str(getattr(result, "stdout", "")) + str(getattr(result, "stderr", ""))


async def test_privileges_stay_dropped_in_every_child(box: Sandbox) -> None:
    status = await out(box, "grep -E '^(NoNewPrivs|Seccomp|CapBnd|CapEff):' /proc/self/status")
    fields = dict(line.split(":\t") for line in status.splitlines())
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    for name in ("CapBnd", "CapEff"):
        sys_admin, net_raw, mknod, ptrace = 21, 13, 27, 19
        assert int(fields[name], 16) & (1 << sys_admin | 1 << net_raw | 1 << mknod | 1 << ptrace) == 0


async def test_killing_pid_1_from_inside_does_nothing(box: Sandbox) -> None:
    for name in ("KILL", "STOP", "TERM", "INT", "HUP", "QUIT", "USR1", "ALRM", "PIPE", "CHLD", "SEGV"):
        await box.run(f"kill -{name} 1")
    assert (await box.run(["echo", "alive"])).stdout == "alive\n"


async def test_no_descriptor_of_the_host_reaches_a_command(box: Sandbox) -> None:
    listed = await out(box, "ls /proc/self/fd | tr '\\n' ' '")
    assert set(listed.split()) <= {"0", "1", "2", "3"}


async def test_the_hosts_environment_does_not_reach_the_sandbox(
    local: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "zq-planted-key")
    sandbox = await local.create(SandboxSpec())
    try:
        seen = await out(sandbox, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
        assert "zq-planted-key" not in seen
        assert "OPENAI" not in seen
    finally:
        await sandbox.close()


async def test_the_hosts_loopback_is_another_loopback(box: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await box.run(f"exec 3<>/dev/tcp/127.0.0.1/{port}", timeout=60)
        bash = await box.run(["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"], timeout=60)
    assert result.exit_code != 0
    assert "refused" in bash.stderr


async def test_a_file_that_is_a_window_into_a_process_cannot_be_read(box: Sandbox) -> None:
    for path in ("/proc/self/mem", "/proc/1/maps", "/proc/meminfo", "/sys/kernel/uevent_seqnum"):
        with pytest.raises((SandboxError, PermissionError, FileNotFoundError)):
            await box.read(path)


async def test_a_library_planted_for_name_lookups_is_never_loaded_by_pid_1(box: Sandbox) -> None:
    await box.write("/etc/nsswitch.conf", b"passwd: evil files\ngroup: evil files\n")
    await box.run("mkdir -p /usr/lib/evil && cp /usr/bin/true /usr/lib/libnss_evil.so.2; mkdir /srv/x; touch /srv/x/f")
    assert await box.pull("/srv")
    await box.push(await box.pull("/srv"), "/srv2")
    assert (await box.run("ls /srv2/x")).stdout == "f\n"


async def test_a_command_always_gets_three_streams_of_its_own(box: Sandbox) -> None:
    await box.run("prlimit --pid 1 --nofile=6; prlimit --pid 1 --nofile=4")
    assert (
        await box.run("ls -l /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 | grep -c -e pipe -e null")
    ).stdout == "3\n"


async def test_a_pipe_in_the_place_of_the_password_file_holds_nobody_up(box: Sandbox) -> None:
    await box.run("rm -f /etc/passwd /etc/group; mkfifo /etc/passwd /etc/group")
    with pytest.raises(ValueError, match="root only|unknown user"):
        await box.run(["true"], user="nobody", timeout=60)
    assert (await box.run(["echo", "fine"], timeout=60)).stdout == "fine\n"


async def test_a_number_that_names_nobody_is_not_root(box: Sandbox) -> None:
    with pytest.raises(ValueError, match="root only|unknown user"):
        await box.run(["id"], user="4294967295")


async def test_a_request_pid_1_cannot_do_does_not_end_it(box: Sandbox) -> None:
    with pytest.raises(SandboxError):
        await box.listen(70000)
    assert (await box.run(["echo", "fine"])).stdout == "fine\n"


async def test_a_long_request_survives_children_that_end_meanwhile(box: Sandbox) -> None:
    await box.run("(i=0; while [ $i -lt 400 ]; do (sleep 0.001 &) ; i=$((i+1)); done) >/dev/null 2>&1 &")
    for _ in range(8):
        result = await box.run(["sh", "-c", "echo $#", "x", *(["y" * 100_000] * 4)], timeout=20)
        assert result.stdout == "4\n"


async def test_a_guest_that_stops_every_process_holds_up_nobody(box: Sandbox) -> None:
    stop_all = "import os, signal\nwhile True:\n    os.kill(-1, signal.SIGSTOP)"
    await box.run(["sh", "-c", 'python3 -c "$0" >/dev/null 2>&1 &', stop_all])
    try:
        for _ in range(30):
            async with asyncio.timeout(100):  # stopped before it began or after: it ends, or its sandbox does
                await box.run(["true"], timeout=0.5)
    except SandboxError:
        pass
