"""Rooms import downwards only; docs/architecture.md draws the same table."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "forkyard"

# Lowest row first. A module may import rooms of lower rows, and its own room.
LAYERS = (
    ("errors", "fetching", "files", "interrupt", "locks", "programs", "secrets", "values"),
    ("plugins", "wire"),
    ("sandbox", "trace"),
    ("image", "model", "disk"),
    ("task",),
    ("harness", "gateway"),
    ("tools",),
    ("grade",),
    ("env",),
    ("run", "report"),
    ("server",),
    ("client",),
    ("cli", "offered"),
)
ROW = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}


def imports_of(path: Path) -> list[tuple[int, str]]:
    """The rooms a file imports from, with line numbers; relative imports stay inside a room."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        found += [(node.lineno, name) for name in names if name == "forkyard" or name.startswith("forkyard.")]  # type: ignore[attr-defined]
    return found


def test_every_room_is_in_the_table() -> None:
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__pycache__", "py"} == set(ROW)


def test_rooms_import_downwards_only() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for line, name in imports_of(path):
            other = name.split(".")[1] if "." in name else ""
            if not other or (other != room and ROW[other] >= ROW[room]):
                wrong.append(f"{path.relative_to(SOURCE)}:{line} imports {name}")
    assert wrong == []


def test_tasks_are_read_without_the_client_of_models() -> None:
    # The package root names everything there is, so the room is imported under an empty root.
    code = """if True:
        import sys, types
        sys.modules["forkyard"] = root = types.ModuleType("forkyard")
        root.__path__ = [sys.argv[1]]
        import forkyard.task
        loaded = [name for name in sys.modules if name.split(".")[0] == "httpx2" or name == "forkyard.model"]
        assert not loaded, loaded
    """
    subprocess.run([sys.executable, "-c", code, str(SOURCE)], check=True)


def test_the_documentation_draws_the_same_rows() -> None:
    text = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    drawn = [line for line in text.splitlines() if line.startswith("| ") and line.endswith(" |")]
    rows = [tuple(cell.strip("` ") for cell in line.split("|")[1].split(",")) for line in drawn]
    assert [row for row in rows if row[0] in ROW] == list(reversed(LAYERS))
