"""What a sandbox changed, as a unified diff of its text files that `git apply` and `patch -p1` take."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack

from forkyard.errors import NotAFile, SandboxError, TooLarge
from forkyard.sandbox.protocol import Sandbox
from forkyard.values import MIB

PATCH_LIMIT = 1 * MIB
FILE_LIMIT = 256 << 10
_COMPARED = 250_000  # pairs of lines: comparing takes time in this number, and hostile files make the most of it
_CONTEXT = 3


async def patch(sandbox: Sandbox, max_bytes: int = PATCH_LIMIT) -> str:
    """The changes of `sandbox` to text files, against what it started from. Needs the feature `changes`.

    Files over 256 KiB and those that are no text are named only. Not in it are links, modes, and what a deleted
    directory held: `Sandbox.changes` tells of them. SandboxError when the patch is over `max_bytes`.
    """
    changes = [change for change in await sandbox.changes() if change.regular and _printable(change.path)]
    pieces: list[str] = []
    size = 0
    async with AsyncExitStack() as stack:
        now = sandbox
        if sandbox.info.state == "stopped":
            now = await sandbox.fork()
            stack.push_async_callback(now.close)
        before = await sandbox.pristine()
        stack.push_async_callback(before.close)
        for change in changes:
            old = None if change.kind == "added" else await _content(before, change.path)
            new = None if change.kind == "deleted" else await _content(now, change.path)
            piece = "".join(_difference(change.path, old, new))
            size += len(piece.encode())
            if size > max_bytes:
                raise SandboxError(f"the patch of sandbox {sandbox.id[:12]} is over the {max_bytes} byte limit")
            pieces.append(piece)
    return "".join(pieces)


def _printable(path: str) -> bool:
    return path.isprintable() and '"' not in path and "\\" not in path


async def _content(sandbox: Sandbox, path: str) -> bytes | str | None:
    """The bytes of a file, "large" in place of too many, None when it is gone."""
    try:
        return await sandbox.read(path, FILE_LIMIT)
    except (OSError, NotAFile):  # also when a process put something else in its place meanwhile
        return None
    except TooLarge:
        return "large"


def _difference(path: str, old: bytes | str | None, new: bytes | str | None) -> Iterator[str]:
    name = path.lstrip("/")
    if old == new and not isinstance(old, str):  # its mode alone is another
        return
    yield f"diff --git a/{name} b/{name}\n"
    if old is None:
        yield "new file mode 100644\n"
    if new is None:
        yield "deleted file mode 100644\n"
    one, other = _text(old), _text(new)
    if one is None or other is None:
        yield f"Binary files {'/dev/null' if old is None else f'a/{name}'} and "
        yield f"{'/dev/null' if new is None else f'b/{name}'} differ\n"
        return
    hunks = list(_hunks(_split(one), _split(other)))
    if hunks:
        yield f"--- {'/dev/null' if old is None else f'a/{name}'}\n"
        yield f"+++ {'/dev/null' if new is None else f'b/{name}'}\n"
        yield from hunks


def _text(content: bytes | str | None) -> str | None:
    """The content as lines of text that end in nothing but newlines; None when it is something else."""
    if not isinstance(content, bytes):
        return "" if content is None else None
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _split(text: str) -> list[str]:
    """Lines as diff has them: they end in a newline, whatever else is in them."""
    *lines, rest = text.split("\n")
    return [f"{line}\n" for line in lines] + ([rest] if rest else [])


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    for group in filter(None, _groups(_steps(old, new))):
        (_, first_old, _, first_new, _), (_, _, last_old, _, last_new) = group[0], group[-1]
        yield f"@@ -{_range(first_old, last_old)} +{_range(first_new, last_new)} @@\n"
        for kind, old_start, old_end, new_start, new_end in group:
            if kind == "equal":
                yield from _lines(" ", old[old_start:old_end])
                continue
            yield from _lines("-", old[old_start:old_end])
            yield from _lines("+", new[new_start:new_end])


Step = tuple[str, int, int, int, int]


def _steps(old: Sequence[str], new: Sequence[str]) -> list[Step]:
    """How one becomes the other: what they share at both ends is found at once, the middle only when it is small."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    one, other = old[head : len(old) - tail], new[head : len(new) - tail]
    middle: list[Step] = [("replace", 0, len(one), 0, len(other))] if one or other else []
    if middle and len(one) * len(other) <= _COMPARED:
        middle = list(difflib.SequenceMatcher(None, one, other).get_opcodes())
    moved = [(kind, a + head, b + head, c + head, d + head) for kind, a, b, c, d in middle]
    ends = ("equal", 0, head, 0, head), ("equal", len(old) - tail, len(old), len(new) - tail, len(new))
    return [step for step in (ends[0], *moved, ends[1]) if step[2] > step[1] or step[4] > step[3]]


def _groups(steps: list[Step]) -> Iterator[list[Step]]:
    """Steps with a little of what is equal around them; what is far apart is apart."""
    group: list[Step] = []
    for step in steps:
        group.append(step)
        if step[0] == "equal" and step[2] - step[1] > 2 * _CONTEXT:
            yield _trimmed(group)
            group = [step]
    yield _trimmed(group)


def _trimmed(group: list[Step]) -> list[Step]:
    """With no more than the context before the first change and after the last; empty when nothing changes."""
    if all(step[0] == "equal" for step in group):
        return []
    (first, a, b, c, d), *_ = group
    if first == "equal":
        group[0] = (first, max(a, b - _CONTEXT), b, max(c, d - _CONTEXT), d)
    *_, (last, a, b, c, d) = group
    if last == "equal":
        group[-1] = (last, a, min(b, a + _CONTEXT), c, min(d, c + _CONTEXT))
    return group


def _range(start: int, end: int) -> str:
    return f"{start + 1 if end > start else start},{end - start}"


def _lines(sign: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"
