"""A kernel and a root file system of Debian 12's packages for a virtual machine; kept for later test runs."""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.trixie import APT, KEPT, KEYS, had

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# An old kernel and a newer one, since some of what the engine uses is in the newer alone (signals kept by Landlock).
KERNELS = {"x86_64": "bookworm", "aarch64": "bookworm-backports"}
DEBS = ("base-files", "bash", "busybox-static", "coreutils", "dash", "python3.11", "uidmap")
MISSING = "a virtual machine's packages cannot be had"
# What the disk is read with, and what sandboxes stand on, in an order in which they can be loaded; some are built in.
MODULES = (
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "overlay",
)
# Debian's packages still say /bin where the directory is /usr/bin by now.
MERGED = ("bin", "sbin", "lib", "lib64")
UNNEEDED = ("./usr/share/doc", "./usr/share/man", "./usr/share/locale", "./usr/share/info", "./usr/lib/*/gconv")
APPLETS = ("awk", "find", "grep", "ps", "sed", "tar", "xargs")
PASSWD = "root:x:0:0:root:/root:/bin/bash\ntester:x:1000:1000:tester:/home/tester:/bin/bash\n"
GROUP = "root:x:0:\ntester:x:1000:\n"
SUBORDINATE = "tester:100000:65536\n"
BEGIN = f"""\
#!/bin/busybox sh
PATH=/bin
busybox mount -t devtmpfs dev /dev
for module in {" ".join(MODULES)}; do
    if [ -e /modules/$module.ko ]; then busybox insmod /modules/$module.ko; fi
done
busybox mount -t ext4 -o noatime /dev/vda /root
busybox mount -t tmpfs tmpfs /root/forkyard
busybox tar -xf /dev/vdb -C /root/forkyard
busybox mount --move /dev /root/dev
exec busybox switch_root /root /usr/bin/python3.11 -I -S /forkyard/tests/machine/inside/begin.py
"""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a machine is started with."""

    kernel: Path
    initramfs: Path
    disk: Path


def parts(machine: str) -> Parts:
    """The parts of an x86_64 or aarch64 machine; skips the test where they cannot be had, and says why."""
    for program in ("apt-get", "apt-cache", "dpkg-deb", "mke2fs"):
        if shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin") is None:
            pytest.skip(f"{program} is missing: {MISSING}")
    if os.getuid() != 0:
        pytest.skip("needs root: the files of the machine's disk are root's")
    if not KEYS.exists():
        pytest.skip(f"{KEYS} is missing (apt-get install debian-archive-keyring)")
    recipe = hashlib.sha256(Path(__file__).read_bytes() + sys.version.encode()).hexdigest()[:12]
    kept = KEPT / f"machine-{machine}-{recipe}"
    KEPT.mkdir(parents=True, exist_ok=True)
    with _alone(KEPT / f"machine-{machine}.lock"):
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=KEPT, prefix="machine-") as directory:
                _make(machine, Path(directory), Path(directory) / "parts")
                (Path(directory) / "parts").rename(kept)
    return Parts(kept / "kernel", kept / "initramfs", kept / "disk")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Held by one test run at a time: what another makes meanwhile is waited for."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(machine: str, work: Path, target: Path) -> None:
    target.mkdir()
    kernel, debs = _fetch(ARCHITECTURES[machine], KERNELS[machine], work)
    root, begin = work / "root", work / "begin"
    (begin / "modules").mkdir(parents=True)
    _unpack_kernel(kernel, target / "kernel", begin / "modules")
    for name in MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for deb in debs:
        _unpack(deb, root)
    _furnish(root)
    _compile(root / "usr/lib/python3.11")
    _pack_begin(root / "bin/busybox", begin, target / "initramfs")
    disk = ["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", str(root), str(target / "disk"), "900M"]
    subprocess.run(["mke2fs", *disk], check=True, env={**os.environ, "PATH": f"{os.environ['PATH']}:/sbin"})


def _fetch(architecture: str, suite: str, work: Path) -> tuple[Path, list[Path]]:
    """The kernel's package, and all others."""
    apt = work / "apt"
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()
    suites = sorted({"bookworm", suite})
    sources = (f"deb [signed-by={KEYS}] http://deb.debian.org/debian {one} main\n" for one in suites)
    (apt / "sources.list").write_text("".join(sources))
    own = f'APT::Architecture "{architecture}";\nAPT::Architectures {{ "{architecture}"; }};\n'
    (apt / "apt.conf").write_text(APT.format(apt) + own)
    config = str(apt / "apt.conf")
    had(["apt-get", "-qq", "update", "--error-on=any"], MISSING, APT_CONFIG=config)
    had(["apt-get", "-qq", "-y", "--download-only", "install", *DEBS], MISSING, APT_CONFIG=config)
    release = ["-o", f"APT::Default-Release={suite}"]
    newest = ["apt-cache", "depends", "--important", *release, f"linux-image-cloud-{architecture}"]
    listed = subprocess.run(newest, env={**os.environ, "APT_CONFIG": config}, capture_output=True, text=True).stdout
    names = [line.split()[-1] for line in listed.splitlines() if "Depends: linux-image-" in line]
    if not names:
        pytest.skip(f"{MISSING}: Debian has no kernel linux-image-cloud-{architecture}")
    had(["apt-get", "-qq", "download", names[0]], MISSING, cwd=work, APT_CONFIG=config)
    (kernel,) = work.glob("linux-image-*.deb")
    return kernel, sorted((apt / "cache/archives").glob("*.deb"))


