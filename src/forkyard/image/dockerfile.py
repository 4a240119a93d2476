"""Reading a Dockerfile: every instruction understood or refused by name, all problems of the file at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.image.instructions import Arg, Dockerfile, From, Instruction, Stage
from forkyard.image.lines import logical_lines
from forkyard.image.parsers import parse_instruction
from forkyard.image.problem import Problem
from forkyard.image.statement import cut
from forkyard.values import printable

_LARGEST = 1 << 20


def read_dockerfile(path: Path) -> Dockerfile:
    """The Dockerfile at `path`. Raises ConfigError when it cannot be read, and for every problem in it."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{path}: this Dockerfile cannot be read: {error.strerror}") from error
    if len(data) > _LARGEST:
        raise ConfigError(f"{path}: this Dockerfile is larger than 1 MiB: COPY what is large from a file of its own")
    return parse_dockerfile(data, str(path))


def parse_dockerfile(data: bytes, path: str) -> Dockerfile:
    """The Dockerfile in `data`; `path` names it in messages. Raises ConfigError with every problem in it."""
    lines = logical_lines(_decoded(data, path))
    problems = list(lines.problems)
    instructions: list[Instruction] = []
    for line in lines.lines:
        try:
            instructions.append(parse_instruction(line, lines.escape))
        except Problem as error:
            problems.append((line.number, str(error)))
    refused = {number for number, _ in problems}
    problems += _misplaced(instructions, bool(refused))
    if problems:
        raise ConfigError(*(printable(f"{path}:{number}: {text}") for number, text in sorted(problems)))
    first = next(index for index, instruction in enumerate(instructions) if isinstance(instruction, From))
    arguments = tuple(instruction for instruction in instructions[:first] if isinstance(instruction, Arg))
    return Dockerfile(path, arguments, tuple(_stages(instructions[first:])))


def _decoded(data: bytes, path: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: this is not UTF-8 text: save the Dockerfile as UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ConfigError(f"{path}:{line}: a NUL character: this is not a text file")
    return text


def _misplaced(instructions: Sequence[Instruction], refused: bool) -> Iterator[tuple[int, str]]:
    """What is wrong with the order. When lines were `refused`, a FROM may be among them and is not missed."""
    seen = False
    names: set[str] = set()
    for instruction in instructions:
        if isinstance(instruction, From):
            seen = True
            name = instruction.alias.lower()
            if name and name in names:
                yield instruction.line, f"a second stage is called {instruction.alias}: rename one"
            names.add(name)
        elif not seen and not refused and not isinstance(instruction, Arg):
            yield instruction.line, f"{cut(instruction.text)[0].upper()} before FROM: only ARG may stand there"
    if not seen and not refused:
        yield 1, "there is no FROM: name the image to start from, for example FROM scratch"


def _stages(instructions: Sequence[Instruction]) -> Iterator[Stage]:
    starts = [index for index, instruction in enumerate(instructions) if isinstance(instruction, From)]
    for number, start in enumerate(starts):
        source = instructions[start]
        assert isinstance(source, From)
        end = starts[number + 1] if number + 1 < len(starts) else len(instructions)
        yield Stage(number, source, tuple(instructions[start + 1 : end]))
