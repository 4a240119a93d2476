"""A small root file system of this machine's own programs: enough of a Debian for the contract."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

PROGRAMS = """
bash sh cat head tail od stat readlink truncate mkfifo setsid sed grep ls cp mv rm mkdir rmdir ln chmod chown touch
sleep id env printf echo test true false wc sort uniq tr seq yes nohup sha256sum timeout kill ps hostname find xargs
stty tty paste cut tee dd df mount umount ipcmk unshare awk mktemp date expr basename dirname uname
""".split()
_PASSWD = """root:x:0:0::/root:/bin/sh
daemon:x:1:1::/:/bin/sh
nobody:x:65534:65534::/:/bin/sh
worker:x:1001:1002::/home/worker:/bin/sh
"""
_GROUP = "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\nworker:x:1002:\n"


def root_archive(python: bool = False) -> bytes:
    """A tar of it, everything owned by root; with this machine's own Python when asked for."""
    files = {"etc/passwd": _PASSWD.encode(), "etc/group": _GROUP.encode()}
    if python:
        files.update(_python())
    for program in PROGRAMS:
        if found := shutil.which(program, path="/usr/bin:/bin:/usr/sbin:/sbin"):
            files[f"bin/{program}"] = Path(found).read_bytes()
            files.update({path.lstrip("/"): Path(path).read_bytes() for path in _libraries(found)})
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, mode in (("tmp", 0o1777), ("root", 0o700), ("home/worker", 0o755), ("run", 0o755), ("usr", 0o755)):
            _add(archive, name, None, mode)
        for name, data in files.items():
            _add(archive, name, data, 0o644 if name.startswith("etc/") else 0o755)
        link = tarfile.TarInfo("usr/bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/bin"
        archive.addfile(link)
    return buffer.getvalue()


def has_python() -> bool:
    """Whether there is a Python of the system to put into it."""
    return bool(shutil.which("python3", path="/usr/bin") and list(Path("/usr/lib").glob("python3.*/os.py")))


def _python() -> dict[str, bytes]:
    """The interpreter and its standard library, without its tests."""
    program = Path("/usr/bin/python3").resolve()
    library = Path("/usr/lib") / program.name
    files = {"bin/python3": program.read_bytes()}
    for path in [*library.rglob("*.py"), *(library / "lib-dynload").glob("*.so")]:
        if not {"test", "tests", "idlelib", "lib2to3", "ensurepip"} & set(path.relative_to(library).parts):
            files[str(path).lstrip("/")] = path.read_bytes()
            if path.suffix == ".so":
                files.update({each.lstrip("/"): Path(each).read_bytes() for each in _libraries(str(path))})
    files.update({each.lstrip("/"): Path(each).read_bytes() for each in _libraries(str(program))})
    return files


def _add(archive: tarfile.TarFile, name: str, data: bytes | None, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.mode, info.size, info.type = mode, len(data or b""), tarfile.DIRTYPE if data is None else tarfile.REGTYPE
    archive.addfile(info, io.BytesIO(data or b""))


def _libraries(program: str) -> list[str]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/\S+) \(0x", said)
