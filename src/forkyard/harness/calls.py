"""Reading what a model wants to run, out of a tool call or out of a fenced block in its text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from forkyard.model import ToolSpec

BASH_TOOL: ToolSpec = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a bash command. Returns the exit code and output.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}

FENCED_PROMPT = """\
You work in a Linux shell. To run commands, write one block that begins with a line ```bash and ends with a line ```. \
It is run, and you are told its exit code and output. Write at most one block in a reply, with shell commands only. \
When the work is done and checked, reply with one sentence and no block.

Example

User: Write the word hello into greeting.txt.
You: I write the file and look at it.
```bash
echo hello > greeting.txt
cat greeting.txt
```
User: exit 0
hello
You: greeting.txt now holds the word hello."""

# A line that opens a block or closes one. Possessive throughout, so that a line is looked at once however long it is.
_FENCE_LINE = re.compile(
    r"^[ ]{0,3}+(?P<fence>`{3,}+)[ \t]*+(?P<opens>(?:bash|shell|sh)[ \t]*+)?\r?$", re.MULTILINE | re.IGNORECASE
)


class CallError(ValueError):
    """A call that cannot be run; the text goes back to the model."""


def command_of(call: Mapping[str, Any]) -> str:
    """The command of one call of the tool `bash`. Raises CallError."""
    arguments = call["function"].get("arguments")
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    command = arguments.get("command") if isinstance(arguments, Mapping) else None
    if not isinstance(command, str):
        raise CallError('the arguments of bash must be {"command": "..."} with a text as command; nothing was run')
    return checked(command)


def checked(command: str) -> str:
    """`command`, when a process can be given it. Raises CallError."""
    if "\0" in command or any("\ud800" <= character <= "\udfff" for character in command):
        raise CallError("the command holds a NUL or half a surrogate pair; nothing was run")
    return command


def last_block(text: str) -> str | None:
    """The last complete ```bash block of a text.

    It ends with the first fence at least as long as its own. A fence that is never closed opens nothing.
    """
    lines = list(_FENCE_LINE.finditer(text))
    longest = [0] * (len(lines) + 1)  # the longest closing fence among the lines from here on
    for at in range(len(lines) - 1, -1, -1):
        longest[at] = max(longest[at + 1], 0 if lines[at]["opens"] else len(lines[at]["fence"]))
    block, begin, needed = None, 0, 0
    for at, line in enumerate(lines):
        fence = len(line["fence"])
        if needed and not line["opens"] and fence >= needed:
            block, needed = text[begin : line.start()], 0
        elif not needed and line["opens"] and longest[at + 1] >= fence:
            begin, needed = line.end() + 1, fence
    return block


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError) as err:
        raise CallError(f"the arguments of bash are not JSON ({err}); nothing was run") from None
