"""Linux calls that the standard library does not offer, by ctypes. Numbers are per machine where they differ."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from typing import TypeAlias

_X86 = platform.machine() == "x86_64"

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
# Those of a sandbox, in the order in which another process can enter them: with the mounts goes what it knew by path.
NAMESPACES = {"pid": NEWPID, "net": NEWNET, "ipc": NEWIPC, "uts": NEWUTS, "cgroup": NEWCGROUP, "mnt": NEWNS}
_CLONE_PIDFD = 0x1000
_SIGCHLD = 17

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 4096, 8192, 16384, 1 << 18
MNT_DETACH = 2

RESOLVE_BENEATH, RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS = 0x08, 0x10, 0x02, 0x04

REAL_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER_OR_LINK = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC  # for `open_beneath` alone, which says how far links lead

FICLONE = 0x40049409  # ioctl
XFS = 0x58465342  # of `kind_of_file_system`

_SYS_PIVOT_ROOT = 155 if _X86 else 41
_SYS_CAPSET = 126 if _X86 else 91
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_CLONE3, _SYS_CLOSE_RANGE, _SYS_OPENAT2 = 428, 429, 435, 436, 437
_SYS_MOUNT_SETATTR = 442
_SYS_LANDLOCK_CREATE_RULESET, _SYS_LANDLOCK_RESTRICT_SELF = 444, 446

_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_IDMAP = 0x1, 0x2, 0x4, 0x00100000
_O_CLOEXEC = 0o2000000
_TRIES = 1000

_libc = ctypes.CDLL(None, use_errno=True)
# The interpreter lock is kept across clone3: the child comes back into the same, single, thread.
_pylibc = ctypes.PyDLL(None, use_errno=True)
_mount, _umount = _libc.mount, _libc.umount2  # looked up once, and not in each fork


def _check(result: int, what: str, *details: object) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what.format(*details)}: {os.strerror(number)}")
    return result


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode(errors="surrogateescape")


def kind_of_file_system(path: str) -> int:
    """The number that statfs(2) has for the kind of file system that `path` lies on."""
    buffer = ctypes.create_string_buffer(256)  # larger than the structure, which begins with it
    _check(_libc.statfs(_bytes(path), buffer), "statfs {!r}", path)
    (kind,) = struct.unpack_from("@l", buffer)
    return int(kind)


# The arguments of mount(2). Made before a fork, they lie in pages that all forks share.
Mount: TypeAlias = tuple[bytes | None, bytes | None, bytes | None, ctypes.c_ulong, bytes | None]


def described(source: str | None, target: str, fstype: str | None, flags: int = 0, data: str | None = None) -> Mount:
    """What `mount` is to be told."""
    return _bytes(source), _bytes(target), _bytes(fstype), ctypes.c_ulong(flags), _bytes(data)


def mount_each(mounts: Iterable[Mount]) -> None:
    """mount(2), once for each of them."""
    for one in mounts:
        if _mount(*one) < 0:
            number, (_, target, fstype, _, _) = ctypes.get_errno(), one
            text = f"mount {os.fsdecode(fstype or b'bind')} on {os.fsdecode(target or b'')}"
            raise OSError(number, f"{text}: {os.strerror(number)}")


def mount(source: str | None, target: str, fstype: str | None, flags: int = 0, data: str | None = None) -> None:
    """mount(2)."""
    mount_each((described(source, target, fstype, flags, data),))


def unmount(target: str) -> None:
    """umount2(2), detaching."""
    _check(_umount(_bytes(target), MNT_DETACH), "unmount {}", target)


def pivot_into(root: str) -> None:
    """Make `root` the only file system of this mount namespace."""
    os.chdir(root)
    _check(_libc.syscall(_SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(flags), "unshare")


def enter_namespace(fd: int, kind: int) -> None:
    """setns(2)."""
    _check(_libc.setns(fd, kind), "setns")


class _CloneArgs(ctypes.Structure):
    _names = "flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size cgroup"
    _fields_ = [(name, ctypes.c_uint64) for name in _names.split()]


_pidfd = ctypes.c_int(-1)
_clone_args = _CloneArgs(exit_signal=_SIGCHLD, pidfd=ctypes.addressof(_pidfd))


def fork_into(flags: int) -> tuple[int, int]:
    """Fork into new namespaces.

    Returns (pid, pidfd) in the parent and (0, -1) in the child. For single-threaded callers only.
    """
    _clone_args.flags = flags | _CLONE_PIDFD
    # The interpreter's own after-fork work is left out: it renews what other threads held, and there are none. It
    # would cost a fifth of the whole fork in copied pages.
    pid = _check(_pylibc.syscall(_SYS_CLONE3, ctypes.byref(_clone_args), ctypes.sizeof(_clone_args)), "clone3")
    return (pid, _pidfd.value) if pid else (0, -1)


def bind_idmapped(source: str, target: str, userns_fd: int) -> None:
    """Bind `source` at `target` with file owners shifted into a user namespace (ext4, xfs, btrfs, ...; Linux 5.12)."""
    tree = clone_mount(source)
    try:
        _set_mount(tree, b"", f"idmap of {source}", _ATTR_IDMAP, userns_fd=userns_fd)
        attach(tree, target)
    finally:
        os.close(tree)


def clone_mount(source: str | int) -> int:
    """A mount of the directory `source` (a path, or a descriptor), attached nowhere: open_tree(2) (Linux 5.2).

    What is mounted beneath it is not in it. It ends with the last descriptor of it.
    """
    at, path, flags = (_AT_FDCWD, source, 0) if isinstance(source, str) else (source, "", _AT_EMPTY_PATH)
    result = _libc.syscall(_SYS_OPEN_TREE, at, _bytes(path), 1 | flags | _O_CLOEXEC)
    return _check(result, "open_tree {}", source)


def clone_tree(folder: int, name: str) -> int:
    """A mount of `name` in the open directory `folder`, with what is mounted beneath it, attached nowhere.

    A link is not followed.
    """
    no_follow, recursive = 0x100, 0x8000
    result = _libc.syscall(_SYS_OPEN_TREE, folder, _bytes(name), 1 | no_follow | recursive | _O_CLOEXEC)
    return _check(result, "open_tree {}", name)


def attach(tree: int, target: str | int) -> None:
    """Put a mount of `clone_mount` on the directory `target` (a path, or a descriptor)."""
    if isinstance(target, str):
        result = _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, _bytes(target), 0x4)
    else:
        result = _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", target, b"", 0x4 | 0x40)
    _check(result, "move_mount")


def confine(tree: int | str, read_only: bool, userns_fd: int | None = None) -> None:
    """Take from a mount (a descriptor, or its path) the set-user-id bit, devices, propagation and, if wanted, writing.

    With a user namespace its file owners are shifted into that.
    """
    attributes = _ATTR_NOSUID | _ATTR_NODEV | (_ATTR_RDONLY if read_only else 0)
    if userns_fd is not None:
        attributes |= _ATTR_IDMAP
    at, path = (_AT_FDCWD, tree) if isinstance(tree, str) else (tree, "")
    _set_mount(at, _bytes(path), "a mount's flags", attributes, MS_PRIVATE, userns_fd or 0)


def make_read_only(target: str) -> None:
    """Take writing away from a mount, whatever its other properties are (Linux 5.12)."""
    _set_mount(_AT_FDCWD, _bytes(target), f"read-only of {target}", _ATTR_RDONLY)


def _set_mount(
    at: int, path: bytes | None, what: str, attributes: int, propagation: int = 0, userns_fd: int = 0
) -> None:
    wanted = ctypes.create_string_buffer(struct.pack("QQQQ", attributes, 0, propagation, userns_fd), 32)
    flags = 0 if path else _AT_EMPTY_PATH
    _check(_libc.syscall(_SYS_MOUNT_SETATTR, at, path, flags, wanted, 32), "mount_setattr({})", what)


def open_beneath(base: int, path: str, flags: int, resolve: int) -> int:
    """openat2(2): open `path` under the directory `base`, resolving links as `resolve` says."""
    how = ctypes.create_string_buffer(struct.pack("QQQ", flags | _O_CLOEXEC, 0, resolve), 24)
    for _ in range(_TRIES):
        fd = _libc.syscall(_SYS_OPENAT2, base, _bytes(path or "."), how, 24)
        if fd >= 0:
            return int(fd)
        if ctypes.get_errno() != errno.EAGAIN:  # which says: something was renamed while a ".." of a link was resolved
            break
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), path)


def close_all_but(*keep: int) -> None:
    """Close every descriptor above 2 that is not in `keep`, whose numbers ascend."""
    start = 3
    for fd in (*keep, 0x7FFFFFFF):  # os.closerange would try each, in a Python built for an older C library
        if start < fd:
            _check(_libc.syscall(_SYS_CLOSE_RANGE, start, fd - 1, 0), "close_range")
        start = fd + 1


_SIG_BLOCK, _SFD_NONBLOCK = 0, 0o4000
_CHILD_ENDED = ctypes.create_string_buffer(struct.pack("Q", 1 << (_SIGCHLD - 1)), 128)  # as a set of signals


def ends_of_children() -> int:
    """A descriptor, never blocking, that can be read when a child has ended: signalfd(2), with the signal blocked."""
    _libc.signal(_SIGCHLD, None)  # its default, not ignored: children wait to be reaped
    _check(_libc.sigprocmask(_SIG_BLOCK, _CHILD_ENDED, None), "sigprocmask")
    return _check(_libc.signalfd(-1, _CHILD_ENDED, _SFD_NONBLOCK | _O_CLOEXEC), "signalfd")


_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME = 1, 4, 15
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 22, 24, 36, 38


_CAP_HEADER = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0), 8)  # version 3, of this process


def drop_bounding_set(keep: frozenset[int]) -> None:
    """No program executed from here on can have a capability that is not in `keep`; this process still has."""
    for capability in range(64):
        if capability not in keep and _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the kernel's last capability


def capability_sets(keep: frozenset[int]) -> bytes:
    """What `keep_capabilities` is to be told."""
    high, low = divmod(sum(map((1).__lshift__, keep)), 1 << 32)
    return struct.pack("6I", low, low, 0, high, high, 0)  # effective, permitted and inheritable


def keep_capabilities(sets: bytes) -> None:
    """Drop every capability not in `sets`."""
    _check(_libc.syscall(_SYS_CAPSET, _CAP_HEADER, sets), "capset")


def no_new_privileges() -> None:
    """No program executed from here on gains anything by being setuid."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


