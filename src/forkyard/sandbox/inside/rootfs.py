"""Build a sandbox's file system and close its walls: once in the spawner, once in each blank, once for each disk.

The current directory is the store's `disks/`; every path is relative to it or to `ROOT`, so nothing of the host's
directory layout shows inside, and a long stack of layers fits into one page of mount options.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import stat
import struct
from contextlib import suppress
from typing import Any, NamedTuple

from . import kernel, mounts
from .files import SYSTEM
from .kernel import MS_BIND, MS_MOVE, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT
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
FILTER = filter_program()
_INET, _DATAGRAM = int(socket.AF_INET), int(socket.SOCK_DGRAM)
# Docker's default set without raw sockets and device nodes (and without setfcap, useless here).
CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29})


class Hidden(NamedTuple):
    """What of /proc and /sys is covered in each sandbox, as paths beneath `ASIDE`."""

    files: list[str]
    directories: list[str]
    read_only: list[str]


def prepare_once(host_root: bool) -> Hidden:
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
    return _to_hide(host_root)


def _to_hide(host_root: bool) -> Hidden:
    def wanted(name: str) -> bool:
        path = f"/proc/{name}"
        return os.path.exists(path) and (host_root or bool(os.stat(path).st_mode & stat.S_IROTH))

    directories = [f"{ASIDE}/proc/{name}" for name in HIDDEN_DIRECTORIES if wanted(name)]
    if host_root and os.path.isdir("/sys/firmware"):
        directories.append(f"{ASIDE}/sys/firmware")
    return Hidden(
        [f"{ASIDE}/proc/{name}" for name in HIDDEN_FILES if wanted(name)],
        directories,
        [f"{ASIDE}/proc/{name}" for name in READ_ONLY if host_root and wanted(name)],
    )


def prepare(hidden: Hidden) -> None:
    """What a sandbox has of its own, whatever its disk: loopback, /proc, /sys, and the private parts of /dev."""
    kernel.mount(None, "/", None, MS_REC | MS_PRIVATE)
    _loopback_up()
    kernel.mount("proc", f"{ASIDE}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _mount_sys(f"{ASIDE}/sys")
    kernel.mount("tmpfs", f"{ASIDE}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m")
    pts = f"newinstance,ptmxmode=0666,mode=620,max={TERMINALS}"
    kernel.mount("devpts", f"{ASIDE}/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, pts)
    for path in hidden.files:
        kernel.mount(f"{ASIDE}/dev/null", path, None, MS_BIND)
    for path in hidden.directories:
        if os.path.isdir(path):  # /sys may have stayed empty
            kernel.mount(NOTHING, path, None, MS_BIND)
    for path in hidden.read_only:
        _read_only(path)


def build(spec: dict[str, Any], waiting: list[mounts.Held]) -> None:
    """Mount the sandbox's disk, put the rest and what waits into it, and make it the only file system."""
    mount_disk(spec)
    for name in SYSTEM:
        ensure_directory(f"{ROOT}/{name}")
        kernel.mount(f"{ASIDE}/{name}", f"{ROOT}/{name}", None, MS_MOVE)
    if waiting:  # what is not called is in no page of this sandbox's own
        mounts.attach(waiting, ROOT)
    kernel.pivot_into(ROOT)


def close_walls(spec: dict[str, Any]) -> None:
    """Its own host name and limits, and then no way back."""
    socket.sethostname(spec["hostname"])
    if spec["rlimits"]:
        set_limits(spec["rlimits"])
    for path, text in spec["sysctls"].items():
        _write_proc(path, text)
    _read_only("/proc/sys")  # some of it steers this sandbox's own namespaces, its limits among them
    give_up_rights()
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), 0))


def give_up_rights() -> None:
    """No way back for this process and all it starts: capabilities, no_new_privs, seccomp."""
    kernel.keep_capabilities(CAPABILITIES)
    kernel.no_new_privileges()
    kernel.install_filter(FILTER)
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
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return
        os.unlink(path)
    except FileNotFoundError:
        pass
    os.mkdir(path, 0o755)


def _mount_sys(sys: str) -> None:
    try:
        kernel.mount("sysfs", sys, "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError as err:  # inside a container whose own /sys is masked: ours stays empty
        if err.errno != errno.EPERM:
            raise


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


def _read_only(path: str) -> None:
    kernel.mount(path, path, None, MS_BIND | MS_REC)
    kernel.mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _loopback_up() -> None:
    set_flags, up_and_running = 0x8914, 1 | 64
    control = socket.SocketType(_INET, _DATAGRAM)
    fcntl.ioctl(control, set_flags, struct.pack("16sh14x", b"lo", up_and_running))
    control.close()


def _write_proc(path: str, value: str) -> None:
    with open(path, "w") as file:
        file.write(value)
