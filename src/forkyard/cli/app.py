"""The commands in one place, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import errno
import io
import logging
import resource
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
import typer.core

from forkyard.cli.options import ENVIRONMENT, Verbatim, option
from forkyard.cli.output import complain
from forkyard.errors import ConfigError, ForkyardError

USAGE = 1
_DEBUG = "--debug"
_PLACES = {
    "run": "run:run",
    "eval": "eval:evaluate",
    "resume": "run:resume",
    "regrade": "regrade:regrade",
    "replay": "replay:replay",
    "report": "report:report",
    "compare": "report:compare",
    "show": "show:show",
    "export": "export:export",
    "validate": "validate:validate",
    "init": "init:init",
    "gateway": "gateway:gateway",
    "serve": "serve:serve",
    "env": "serve:env",
    "doctor": "doctor:doctor",
    "sandbox": "sandbox:app",
    "image": "image:app",
    "key": "key:app",
    "tasks": "tasks:app",
    "check": "check:app",
}
"""Where each command is: the module here, and its function, or the typer of its own commands."""
_LISTED = {
    "run": "Play tasks and grade what comes out.",
    "eval": "Play a taskset with any env, told by dotted flags.",
    "resume": "Go on with a run: play what has no line yet.",
    "regrade": "Grade the rollouts of a run again, without agents.",
    "replay": "Score the traces of a run again, without sandboxes.",
    "report": "Print what runs came to, a row for each task.",
    "compare": "Print how two runs differ, task by task.",
    "show": "Print the rollouts of a run, or one of them whole.",
    "export": "Write samples to train on, made of runs.",
    "validate": "Check the tasks of a taskset, without a model.",
    "init": "Write the package of a new taskset.",
    "gateway": "Serve models to harnesses on this machine.",
    "serve": "Serve sandboxes, processes and disks over HTTP.",
    "env": "Print what points clients at the running server.",
    "doctor": "Say what each provider can do on this machine.",
    "sandbox run": "Run a command in a sandbox, and keep what it did.",
    "sandbox diff": "Tell what a stopped sandbox changed.",
    "sandbox du": "Tell the room that sandboxes and images take.",
    "sandbox sweep": "Remove what dead processes left behind.",
    "image": "Build, pull, import, export, push and remove images.",
    "image build": "Build the image of a Dockerfile.",
    "image pull": "Get an image from a registry.",
    "image export": "Write an image as an archive.",
    "image import": "Make an archive an image.",
    "image bootstrap": "Make a Debian of its packages.",
    "image rm": "Remove images.",
    "image prune": "Remove layers and images that nobody needs.",
    "key create": "Make a key and print it, this once.",
    "key list": "List the keys.",
    "tasks init": "Write a new task directory.",
    "tasks check": "Say what is wrong with task directories.",
}
"""What lists of commands say of those whose first sentence is too long for a line."""


class _Commands(Mapping[str, Any]):
    """The commands by name. One is imported when it is asked for: most of a command's start is its imports."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            self._found[name] = _command(name, *_PLACES[name].split(":"))
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


def _command(name: str, place: str, attribute: str) -> Any:
    module = import_module(f"forkyard.cli.{place}")
    made, alone = getattr(module, attribute), typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(made, typer.Typer):
        alone.add_typer(made, name=name)
    elif hasattr(module, "ABOUT"):
        alone.command(name, cls=Verbatim, help=module.ABOUT, add_help_option=False)(made)
    else:
        alone.command(name, cls=getattr(module, "COMMANDS", {}).get(attribute))(made)
    command = typer.main.get_group(alone).commands[name]
    for path, each in _with_own(name, command):
        each.short_help = _LISTED.get(path, each.short_help)
    return command


def _with_own(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command and its own commands, with what is typed for each."""
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _with_own(f"{path} {name}", each)


class _Program(typer.core.TyperGroup):
    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "commands": None})
        self.commands = _Commands()  # type: ignore[assignment]  # nobody adds any


app = typer.Typer(
    name="forkyard",
    cls=_Program,
    help="Fork an environment once per rollout, let an agent act, grade it where it cannot reach, keep every trace.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": ENVIRONMENT},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"forkyard {version('forkyard')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, option(_DEBUG, help="Show the traceback of an error.")] = False,
) -> None:
    pass


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Every error is one message on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _allow_open_files()
    if logging.lastResort is not None:  # it writes the warnings that no handler of anybody's takes
        logging.lastResort.setFormatter(logging.Formatter("forkyard: %(message)s"))
    debug, arguments = _take_debug(arguments)
    try:
        return int(typer.main.get_command(app).main(arguments, "forkyard", standalone_mode=False) or 0)
    except typer.TyperException as err:
        _complain_of_usage(err)
    except ForkyardError as err:
        complain(*(err.problems if isinstance(err, ConfigError) else [str(err)]))
        _show(err, debug)
    except OSError as err:
        room = "; make room there and try again" if err.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        complain((f"{err.filename}: {err.strerror}" if err.filename else err.strerror or str(err)) + room)
        _show(err, debug)
    except Exception as err:  # noqa: BLE001 - the last place where an error of ours can be told in words
        hint = "" if debug else "; run it again with --debug and report it"
        complain(f"internal error: {type(err).__name__}: {err}{hint}")
        _show(err, debug)
    return USAGE


def _allow_open_files() -> None:
    """Every live sandbox and every command holds a few descriptors; the usual soft limit is for other programs."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _take_debug(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """--debug may stand anywhere before a `--`: people add it at the end of a command that failed."""
    ours = list(arguments)
    rest = ours[ours.index("--") :] if "--" in ours else []
    ours = ours[: len(ours) - len(rest)]
    return _DEBUG in ours, [argument for argument in ours if argument != _DEBUG] + rest


def _complain_of_usage(err: typer.TyperException) -> None:
    context = getattr(err, "ctx", None)
    if isinstance(err, typer.BadParameter):
        err.message = err.message.removeprefix("Value error, ").removesuffix(".")
    message = err.format_message()
    if message.startswith("Usage:"):
        sys.stderr.write(f"{message}\n")
    else:
        complain(message + (f" (see `{context.command_path} --help`)" if context else ""))


def _show(err: BaseException, wanted: bool) -> None:
    if wanted:
        sys.stderr.write("".join(traceback.format_exception(err)))
