"""A model that says what is written in a script: for tests, demonstrations and offline runs.

A script is the list of one rollout's turns. A turn is

    {"content": "text"}                          words, which end the rollout
    {"bash": "command"}                          one call of the tool `bash`
    {"commands": ["command", "command"]}         several calls in one turn
    {"role": "assistant", ...}                   a whole message, used as it stands

`content` may stand beside `bash` and `commands`. After the last turn the model says "Done.". A scripts file is JSON:
{"task name": [script of sample 0, script of sample 1, ...]}; samples past the last script begin again at the first.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError
from forkyard.model.protocol import PLAIN, OnFailure, Reply, Sampling, ToolSpec
from forkyard.trace import Message, Usage
from forkyard.values import nearest

Script = Sequence[Mapping[str, Any]]
Scripts = Mapping[str, Sequence[Script]]

LAST_WORDS = "Done."


class ScriptedModel:
    """Replies with the turns of one script, one after another, past those that were `said` before; holds the place of
    one rollout.

    Its usage is an estimate of one token for four characters: of the whole conversation as input, of the reply as
    output.
    """

    name = "scripted"

    def __init__(self, script: Script, said: int = 0) -> None:
        self._turns = [_message(turn, position) for position, turn in enumerate(script)]
        self._next = said

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling = PLAIN,
        on_failure: OnFailure | None = None,
    ) -> Reply:
        """The script's next turn."""
        over = self._next >= len(self._turns)
        message = {"role": "assistant", "content": LAST_WORDS} if over else copy.deepcopy(self._turns[self._next])
        self._next += 1
        usage = Usage(input=_tokens(list(messages)), output=_tokens(message))
        return Reply(message, usage, "tool_calls" if message.get("tool_calls") else "stop")

    async def close(self) -> None:
        """Nothing is held."""


def load_scripts(path: Path) -> Scripts:
    """The scripts of a file. Raises ConfigError, naming the file and the place in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise ConfigError(f"{path}: the scripts file cannot be read: {err.strerror}") from None
    except ValueError as err:
        raise ConfigError(f"{path}: not JSON: {err}") from None
    if not isinstance(content, dict):
        raise ConfigError(f'{path}: must hold {{"task name": [script, ...]}}, not a {type(content).__name__}')
    for task, scripts in content.items():
        if not isinstance(scripts, list) or not scripts or not all(isinstance(script, list) for script in scripts):
            raise ConfigError(f"{path}: {task!r} must be a list of scripts, each a list of turns, and not empty")
        for sample, script in enumerate(scripts):
            try:
                ScriptedModel(script)
            except ConfigError as err:
                raise ConfigError(f"{path}: {task!r}, script {sample}: {err}") from None
    return content


def script_for(scripts: Scripts, task: str, sample: int) -> Script:
    """The script of one rollout. Raises ConfigError when there is none for the task."""
    if task not in scripts:
        near = nearest(task, scripts)
        hint = f"; did you mean {near!r}?" if near else f" (it has: {', '.join(sorted(scripts)) or 'none'})"
        raise ConfigError(f"the scripts file has no script for task {task!r}{hint}")
    return scripts[task][sample % len(scripts[task])]


def _message(turn: Any, position: int) -> Message:
    if not isinstance(turn, Mapping):
        raise ConfigError(f"turn {position} is not an object")
    if turn.get("role") == "assistant":
        return dict(turn)
    unknown = set(turn) - {"content", "bash", "commands"}
    if unknown or not turn or {"bash", "commands"} <= set(turn):
        raise ConfigError(
            f'turn {position} has the keys {sorted(turn)}: write {{"content": text}}, {{"bash": command}}, '
            '{"commands": [command, ...]} or a whole message with {"role": "assistant"}'
        )
    commands = [turn["bash"]] if "bash" in turn else turn.get("commands", [])
    if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
        raise ConfigError(f"turn {position}: commands must be texts")
    message: Message = {"role": "assistant"}
    if "content" in turn:
        message["content"] = str(turn["content"])
    if commands:
        message["tool_calls"] = [_call(position, index, command) for index, command in enumerate(commands)]
    return message


def _call(turn: int, index: int, command: str) -> dict[str, Any]:
    arguments = json.dumps({"command": command})
    return {"id": f"call_{turn}_{index}", "type": "function", "function": {"name": "bash", "arguments": arguments}}


def _tokens(value: Any) -> int:
    return len(json.dumps(value)) // 4
