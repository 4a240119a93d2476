"""The filter, run by a small interpreter over every call of both machines, and by the kernel over what it refuses."""

from __future__ import annotations

import errno
import platform
import re
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.inside import seccomp, syscalls
from forkyard.sandbox.local import LocalProvider

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE, HIDE, NO_FAMILY = (0x00050000 | number for number in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))
NEWNS, NEWUSER, NEWPID, THREAD = 0x20000, 0x10000000, 0x20000000, 0x10F00


def answer(program: bytes, arch: int, number: int, *arguments: int) -> tuple[int, int]:
    """What the filter says of a call, and in how many steps, after the rules of classic BPF."""
    words = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    described = struct.pack("<IIQ6Q", number, arch, 0, *words)
    instructions = list(struct.iter_unpack("HBBI", program))
    accumulator, position, steps = 0, 0, 0
    while True:
        code, true, false, value = instructions[position]
        steps += 1
        position += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", described, value)
            case 0x15:
                position += true if accumulator == value else false
            case 0x35:
                position += true if accumulator >= value else false
            case 0x45:
                position += true if accumulator & value else false
            case 0x06:
                return value, steps
            case _:
                raise AssertionError(f"instruction {code:#x} is none of the filter's")


def headers(machine: str) -> dict[str, int]:
    """The numbers this machine's C headers have."""
    path = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if machine == "aarch64":
        path = Path("/usr/include/asm-generic/unistd.h")
    if not path.exists():
        pytest.skip(f"{path} is not there (apt-get install linux-libc-dev)")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\n", re.sub(r"[ \t]*/\*.*?\*/", "", path.read_text()))
    numbers = {name: int(number) for name, number in found if name != "syscalls"}  # which is how many there are
    if machine == "aarch64":
        numbers["newfstatat"] = numbers.pop("fstatat")  # the header names it by a macro
    return numbers


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_every_number_gets_the_answer_of_its_table(machine: str) -> None:
    program = seccomp.filter_program(machine)
    allowed = set(syscalls.allowed(machine).values())
    refused = set(syscalls.refused(machine).values())
    checked = set(syscalls.checked(machine).values())
    assert not allowed & refused and not (allowed | refused) & checked
    for number in [*range(2048), 0x3FFFFFFF]:
        said, steps = answer(program, ARCH[machine], number)
        if number not in checked:
            wanted = ALLOW if number in allowed else REFUSE if number in refused else HIDE
            assert said == wanted, number
        assert steps <= 16
    assert len(program) // 8 < 160


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_another_calling_convention_is_killed(machine: str) -> None:
    program = seccomp.filter_program(machine)
    i386, arm = 0x40000003, 0x40000028
    for foreign in (i386, arm, ARCH["aarch64" if machine == "x86_64" else "x86_64"], 0):
        assert {answer(program, foreign, number)[0] for number in range(512)} == {KILL}


def test_the_x32_convention_is_refused() -> None:
    program = seccomp.filter_program("x86_64")
    for number in [*range(0x40000000, 0x40000400), 0x80000000, 0xFFFFFFFF]:
        assert answer(program, ARCH["x86_64"], number)[0] == REFUSE


@pytest.mark.parametrize("machine", syscalls.MACHINES)
@pytest.mark.parametrize(
    ("call", "argument", "wanted"),
    [
        ("clone", THREAD | 17, ALLOW),
        ("clone", NEWUSER | 17, REFUSE),
        ("clone", NEWNS | 17, REFUSE),
        ("clone", NEWPID | THREAD, REFUSE),
        ("clone", 0x02000000, REFUSE),
        ("clone", 0x04000000, REFUSE),
        ("clone", 0x08000000, REFUSE),
        ("clone", 0x40000000, REFUSE),
        ("prlimit64", 0, ALLOW),
        ("prlimit64", 1, REFUSE),
        ("socket", 1, ALLOW),
        ("socket", 2, ALLOW),
        ("socket", 10, ALLOW),
        ("socket", 16, ALLOW),
        ("socket", 17, NO_FAMILY),
        ("socket", 38, NO_FAMILY),
        ("socket", 40, NO_FAMILY),
        ("socketpair", 1, ALLOW),
        ("socketpair", 30, NO_FAMILY),
        ("personality", 0, ALLOW),
        ("personality", 0xFFFFFFFF, ALLOW),
        ("personality", 0x0040000, ALLOW),
        ("personality", 0x0020008, ALLOW),
        ("personality", 0x0400000, REFUSE),  # READ_IMPLIES_EXEC
        ("personality", 0x0100000, REFUSE),  # MMAP_PAGE_ZERO
    ],
)
def test_some_calls_depend_on_their_first_argument(machine: str, call: str, argument: int, wanted: int) -> None:
    number = syscalls.checked(machine)[call]
    assert answer(seccomp.filter_program(machine), ARCH[machine], number, argument)[0] == wanted


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_the_numbers_are_those_of_the_c_headers(machine: str) -> None:
    known = headers(machine)
    tables = (syscalls.allowed, syscalls.refused, syscalls.checked, syscalls.hidden)
    ours = {name: number for table in tables for name, number in table(machine).items()}
    newest = max(known.values())
    assert {name: number for name, number in ours.items() if number <= newest} == {
        name: known[name] for name, number in ours.items() if number <= newest
    }
    assert len(set(ours.values())) == len(ours)


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.filter_program("riscv64")


@pytest_asyncio.fixture(loop_scope="module")
async def box(local: LocalProvider) -> AsyncIterator[Sandbox]:
    sandbox = await local.create(SandboxSpec())
    yield sandbox
    await sandbox.close()


CALL = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
for number in map(int, sys.argv[1:]):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6)
    print(number, result, ctypes.get_errno())
"""


async def called(box: Sandbox, numbers: list[int]) -> dict[int, tuple[int, int]]:
    result = await box.run(["python3", "-c", CALL, *map(str, numbers)], timeout=20)
    assert result.exit_code == 0, result.stderr
    rows = [list(map(int, line.split())) for line in result.stdout.splitlines()]
    return {number: (value, error) for number, value, error in rows}


async def test_the_kernel_refuses_every_call_of_the_table(box: Sandbox) -> None:
    numbers = sorted(syscalls.refused(platform.machine()).values())
    assert await called(box, numbers) == dict.fromkeys(numbers, (-1, errno.EPERM))


async def test_calls_in_no_table_do_not_exist(box: Sandbox) -> None:
    tables = (syscalls.allowed, syscalls.refused, syscalls.checked)
    known = {number for table in tables for number in table(platform.machine()).values()}
    of_tracers = {335, 336}  # on x86_64 the kernel answers these without asking a filter
    numbers = [number for number in range(600) if number not in known | of_tracers]
    assert await called(box, numbers) == dict.fromkeys(numbers, (-1, errno.ENOSYS))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86_64 has an x32 convention")
async def test_x32_calls_are_refused_by_the_kernel(box: Sandbox) -> None:
    assert await called(box, [0x40000000 + 39]) == {0x40000000 + 39: (-1, errno.EPERM)}


OLD_CONVENTION = """
import ctypes, mmap
code = b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3"  # mov eax, 20; int 0x80; ret: getpid as i386 has it
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86_64 has an i386 convention")
async def test_an_i386_call_ends_the_process(box: Sandbox) -> None:
    result = await box.run(["python3", "-c", OLD_CONVENTION], timeout=20)
    assert (result.stdout, result.signal) == ("", 31)  # SIGSYS, or where the kernel has no i386: SIGSEGV
