"""What is mounted into every container: this machine's Python, as much of it as PID 1 needs, and the code of PID 1.

An image needs no Python then, nor any other program (see `ownpython`).
"""

from __future__ import annotations

import hashlib
import py_compile
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from forkyard.errors import ConfigError
from forkyard.sandbox import ownpython
from forkyard.sandbox.docker.agent import HERE
from forkyard.sandbox.inside import PLACE
from forkyard.sandbox.ownpython import PYTHON, STANDARD, VERSION, command
from forkyard.values import new_id

_PROGRAM = f"import sys; sys.path.append('{HERE}/app'); from agent import agent; agent.main()"
_ASK = """
import sys
sys.path += sys.argv[1:]
from agent import agent
specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
files = sorted({spec.origin for spec in specs if spec and spec.has_location and spec.origin})
"""


class Tools(NamedTuple):
    """Where they are on this machine, and how PID 1 is started with them mounted."""

    directory: Path
    command: tuple[str, ...]


def make_tools(home: Path) -> Tools:
    """The tools of this Python under a home, made when they are not there. ConfigError when they cannot be made."""
    version = home / f"tools-{_digest()}"
    if not version.exists():
        _build(home / f".tools-{new_id()}", version)
    current, new = home / "tools", home / f".tools-{new_id()}"
    new.symlink_to(version.name)  # containers made earlier start with the newest, too
    new.replace(current)
    return Tools(current, command(HERE, _PROGRAM))


def _digest() -> str:
    found = hashlib.sha256(f"{sys.version} {PYTHON}".encode())
    for folder in (Path(PLACE) / "inside", Path(__file__).parent / "agent"):
        for path in sorted(folder.glob("*.py")):
            found.update(path.read_bytes())
    for source in (__file__, ownpython.__file__):
        found.update(Path(source).read_bytes())
    return found.hexdigest()[:16]


def _build(draft: Path, target: Path) -> None:
    files, mapped = ownpython.asked(_ASK, PLACE, str(Path(__file__).parent), isolated=True)
    try:
        ownpython.place(draft, mapped, skip=lambda path: path in files)
        for path in (*files, STANDARD / "os.py"):
            _place_module(path, draft)
        (draft / sys.platlibdir / VERSION / "lib-dynload").mkdir(parents=True, exist_ok=True)
        (draft / "run").mkdir()
        draft.chmod(0o755)
        draft.rename(target)
    except OSError as err:
        shutil.rmtree(draft, ignore_errors=True)
        if not target.exists():  # another process was as fast
            raise ConfigError(f"the docker provider cannot make {target}: {err}") from err


def _place_module(path: Path, draft: Path) -> None:
    if not path.is_relative_to(STANDARD):
        _compiled(path, draft / "app" / path.parent.name / path.name)
    elif path.suffix == ".py":
        _compiled(path, draft / "lib" / VERSION / path.relative_to(STANDARD))
    else:
        ownpython.copy(path, draft / sys.platlibdir / VERSION / "lib-dynload" / path.name)


def _compiled(path: Path, target: Path) -> None:
    ownpython.copy(path, target)
    py_compile.compile(str(target), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
