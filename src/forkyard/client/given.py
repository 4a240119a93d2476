"""What a program gives to verbs, checked before anything is sent. TypeError and ValueError say what to give instead."""

from __future__ import annotations

from collections.abc import Mapping

from forkyard.sandbox import Terminal

_SAY = "write forkyard.Terminal(cols=80, rows=24)"


def command_text(command: str) -> str:
    """A command, which is a text for a shell."""
    if not isinstance(command, str):
        raise TypeError(
            f"a command is one text for a shell, not {command!r:.100}: give 'echo x', or shlex.join(['echo', 'x'])"
        )
    return command


def terminal_size(terminal: Terminal | Mapping[str, int] | None) -> dict[str, int] | bool:
    """A terminal as the server takes it; False is none."""
    if terminal is None:
        return False
    if isinstance(terminal, Mapping):
        if unknown := [name for name in terminal if name not in ("cols", "rows")]:
            raise TypeError(f"a terminal has no {unknown[0]!r}, but cols and rows: {_SAY}")
        terminal = Terminal(**terminal)
    if not isinstance(terminal, Terminal):
        raise TypeError(f"{terminal!r:.100} is no terminal: {_SAY}")
    return {"cols": terminal.cols, "rows": terminal.rows}


def path_inside(remote: str) -> str:
    """The absolute path of a file in a sandbox."""
    if not isinstance(remote, str):
        raise TypeError(f"the path of a file in a sandbox is a text, as '/root/file', not {remote!r:.100}")
    if not remote.startswith("/") or remote.endswith("/") or "\0" in remote:
        raise ValueError(f"{remote!r} is not the absolute path of a file in a sandbox")
    return remote
