"""How each instruction of a Dockerfile is read from its line."""

from __future__ import annotations

import re
from collections.abc import Callable

from forkyard.image.instructions import (
    Arg,
    Cmd,
    Command,
    Copy,
    Entrypoint,
    Env,
    Expose,
    From,
    Inline,
    Instruction,
    Label,
    Maintainer,
    Onbuild,
    Run,
    Shell,
    StopSignal,
    User,
    Volume,
    Watch,
    Workdir,
)
from forkyard.image.lines import Heredoc, Line, opens_heredoc
from forkyard.image.mount_options import parse_mount
from forkyard.image.problem import Problem
from forkyard.image.statement import Statement, cut, take_apart
from forkyard.image.words import Word, parse_text, split_words
from forkyard.sandbox import Healthcheck
from forkyard.values import duration, nearest

SCRIPT = "/dev/shm/heredoc"  # where a RUN heredoc that names its interpreter lies; no part of the image's disk
_ARG_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_UNITS = ("ns", "us", "µs", "ms", "s", "m", "h")  # those of Go, in which dockerd reads them


def parse_instruction(line: Line, escape: str) -> Instruction:
    """The instruction on a line. Raises Problem for what is no instruction, or none that is possible."""
    name = cut(line.text)[0].upper()
    parse = _PARSERS.get(name)
    if parse is None:
        near = nearest(name, _PARSERS)
        hint = f"did you mean {near}?" if near else f"the instructions are {', '.join(sorted(_PARSERS))}"
        raise Problem(f"{name[:40]} is no instruction: {hint}")
    statement = take_apart(line, escape)
    if not statement.rest:
        raise Problem(f"{name} says nothing: give it an argument or delete the line")
    return parse(statement)


def parse_trigger(text: str, line: int) -> Instruction:
    """The instruction an ONBUILD of a base holds, as if it stood on the `line` of the FROM. Raises Problem."""
    name = cut(text)[0].upper()
    if name in ("ONBUILD", "FROM", "MAINTAINER"):
        raise Problem(f"ONBUILD {name} is not possible: no image may carry that on")
    return parse_instruction(Line(line, text), "\\")


def _from(statement: Statement) -> From:
    match statement.words():
        case [image]:
            alias = ""
        case [image, as_, alias] if as_.upper() == "AS":
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", alias):
                raise Problem(f"{alias[:40]!r} cannot be the name of a stage: begin it with a letter")
        case _:
            raise Problem("FROM takes one image: write FROM image, or FROM image AS name")
    return From(
        line=statement.line.number,
        text=statement.line.text,
        image=statement.word(image),
        alias=alias,
        platform=statement.word(statement.flag("platform")),
    )


def _arg(statement: Statement) -> Arg:
    names = []
    for word in split_words(statement.rest, statement.escape):
        name, equals, value = word.partition("=")
        if not _ARG_NAME.fullmatch(name):
            raise Problem(f"ARG {word} has no plain name: write ARG name or ARG name=default")
        names.append((name, statement.word(value) if equals else None))
    return Arg(line=statement.line.number, text=statement.line.text, names=tuple(names))


def _env(statement: Statement) -> Env:
    return Env(line=statement.line.number, text=statement.line.text, pairs=statement.pairs())


def _label(statement: Statement) -> Label:
    return Label(line=statement.line.number, text=statement.line.text, pairs=statement.pairs())


def _run(statement: Statement) -> Run:
    network = statement.flag("network").lower() or "default"
    if network not in ("default", "none"):
        raise Problem(f"RUN --network={network[:40]} is not supported: it is default, the build's own, or none")
    command, script = _run_command(statement)
    if not command.words or not command.words[0]:
        raise Problem("RUN [] names no program")
    return Run(
        line=statement.line.number,
        text=statement.line.text,
        command=command,
        mounts=tuple(parse_mount(text, statement) for text in statement.flags.get("mount", ())),
        network=network,
        script=script,
    )


def _run_command(statement: Statement) -> tuple[Command, str]:
    """The command line of a RUN, and the script that a heredoc with its own interpreter makes."""
    command = statement.command()
    if not statement.heredocs:
        return command, ""
    if not command.shell:
        raise Problem("RUN takes a heredoc in shell form only: write the command without brackets")
    first = statement.heredocs[0]
    if opens_heredoc(statement.rest) == first.name:
        if first.content.startswith("#!"):
            return Command((SCRIPT,), shell=True), first.content
        return Command((first.content,), shell=True), ""
    bodies = "".join(f"\n{heredoc.text}{heredoc.name}" for heredoc in statement.heredocs)
    return Command((statement.rest + bodies,), shell=True), ""


def _entrypoint(statement: Statement) -> Entrypoint:
    return Entrypoint(line=statement.line.number, text=statement.line.text, command=statement.command())


def _cmd(statement: Statement) -> Cmd:
    return Cmd(line=statement.line.number, text=statement.line.text, command=statement.command())


