"""Build a sandbox's file system and close its walls: once in the spawner, once in each blank, once for each disk.

The current directory is the store's `disks/`; every path is relative to it or to `ROOT`, so nothing of the host's
directory layout shows inside, and a long stack of layers fits into one page of mount options.

Whatever a fork uses is written to, its reference count at least, and so is a page of its own: what all sandboxes have
in common is therefore made ready once, and named here without the module it is from.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import struct
from contextlib import suppress
from fcntl import ioctl
from socket import AF_INET, SOCK_DGRAM, SocketType, sethostname
from typing import Any, NamedTuple

from . import kernel, mounts
from .files import SYSTEM
from .kernel import (
    MS_BIND,
    MS_MOVE,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    described,
    mount_each,
)
from .seccomp import filter_program

ROOT = "../root"  # where every sandbox mounts its disk: each in its own mount namespace
EMPTY = "../empty"  # what a sandbox without layers stands on
ASIDE = "../aside"  # where /proc, /sys and /dev wait
HOST_USR = "../usr"  # the machine's /usr, as the spawner bound it
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
HIDDEN_FILES = ("kcore", "keys", "timer_list", "kallsyms", "config.gz", "sched_debug")
HIDDEN_DIRECTORIES = ("acpi", "scsi")
READ_ONLY = ("irq", "bus", "fs", "sysrq-trigger")
NOTHING = f"{ASIDE}/nothing"
OPEN_FILES = 65536
TERMINALS = 256  # of each sandbox: all of them share what the machine has
HURRY = -15  # how nice the spawner is, and a sandbox until its walls are closed
_INET, _DATAGRAM = int(AF_INET), int(SOCK_DGRAM)
_SET_FLAGS = 0x8914  # ioctl of an interface
_LOOPBACK_UP = bytearray(struct.pack("16sh14x", b"lo", 1 | 64))  # up and running
# Docker's default set without raw sockets and device nodes (and without setfcap, useless here).
CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29})
_KEPT = kernel.capability_sets(CAPABILITIES)
_FILTER = kernel.Filter.of(filter_program())


def _read_only(path: str) -> list[kernel.Mount]:
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    return [
        described(path, path, None, MS_BIND | MS_REC),
        described(None, path, None, MS_BIND | MS_REMOUNT | flags),
    ]


_SYSTEM = [described(f"{ASIDE}/{name}", f"{ROOT}/{name}", None, MS_MOVE) for name in SYSTEM]
_PROC_SYS_READ_ONLY = _read_only("/proc/sys")


class Own(NamedTuple):
    """What is mounted in each sandbox, whatever its disk."""

    always: list[kernel.Mount]
    sys: list[kernel.Mount]
    over_sys: list[kernel.Mount]  # if /sys is there


def prepare_once(host_root: bool) -> Own:
    """What all sandboxes of an engine inherit, done by the spawner in its own namespaces: limits, and /dev.

    With `host_root` the root inside is the machine's, who may read and write everything in /proc. Everybody else meets
    files there that belong to somebody who does not exist inside: only what all may read has to be covered.
    """
    os.umask(0o022)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), min(OPEN_FILES, hard)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kernel.mount("tmpfs", ASIDE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64k")
    for name in SYSTEM:
        os.mkdir(f"{ASIDE}/{name}")
    _mount_shared_dev(f"{ASIDE}/dev")
    os.mkdir(NOTHING)
    kernel.mount(None, ASIDE, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    with suppress(OSError):  # where /proc/sys is read-only, the filter alone refuses what makes user namespaces
        _write_proc("/proc/sys/user/max_user_namespaces", "0")
    return _own(host_root)


def _own(host_root: bool) -> Own:
    def hidden(names: tuple[str, ...]) -> list[str]:
        return [f"{ASIDE}/proc/{name}" for name in names if _is_to_hide(f"/proc/{name}", host_root)]

    over_proc = [described(f"{ASIDE}/dev/null", path, None, MS_BIND) for path in hidden(HIDDEN_FILES)]
    over_proc += [described(NOTHING, path, None, MS_BIND) for path in hidden(HIDDEN_DIRECTORIES)]
    if host_root:
        over_proc += [one for path in hidden(READ_ONLY) for one in _read_only(path)]
    pts = f"newinstance,ptmxmode=0666,mode=620,max={TERMINALS}"
    no_devices = MS_NOSUID | MS_NODEV
    always = [
        described(None, "/", None, MS_REC | MS_PRIVATE),
        described("proc", f"{ASIDE}/proc", "proc", no_devices | MS_NOEXEC),
        described("tmpfs", f"{ASIDE}/dev/shm", "tmpfs", no_devices, "mode=1777,size=64m"),
        described("devpts", f"{ASIDE}/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, pts),
        *over_proc,
    ]
    sys = [described("sysfs", f"{ASIDE}/sys", "sysfs", MS_RDONLY | no_devices | MS_NOEXEC)]
    firmware = host_root and os.path.isdir("/sys/firmware")
    return Own(always, sys, [described(NOTHING, f"{ASIDE}/sys/firmware", None, MS_BIND)] if firmware else [])


def _is_to_hide(path: str, host_root: bool) -> bool:
    return os.path.exists(path) and (host_root or bool(os.stat(path).st_mode & stat.S_IROTH))


def prepare(own: Own) -> None:
    """What a sandbox has of its own, whatever its disk: loopback, /proc, /sys, and the private parts of /dev."""
    always, sys, over_sys = own
    _loopback_up()
    mount_each(always)
    try:
        mount_each(sys)
    except OSError as err:  # inside a container whose own /sys is masked: ours stays empty
        if err.errno != errno.EPERM:
            raise
    else:
        mount_each(over_sys)


def build(spec: dict[str, Any], waiting: list[mounts.Held]) -> None:
    """Mount the sandbox's disk, put the rest and what waits into it, and make it the only file system."""
    mount_disk(spec)
    for name in SYSTEM:
        ensure_directory(f"{ROOT}/{name}")
    mount_each(_SYSTEM)
    if waiting:  # what is not called is in no page of this sandbox's own
        mounts.attach(waiting, ROOT)
    kernel.pivot_into(ROOT)