_SCOPE_SIGNALS = struct.pack("QQQ", 0, 0, 2)  # of files and ports nothing is asked


def enter_domain() -> bool:
    """From here on this process and its descendants can send no signal to others, nor look into them: Landlock.

    Files and networks are as ever. False where the kernel cannot do it (before Linux 6.12), and nothing has changed.
    """
    ruleset = _libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, _SCOPE_SIGNALS, len(_SCOPE_SIGNALS), 0)
    if ruleset < 0:
        return False
    try:
        return bool(_libc.syscall(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def reap_orphans() -> None:
    """Have descendants whose parent has ended become children of this process."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "no reaper of orphans")


def die_with_parent() -> None:
    """Be killed when the process that forked this one ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "pdeathsig")


def set_dumpable(dumpable: bool) -> None:
    """Whether other processes of this user may read this one's memory and follow its /proc links."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0), "dumpable")


def rename_process(name: bytes) -> None:
    """Have `ps` show `name` instead of the arguments this process was started with, to everybody and for good."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5), counted behind the name
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, name, min(len(name), end - start - 1))
    _check(_libc.prctl(_PR_SET_NAME, name, 0, 0, 0), "process name")


class Filter(ctypes.Structure):
    """A seccomp filter, 8 bytes an instruction."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    @classmethod
    def of(cls, program: bytes) -> Filter:
        """That of a compiled program."""
        return cls(len(program) // 8, program)


def install_filter(program: Filter) -> None:
    """Install a seccomp filter on this process and its descendants."""
    _check(_libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0), "seccomp")