def _unpack(deb: Path, target: Path) -> None:
    """Only unpack a package: no script of it is needed."""
    options = ["--keep-directory-symlink", "--wildcards", *(f"--exclude={path}" for path in UNNEEDED)]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as packed:
        subprocess.run(["tar", "-x", "-C", target, *options], stdin=packed.stdout, check=True)


def _unpack_kernel(deb: Path, image: Path, modules: Path) -> None:
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as packed,
        tarfile.open(fileobj=packed.stdout, mode="r|") as archive,
    ):
        for entry in archive:
            name = Path(entry.name).name
            if name.startswith("vmlinuz-"):
                image.write_bytes(_content(archive, entry))
            elif name.partition(".ko")[0] in MODULES and ".ko" in name:
                content = _content(archive, entry)
                plain = lzma.decompress(content) if name.endswith(".xz") else content
                (modules / f"{name.partition('.')[0]}.ko").write_bytes(plain)


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(entry)
    assert file is not None
    return file.read()


def _furnish(root: Path) -> None:
    for name in ("dev", "proc", "sys", "run", "tmp", "forkyard", "home/tester"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    os.chown(root / "home/tester", 1000, 1000)
    texts = {"passwd": PASSWD, "group": GROUP, "subuid": SUBORDINATE, "subgid": SUBORDINATE, "hostname": "machine\n"}
    for name, text in texts.items():
        (root / "etc" / name).write_text(text)
    (root / "usr/bin/python3").symlink_to("python3.11")
    for name in APPLETS:
        if not os.path.lexists(root / "usr/bin" / name):
            (root / "usr/bin" / name).symlink_to("busybox")


def _compile(library: Path) -> None:
    """What a package's script would do; an emulated machine would take minutes."""
    if sys.version_info[:2] == (3, 11):
        compile_tree(library)


def compile_tree(directory: Path) -> None:
    """Compile the modules beneath a directory, to be used whatever the times of their sources are."""
    command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(directory)]
    subprocess.run([*command, "-x", "/(lib2to3|idlelib|pydoc_data|unittest|test|distutils|tkinter)/"], check=True)


def _pack_begin(busybox: Path, begin: Path, archive: Path) -> None:
    """The first root, which has the modules that the disk is read with."""
    for name in ("bin", "dev", "root"):
        (begin / name).mkdir()
    shutil.copy(busybox, begin / "bin/busybox")
    (begin / "init").write_text(BEGIN)
    (begin / "init").chmod(0o755)
    archive.write_bytes(
        b"".join(_entry(path, begin) for path in sorted(begin.rglob("*"))) + _record("TRAILER!!!", 0, b"")
    )


def _entry(path: Path, top: Path) -> bytes:
    content = path.read_bytes() if path.is_file() else b""
    return _record(str(path.relative_to(top)), path.stat().st_mode, content)


def _record(name: str, mode: int, content: bytes) -> bytes:
    """One file of an archive as the kernel reads it: cpio's format "newc"."""
    numbers = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + name.encode() + b"\0"
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