def _copy(statement: Statement) -> Copy:
    words = statement.list_or_words()
    if len(words) < 2:
        raise Problem(f"{statement.name} needs a source and a destination: write {statement.name} source destination")
    *sources, destination = words
    heredocs = list(statement.heredocs)
    files, plain = [], []
    for word in sources:
        if heredocs and opens_heredoc(word) == heredocs[0].name:
            files.append(_inline(heredocs.pop(0)))
        else:
            plain.append(word)
    origin = statement.flag("from")
    if "$" in origin:
        raise Problem(f"COPY --from={origin} cannot hold a variable: write FROM {origin} AS name, and --from=name")
    return Copy(
        line=statement.line.number,
        text=statement.line.text,
        name=statement.name,
        sources=tuple(statement.word(word) for word in plain),
        files=tuple(files),
        destination=statement.word(destination),
        chown=statement.word(statement.flag("chown")),
        chmod=statement.word(statement.flag("chmod")),
        exclude=tuple(statement.word(text) for text in statement.flags.get("exclude", ())),
        origin=origin,
        checksum=statement.word(statement.flag("checksum")),
        unpack=statement.switched("unpack"),
    )


def _inline(heredoc: Heredoc) -> Inline:
    if "/" in heredoc.name:
        raise Problem(f"the heredoc <<{heredoc.name} cannot be the name of a file: take the slash out")
    content = heredoc.content
    return Inline(heredoc.name, parse_text(content) if heredoc.expand else Word((content,)))


def _workdir(statement: Statement) -> Workdir:
    return Workdir(line=statement.line.number, text=statement.line.text, path=statement.word(statement.rest))


def _user(statement: Statement) -> User:
    if len(statement.words()) != 1:
        raise Problem("USER takes one name: write USER name or USER name:group")
    return User(line=statement.line.number, text=statement.line.text, user=statement.word(statement.rest))


def _shell(statement: Statement) -> Shell:
    words = statement.json_words()
    if not words or not words[0]:
        raise Problem('SHELL takes a list only: write SHELL ["/bin/bash", "-c"]')
    return Shell(line=statement.line.number, text=statement.line.text, words=words)


def _healthcheck(statement: Statement) -> Watch:
    kind, rest = cut(statement.rest)
    if kind.upper() == "NONE" and not rest and not statement.flags:
        test: tuple[str, ...] = ("NONE",)
    elif kind.upper() == "CMD" and rest:
        command = Statement(statement.line, statement.escape, "CMD", rest).command()
        test = ("CMD-SHELL", rest) if command.shell else ("CMD", *command.words)
    else:
        raise Problem("HEALTHCHECK takes a command: write HEALTHCHECK CMD command, or HEALTHCHECK NONE")
    retries = statement.flag("retries") or "0"
    if not (retries.isascii() and retries.isdigit() and len(retries) < 10):
        raise Problem(f"HEALTHCHECK --retries={retries[:40]} is not possible: write a number")
    healthcheck = Healthcheck(
        test,
        _time(statement, "interval"),
        _time(statement, "timeout"),
        _time(statement, "start-period"),
        _time(statement, "start-interval"),
        int(retries),
    )
    return Watch(line=statement.line.number, text=statement.line.text, healthcheck=healthcheck)


def _time(statement: Statement, name: str) -> float:
    text = statement.flag(name)
    if (seconds := duration(text, _UNITS) if text else 0.0) is None:
        raise Problem(f"HEALTHCHECK --{name}={text[:40]} is no time: write it as 30s or 1m30s")
    return seconds


def _onbuild(statement: Statement) -> Onbuild:
    if statement.heredocs:
        raise Problem("ONBUILD with a heredoc (<<) is not supported: put the text into a file and COPY it")
    parse_trigger(statement.rest, statement.line.number)
    return Onbuild(line=statement.line.number, text=statement.line.text, trigger=statement.rest)


def _volume(statement: Statement) -> Volume:
    paths = tuple(statement.word(word) for word in statement.list_or_words())
    return Volume(line=statement.line.number, text=statement.line.text, paths=paths)


def _expose(statement: Statement) -> Expose:
    ports = tuple(statement.word(word) for word in statement.words())
    return Expose(line=statement.line.number, text=statement.line.text, ports=ports)


def _stop_signal(statement: Statement) -> StopSignal:
    if len(statement.words()) != 1:
        raise Problem("STOPSIGNAL takes one signal: write STOPSIGNAL SIGTERM")
    return StopSignal(line=statement.line.number, text=statement.line.text, signal=statement.word(statement.rest))


def _maintainer(statement: Statement) -> Maintainer:
    return Maintainer(line=statement.line.number, text=statement.line.text, author=statement.rest)


_PARSERS: dict[str, Callable[[Statement], Instruction]] = {
    "ADD": _copy,
    "ARG": _arg,
    "CMD": _cmd,
    "COPY": _copy,
    "ENTRYPOINT": _entrypoint,
    "ENV": _env,
    "EXPOSE": _expose,
    "FROM": _from,
    "HEALTHCHECK": _healthcheck,
    "LABEL": _label,
    "MAINTAINER": _maintainer,
    "ONBUILD": _onbuild,
    "RUN": _run,
    "SHELL": _shell,
    "STOPSIGNAL": _stop_signal,
    "USER": _user,
    "VOLUME": _volume,
    "WORKDIR": _workdir,
}
