"""What runs a colocated toolset inside the sandbox, in the Python that is mounted there.

Requests are lines of JSON on its input, answers lines on its output: the toolset with the source of its modules first,
then {"id", "op", "state", ...}, of which the answer is {"id", "text", "changed"} or {"id", "failed"}. `changed` are
the fields of the state that are others now.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from typing import Any

from forkyard.errors import ForkyardError
from forkyard.task import SharedToolsetConfig, State, ToolsetConfig, WireTaskData
from forkyard.task.generics import type_argument
from forkyard.task.toolset import AnyToolset, own_of, set_up

LINE_LIMIT = 16 << 20


class _Given(MetaPathFinder, InspectLoader):
    """Imports modules from their source; packages that have none are empty."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Of modules that came along alone."""
        return spec_from_loader(fullname, self) if fullname in self._sources or self.is_package(fullname) else None

    def is_package(self, fullname: str) -> bool:
        """Whether there are modules in it."""
        return any(name.startswith(f"{fullname}.") for name in self._sources)

    def get_source(self, fullname: str) -> str:
        """Its text."""
        return self._sources.get(fullname, "")


class _Program:
    def __init__(self, start: Mapping[str, Any], out: int) -> None:
        sys.meta_path.insert(0, _Given(start["sources"]))
        found: Any = import_module(start["module"])
        for name in start["toolset"].split("."):
            found = getattr(found, name)
        config = type_argument(found, SharedToolsetConfig, ToolsetConfig)
        self._toolset: AnyToolset = found(config.model_validate(start["config"]))
        self._state_type = type_argument(found, State)
        self._out = out
        self._running: dict[int, asyncio.Task[None]] = {}

    def take(self, request: Mapping[str, Any]) -> None:
        """Begin with a request."""
        number = request["id"]
        if request["op"] == "cancel":
            if task := self._running.get(number):
                task.cancel()
            return
        self._running[number] = task = asyncio.create_task(self._answer(request))
        task.add_done_callback(lambda _: self._running.pop(number, None))

    async def _answer(self, request: Mapping[str, Any]) -> None:
        try:
            said: dict[str, Any] = await (self._set_up(request) if request["op"] == "setup" else self._call(request))
        except Exception as err:  # noqa: BLE001 - foreign code
            own = isinstance(err, ForkyardError)
            said = {"failed": str(err) if own else f"{type(err).__name__}: {err}"}
        tell(self._out, {"id": request["id"], **said})

    async def _set_up(self, request: Mapping[str, Any]) -> dict[str, Any]:
        state = self._state_type.model_validate(request["state"])
        before = _fields(state)
        await set_up(own_of(self._toolset, state), WireTaskData.model_validate(request["task"]), state)
        return {"text": "", "changed": _changed(before, _fields(state))}

    async def _call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        state = self._state_type.model_validate(request["state"])
        before = _fields(state)
        text = await self._toolset.call(request["name"], request["arguments"], state)
        return {"text": text, "changed": _changed(before, _fields(state))}


def _fields(state: State) -> dict[str, Any]:
    return state.model_dump(mode="json", exclude={"artifacts"})


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in after.items() if name not in before or before[name] != value}


def tell(out: int, message: Mapping[str, Any]) -> None:
    """Write one line. One that is too long becomes a failure."""
    line = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    if len(line) > LINE_LIMIT:
        tell(out, {"id": message["id"], "failed": f"its answer has more than {LINE_LIMIT} bytes"})
        return
    while line:
        line = line[os.write(out, line) :]


async def _serve(given: int, out: int) -> None:
    reader = asyncio.StreamReader(LINE_LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(given))
    program: _Program | None = None
    while line := await reader.readline():
        message = json.loads(line)
        if program is None:
            program = _Program(message, out)
        else:
            program.take(message)


def main() -> None:
    """Serve until the input ends. What tools print goes to standard error, and what they start has neither stream."""
    given, out = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    asyncio.run(_serve(given, out))