def close_walls(spec: dict[str, Any]) -> None:
    """Its own host name and limits, and then no way back."""
    sethostname(spec["hostname"].encode())
    if spec["rlimits"]:
        set_limits(spec["rlimits"])
    for path, text in spec["sysctls"].items():
        _write_proc(path, text)
    mount_each(_PROC_SYS_READ_ONLY)  # some of it steers this sandbox's own namespaces, its limits among them
    give_up_rights()
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), 0))


def give_up_rights() -> None:
    """No way back for this process and all it starts: capabilities, no_new_privs, seccomp."""
    kernel.keep_capabilities(_KEPT)
    kernel.no_new_privileges()
    kernel.install_filter(_FILTER)
    kernel.set_dumpable(False)


def set_limits(rlimits: dict[str, int]) -> None:
    """What each process can use at most, by names of the module `resource`."""
    for name, value in rlimits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        most = value if hard < 0 else min(value, hard)
        resource.setrlimit(kind, (most, most))


def mount_disk(spec: dict[str, Any]) -> None:
    """Mount a sandbox's own disk over the stack it stands on, at `ROOT`."""
    disk, stack = spec["disk"], spec["stack"]
    os.mkdir(disk, 0o755)
    _mount_overlay(ROOT, disk, "u", "w", [f"{layer}/u" for layer in stack] or [EMPTY])
    if spec["host"]:  # the lowest disk holds what the image "host" puts over the machine's /usr
        _mount_overlay(f"{ROOT}/usr", disk, "usr", "usrw", _usr_layers(stack))


def mount_stack(stack: list[str], host: bool) -> None:
    """Mount what a stack of sealed disks shows, to be read only."""
    if stack:  # without, ROOT shows what it is: an empty directory
        _overlay(ROOT, MS_RDONLY, "", [*(f"{layer}/u" for layer in stack), EMPTY])  # which takes two layers or more
    if host:
        _overlay(f"{ROOT}/usr", MS_RDONLY, "", _usr_layers(stack))


def _usr_layers(stack: list[str]) -> list[str]:
    return [f"{layer}/usr" for layer in stack[:-1]] + [f"{stack[-1]}/u/usr", HOST_USR]


def _mount_overlay(target: str, disk: str, upper: str, work: str, layers: list[str]) -> None:
    os.mkdir(f"{disk}/{upper}", 0o755)
    os.mkdir(f"{disk}/{work}", 0o755)
    _overlay(target, 0, f"upperdir={disk}/{upper},workdir={disk}/{work},volatile,", layers)


def _overlay(target: str, flags: int, options: str, layers: list[str]) -> None:
    options += f"userxattr,lowerdir={':'.join(layers)}"
    if len(options) >= 4095:  # mount(2) would silently cut them
        raise OSError(errno.E2BIG, f"this sandbox stands on {len(layers)} layers, more than can be stacked")
    kernel.mount("overlay", target, "overlay", flags, options)


def ensure_directory(path: str) -> None:
    """A real directory at `path`: an image may have nothing there, or a link that would lead to the host's files."""
    try:
        os.close(os.open(path, kernel.REAL_FOLDER))
    except FileNotFoundError:
        os.mkdir(path, 0o755)
    except NotADirectoryError:  # a link too
        os.unlink(path)
        os.mkdir(path, 0o755)


def _mount_shared_dev(dev: str) -> None:
    """One /dev for all sandboxes, and so a read-only one: the devices, and places for what each has of its own."""
    kernel.mount("tmpfs", dev, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k")
    for name in DEVICES:
        os.close(os.open(f"{dev}/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        kernel.mount(f"/dev/{name}", f"{dev}/{name}", None, MS_BIND)
        kernel.make_read_only(f"{dev}/{name}")  # it can be used as ever, and its mode is the machine's
    os.mkdir(f"{dev}/shm")
    os.mkdir(f"{dev}/pts")
    os.symlink("pts/ptmx", f"{dev}/ptmx")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{dev}/{name}")
    kernel.mount(None, dev, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NOEXEC)


def _loopback_up() -> None:
    control = SocketType(_INET, _DATAGRAM)
    ioctl(control.fileno(), _SET_FLAGS, _LOOPBACK_UP)
    control.close()


def _write_proc(path: str, value: str) -> None:
    with open(path, "w") as file:
        file.write(value)
