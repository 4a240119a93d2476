"""What processes that an agent left running try on a verifier that stands apart from them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from forkyard.errors import SandboxError
from forkyard.sandbox import Limits, Sandbox, SandboxSpec, StandsApart
from forkyard.sandbox.local import LocalProvider

OWN = ("/tests", "/logs/verifier")
VICTIM = "victim-of-it"
# Every hold on another process that Linux knows, tried on each whose arguments name the victim; "done" is a success.
ATTACK = """
import ctypes, json, os, resource, signal, time
libc = ctypes.CDLL(None, use_errno=True)
def called(function, *args):
    if function(*args) < 0:
        raise OSError(ctypes.get_errno(), "")
def traced(pid):
    called(libc.ptrace, 16, pid, None, None)
    os.waitpid(pid, 0)
def read_memory(pid):
    buffer = ctypes.create_string_buffer(8)
    place = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[25])
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 8)
    there = (ctypes.c_uint64 * 2)(place, 8)
    called(libc.process_vm_readv, pid, vector, 1, there, 1, ctypes.c_ulong(0))
def by_descriptor(pid):
    fd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(fd, signal.SIGCONT)
    finally:
        os.close(fd)
ways = {
    "signal": lambda pid: os.kill(pid, signal.SIGCONT),
    "group": lambda pid: os.killpg(pid, signal.SIGCONT),
    "thread": lambda pid: called(libc.tgkill, pid, pid, 18),
    "queue": lambda pid: called(libc.sigqueue, pid, 18, None),
    "descriptor": by_descriptor,
    "memory": read_memory,
    "mem": lambda pid: open(f"/proc/{pid}/mem", "r+b").close(),
    "environment": lambda pid: open(f"/proc/{pid}/environ").read(),
    "root": lambda pid: os.listdir(f"/proc/{pid}/root/tests"),
    "directory": lambda pid: os.listdir(f"/proc/{pid}/cwd"),
    "streams": lambda pid: os.readlink(f"/proc/{pid}/fd/1"),
    "limits": lambda pid: resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, 1)),
    "trace": traced,
}
def victims():
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and b"victim-of-it" in open(f"/proc/{name}/cmdline", "rb").read():
                yield int(name)
        except OSError:
            pass
while not (pids := sorted(victims())):
    time.sleep(0.01)
found = {}
for what, way in ways.items():
    try:
        way(pids[0])
        found[what] = "done"
    except OSError as err:
        found[what] = err.strerror or os.strerror(err.errno)
open("/tmp/tried", "w").write(json.dumps(found))
os.rename("/tmp/tried", "/run/tried")
"""
WAITS = "while ! [ -e /run/tried ]; do sleep 0.01; done; cat /tests/secret"


@pytest_asyncio.fixture(loop_scope="module")
async def box(local: LocalProvider) -> AsyncIterator[Sandbox]:
    sandbox = await local.create(SandboxSpec())
    yield sandbox
    await sandbox.close()


async def apart_from(box: Sandbox) -> Sandbox:
    assert isinstance(box, StandsApart)
    found = await box.apart(OWN)
    if found is None:
        pytest.skip("this kernel has no Landlock that scopes signals (Linux 6.12)")
    return found


async def attacking(box: Sandbox) -> None:
    await box.write("/opt/attack.py", ATTACK.encode())
    await box.run("nohup python3 /opt/attack.py </dev/null >/run/said 2>&1 &")


async def test_root_left_running_has_no_hold_on_what_stands_apart(box: Sandbox) -> None:
    await attacking(box)
    apart = await apart_from(box)
    await apart.write("/tests/secret", b"42\n")
    result = await apart.run(["sh", "-c", WAITS, VICTIM], timeout=30)
    tried = json.loads(await box.read("/run/tried"))
    assert (result.exit_code, result.stdout) == (0, "42\n")
    assert [what for what, said in tried.items() if said == "done"] == []
    await apart.close()


async def test_the_same_attack_has_a_hold_on_whatever_does_not_stand_apart(box: Sandbox) -> None:
    """So the test before tells something."""
    await attacking(box)
    await box.run("mkdir /tests; echo 42 > /tests/secret")
    await box.run(["sh", "-c", WAITS, VICTIM], timeout=30)
    tried = json.loads(await box.read("/run/tried"))
    assert {what: said for what, said in tried.items() if said != "done"} == {"limits": "Operation not permitted"}


@pytest.mark.parametrize(
    "way",
    [
        "mv /logs /gone; mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; touch /tests/test.sh",
        "rm -rf /logs; ln -s /opt /logs; mkdir -p /opt/verifier; echo 1 > /opt/verifier/reward.txt; ln -sf /opt /tests",
        "echo > /tests; rm -rf /logs; mkfifo /logs",
    ],
    ids=["moved away", "links", "no directories"],
)
async def test_directories_of_its_own_cannot_be_swapped_for_others(way: str, box: Sandbox) -> None:
    await box.run("mkdir -p /logs/verifier; nohup sleep 1000 >/dev/null 2>&1 &")
    apart = await apart_from(box)
    await apart.write("/logs/verifier/reward.txt", b"0\n")
    await box.run(way)
    assert await apart.read("/logs/verifier/reward.txt") == b"0\n"
    assert (await apart.run("ls -A /tests")).stdout == ""
    await apart.close()
    apart = await apart_from(box)  # and from what is swapped already
    assert (await apart.run("ls -A /tests /logs/verifier")).stdout.split() == ["/logs/verifier:", "/tests:"]
    await apart.close()


async def test_what_stands_apart_is_the_same_machine(box: Sandbox) -> None:
    service = "nohup sh -c 'echo $$ > /run/service; while :; do sleep 1; done' >/dev/null 2>&1 &"
    await box.run(f"{service} until [ -s /run/service ]; do sleep 0.01; done")
    apart = await apart_from(box)
    said = await apart.run(
        "kill -0 $(cat /run/service) && cat /proc/$(cat /run/service)/environ >/dev/null && echo alive; "
        "echo 1 > /opt/one; ln -s one /opt/two; hostname; id -u"
    )
    assert said.stdout.split() == ["alive", (await box.run("hostname")).stdout.strip(), "0"], said.stderr
    assert await box.read("/opt/two") == b"1\n"
    with await apart.listen(8123):
        assert await box.run(["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8123 && echo open"]) == await apart.run(
            ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8123 && echo open"]
        )
    await apart.close()


async def test_what_either_side_makes_in_the_root_the_other_sees(box: Sandbox) -> None:
    await box.run("echo early > /answer.txt; echo x > /old.txt; nohup sleep 1000 >/dev/null 2>&1 &")
    apart = await apart_from(box)
    assert (await apart.run("cat /answer.txt")).stdout == "early\n"
    await box.run(
        "echo late > /late.tmp; mv /late.tmp /late.txt; echo new > /new; mv /new /answer.txt; mkdir /logs/app"
    )
    assert (await apart.run("cat /answer.txt /late.txt; ls -d /logs/app")).stdout == "new\nlate\n/logs/app\n"
    assert (await apart.run("mkdir /given && echo mine > /given/file && mv /late.txt /moved && rm /old.txt")).ok
    assert (await box.run("cat /given/file /moved; ls /old.txt")).stdout == "mine\nlate\n"
    await apart.close()


# Swaps a directory for a link, for nothing and for another, as fast as it can.
SWAPS = """
import os, sys
name = sys.argv[1]
os.makedirs("/opt/verifier", exist_ok=True)
while True:
    for step in (
        lambda: os.rename(name, f"{name}-{os.urandom(4).hex()}"),
        lambda: os.symlink("/opt", name),
        lambda: os.unlink(name),
        lambda: os.makedirs(f"{name}/verifier"),
    ):
        try:
            step()
        except OSError:
            pass
