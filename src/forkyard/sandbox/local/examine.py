"""What the local provider looks for on a machine, and how to get what is missing."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from forkyard.errors import ForkyardError, SandboxError
from forkyard.sandbox.abilities import StandsApart
from forkyard.sandbox.findings import Finding
from forkyard.sandbox.inside import PLACE
from forkyard.sandbox.inside.kernel import FICLONE
from forkyard.sandbox.local.cgroups import NAMES, Controllers
from forkyard.sandbox.local.diskwatch import FreeSpace
from forkyard.sandbox.protocol import Provider, Sandbox
from forkyard.sandbox.values import SandboxSpec

_OLDEST = (5, 11)  # overlayfs in user namespaces
_MACHINES = ("x86_64", "aarch64")  # those whose system calls the filter knows
_PROBE = "import sys; sys.path.append(sys.argv[1]); from inside import kernel; kernel.unshare(kernel.NEWUSER)"
_START_SECONDS = 60
_NO_UPPER = ("overlay", "nfs", "nfs4", "cifs", "smb3", "vfat", "exfat", "9p", "fuse")  # cannot hold an upper layer
_IN_DOCKER = (
    "docker run --privileged ..., or with less: docker run --cap-add SYS_ADMIN --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined ..."
)


async def examine(provider: Provider, home: Path, many_users: bool, controllers: Controllers) -> list[Finding]:
    """Everything there is to know, ending with a sandbox that was really started."""
    return [
        _machine(),
        await asyncio.to_thread(_user_namespaces),
        *await asyncio.to_thread(_storage, home),
        *await _sandbox(provider),
        _users(many_users),
        _control_groups(controllers),
        *_programs(),
    ]


def _machine() -> Finding:
    release, machine = platform.release(), platform.machine()
    new = tuple(int(part) for part in release.split("-")[0].split(".")[:2]) >= _OLDEST
    mend = "" if new else f"boot Linux {'.'.join(map(str, _OLDEST))} or newer"
    if machine not in _MACHINES:
        mend = f"use a machine of the kind {' or '.join(_MACHINES)}"
    return Finding("kernel", not mend, f"Linux {release} on {machine}", mend, needed=True)


def _user_namespaces() -> Finding:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROBE, PLACE], capture_output=True, text=True, check=False, env={}
    )
    name = "user namespaces"
    if done.returncode == 0:
        return Finding(name, True, "can be made", needed=True)
    said = done.stderr.strip().rpartition("\n")[2] or f"the probe ended with {done.returncode}"
    return Finding(name, False, said, _namespace_mend(), needed=True)


def _namespace_mend() -> str:
    """What most likely keeps this user from making a user namespace, and the command against it."""
    if not Path("/proc/self/ns/user").exists():
        return "boot a kernel with CONFIG_USER_NS"
    for setting, bad, good in (
        ("user.max_user_namespaces", "0", "28633"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ):
        if _setting(setting) == bad:
            kept = f"echo {setting}={good} > /etc/sysctl.d/60-forkyard.conf"
            return f"as root: sysctl -w {setting}={good} (to keep it: {kept})"
    if in_container():
        return f"this is a container that forbids them: {_IN_DOCKER}"
    return "run as root, or ask who manages this machine: a security module or seccomp filter refuses them"


def _setting(name: str) -> str | None:
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return None


def in_container() -> bool:
    """Whether this process runs in a container of Docker, Podman or the like."""
    return Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()


def _storage(home: Path) -> list[Finding]:
    try:
        home.mkdir(parents=True, exist_ok=True)
        kind = file_system_of(home)
        reflink = _can_reflink(home)
    except OSError as err:
        mend = "set FORKYARD_HOME to a directory of yours"
        return [Finding("FORKYARD_HOME", False, f"{home}: {err.strerror}", mend, needed=True)]
    fits = not kind.startswith(_NO_UPPER)
    where = Finding(
        "FORKYARD_HOME",
        fits,
        f"{home} on {kind}",
        "" if fits else f"set FORKYARD_HOME to a directory on ext4, xfs, btrfs or tmpfs: {kind} cannot be forked on",
        needed=True,
    )
    copies = Finding(
        "reflink",
        reflink,
        f"{kind} {'shares' if reflink else 'does not share'} the blocks of copied files",
        "" if reflink else "put FORKYARD_HOME on xfs or btrfs: a fork of a running sandbox then copies no data",
    )
    return [where, _free_space(home), copies]


def _free_space(home: Path) -> Finding:
    try:
        FreeSpace(home).check()
    except SandboxError as err:
        return Finding("free space", False, str(err), "forkyard sandbox sweep", needed=True)
    found = os.statvfs(home)
    inodes = f", {found.f_favail} inodes" if found.f_files else ""
    return Finding("free space", True, f"{found.f_bavail * found.f_frsize >> 20} MB{inodes}", needed=True)


def file_system_of(path: Path) -> str:
    """The kind of file system that `path` lies on."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:  # by its mount: what a directory of btrfs says its device is, no mount does
        about = dict(line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines())
    finally:
        os.close(fd)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[0] == about["mnt_id"].strip():
            return fields[fields.index("-") + 1]
    return "an unknown file system"