"""


@pytest.mark.parametrize("name", ["/tests", "/logs"])
async def test_who_swaps_directories_while_they_are_made_anothers_does_not_get_in(name: str, box: Sandbox) -> None:
    await box.write("/opt/swaps.py", SWAPS.encode())
    await box.run(f"for i in 1 2 3; do nohup python3 /opt/swaps.py {name} </dev/null >/dev/null 2>&1 & done")
    assert isinstance(box, StandsApart)
    try:
        apart = await apart_from(box)
    except SandboxError:  # it was too fast: nothing is graded then
        return
    for path in OWN:
        await apart.write(f"{path}/secret", b"42\n")
    for _ in range(20):
        assert (await apart.run("cat /tests/secret /logs/verifier/secret")).stdout == "42\n42\n"
    assert (await box.run("cat /tests/secret /logs/verifier/secret /opt/secret /opt/verifier/secret")).stdout == ""
    await apart.close()


@pytest.mark.parametrize(
    "before",
    ["ln -s /opt /tests; ln -s /opt /logs", "touch /tests; mkfifo /logs", "mkdir /logs; ln -s /tmp /logs/verifier"],
)
async def test_what_lies_in_the_place_of_its_directories_is_not_theirs(before: str, box: Sandbox) -> None:
    await box.run(f"{before}; mkdir -p /opt/verifier; nohup sleep 1000 >/dev/null 2>&1 &")
    apart = await apart_from(box)
    await apart.write("/tests/secret", b"42\n")
    await apart.write("/logs/verifier/reward.txt", b"0\n")
    assert (
        await box.run("cat /tests/* /logs/verifier/* /opt/* /opt/verifier/* /tmp/reward.txt 2>/dev/null")
    ).stdout == ""
    await apart.close()


async def test_what_was_started_apart_ends_with_it_and_nothing_else_does(box: Sandbox) -> None:
    await box.run("nohup sleep 1001 >/dev/null 2>&1 &")
    apart = await apart_from(box)
    await apart.run("nohup setsid sh -c 'setsid sleep 1002 & sleep 1003' >/dev/null 2>&1 & sleep 0.1")
    late = await apart.run("setsid sleep 1004 & sleep 1005", timeout=0.2)
    assert late.timed_out
    gone = "while pgrep -fx 'sleep 100[45]' >/dev/null; do sleep 0.01; done"  # those that are killed die in their turn
    assert (await apart.run(gone, timeout=30)).ok
    await apart.close()
    assert (await box.run("ps -e -o args= | grep -o '^sleep 100.'")).stdout == "sleep 1001\n"
    with pytest.raises(SandboxError):
        await apart.run("true")
    assert (await box.run("echo on")).stdout == "on\n"


async def test_its_walls_are_those_of_the_sandbox(box: Sandbox) -> None:
    apart = await apart_from(box)
    status = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; nice"
    assert (await apart.run(status)).stdout == (await box.run(status)).stdout
    assert (await apart.run("mount -t tmpfs none /mnt; unshare -m true")).exit_code != 0
    assert "forkyard" not in (await apart.run("cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")).stdout
    await apart.close()


async def test_it_is_under_the_limits_of_the_sandbox(local: LocalProvider) -> None:
    if "limit_memory" not in local.features:
        pytest.skip("control groups cannot be used here")
    box = await local.create(SandboxSpec(limits=Limits(memory_mb=64)))
    apart = await apart_from(box)
    result = await apart.run("head -c 200m /dev/zero | tail > /dev/null", timeout=60)
    assert (result.ok, result.ended_by) == (False, "oom")
    await box.close()
    with pytest.raises(SandboxError):
        await apart.run("true")
    await apart.close()