def _can_reflink(directory: Path) -> bool:
    with tempfile.TemporaryFile(dir=directory) as source, tempfile.TemporaryFile(dir=directory) as target:
        source.write(bytes(4096))
        source.flush()
        try:
            fcntl.ioctl(target, FICLONE, source.fileno())
        except OSError as err:
            if err.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.EXDEV, errno.ENOSYS):
                return False
            raise
    return True


async def _sandbox(provider: Provider) -> list[Finding]:
    name = "a sandbox"
    try:
        async with asyncio.timeout(_START_SECONDS):
            await (await provider.create(SandboxSpec())).close()
            started = time.perf_counter()
            sandbox = await provider.create(SandboxSpec())
            try:
                result = await sandbox.run(["true"])
                took = (time.perf_counter() - started) * 1000
                apart = await _stands_apart(sandbox)
            finally:
                await sandbox.close()
    except (ForkyardError, OSError) as err:
        return [Finding(name, False, str(err), "mend what is missing above, or see the message", needed=True)]
    said = f"started and ran a command in {took:.1f} ms" if result.ok else f"`true` ended with {result.exit_code}"
    return [Finding(name, result.ok, said, needed=True), apart]


async def _stands_apart(sandbox: Sandbox) -> Finding:
    """Whether what an agent leaves running has no hold on a verifier beside it."""
    name = "verifiers apart"
    apart = await sandbox.apart(()) if isinstance(sandbox, StandsApart) else None
    if apart is None:
        mend = "boot Linux 6.12 or newer with Landlock (`landlock` in /sys/kernel/security/lsm), or grade `separate`"
        return Finding(name, False, "what an agent leaves running can reach a verifier in its sandbox", mend)
    await apart.close()
    return Finding(name, True, "what an agent leaves running cannot reach a verifier in its sandbox")


def shifted_usr(shifted: bool) -> Finding:
    """Whether root's engine can show the machine's /usr as the sandboxes' own."""
    name = "idmapped mounts"
    if shifted:
        return Finding(name, True, "the image host shows the machine's /usr with its owners")
    mend = "boot Linux 5.12 or newer, with /usr on ext4, xfs or btrfs"
    return Finding(name, False, "in the image host, files of the machine's /usr cannot be changed in place", mend)


def _users(many: bool) -> Finding:
    if many:
        return Finding("users", True, "65536 users exist in a sandbox")
    mend = "as root: apt-get install uidmap; usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER"
    if os.getuid() == 0:
        mend = f"this root owns too few ids, as in a container with users of its own: {_IN_DOCKER} without userns-remap"
    return Finding("users", False, "only root exists in a sandbox", mend)


def _control_groups(controllers: Controllers) -> Finding:
    places = {name: getattr(controllers, name) for name in NAMES}
    there = [f"{name} (version {2 if place.unified else 1})" for name, place in places.items() if place]
    missing = [name for name, place in places.items() if place is None]
    detail = f"{', '.join(there) or 'none'}; not usable: {', '.join(missing)}" if missing else ", ".join(there)
    return Finding("control groups", not missing, detail, _delegation_mend(missing) if missing else "")


def _delegation_mend(missing: list[str]) -> str:
    if os.getuid() == 0:
        if in_container():
            return f"make them writable in the container: {_IN_DOCKER}"
        return f"boot a kernel with {', '.join(missing)} (cgroup_enable=memory where that is switched off)"
    if not any((Path("/sys/fs/cgroup") / place / "cgroup.controllers").exists() for place in (".", "unified")):
        return "run as root: control groups of version 1 cannot be handed to other users"
    drop_in = "/etc/systemd/system/user@.service.d/delegate.conf"
    return (
        "start it as: systemd-run --user --scope -p Delegate=yes forkyard ...; if that does not bring "
        f"{', '.join(missing)}, as root: mkdir -p {Path(drop_in).parent} && "
        rf"printf '[Service]\nDelegate=cpu memory pids\n' > {drop_in} && systemctl daemon-reload, and log in again"
    )


def _programs() -> list[Finding]:
    wanted = (
        (("slirp4netns",), "network public", "apt-get install slirp4netns"),
        (("debootstrap", "mmdebstrap"), "images without a registry", "apt-get install mmdebstrap"),
    )
    found = []
    places = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # of which the last two are root's
    for names, purpose, mend in wanted:
        path = next((path for name in names if (path := shutil.which(name, path=places))), None)
        detail = path or f"not in PATH; it is for {purpose}"
        found.append(Finding(" or ".join(names), path is not None, detail, "" if path else mend))
    return found
