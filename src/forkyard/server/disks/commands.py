"""POST exec, over one disk and over several."""

from __future__ import annotations

import re
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from forkyard.server.disks.access import check_address, disk_of, disk_with
from forkyard.server.disks.execs import Execs
from forkyard.server.disks.mounting import TARGET, Placed
from forkyard.server.disks.work import Exec, ExecDisk, ExecMount, ExecResult
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer
from forkyard.server.patience import kept_alive, while_there

if TYPE_CHECKING:
    from forkyard.server.serving import Server

_ERRORS = (403, 404, 501, 503, 504)
_WHOLE = "/mnt"
_NAMES_WHOLE = re.compile(r"(?<![\w./-])/mnt(?![\w.-])")
_IMPATIENT = ("archil-python/", "archil-js/")


def endpoints(server: Server) -> list[Endpoint]:
    """The rows of commands."""
    execs = server.the(Execs)

    async def exec_disk(call: Call) -> Answer | Response:
        disk, command = disk_of(server, call), call.body.command
        check_address(server, call.request, disk)
        target = _target(command)
        return await _patient(call, _answer(execs, command, [Placed(disk, target)], target))

    async def exec_disks(call: Call) -> Answer | Response:
        asked: Exec = call.body
        return await _patient(call, _answer(execs, asked.command, _placed(server, call), TARGET))

    return [
        Endpoint(
            "POST",
            "/api/disks/{id}/exec",
            exec_disk,
            "Run a command with the disk as its working directory",
            body=ExecDisk,
            data=ExecResult,
            errors=_ERRORS,
        ),
        Endpoint(
            "POST",
            "/api/exec",
            exec_disks,
            "Run a command with several disks beneath its working directory",
            body=Exec,
            data=ExecResult,
            errors=_ERRORS,
        ),
    ]


def _target(command: str) -> str:
    """Where a single disk is: clients' tools begin a command with `cd /mnt`, and mean the disk."""
    return _WHOLE if _NAMES_WHOLE.search(command) and TARGET not in command else TARGET


def _placed(server: Server, call: Call) -> list[Placed]:
    found = []
    for path, asked in call.body.disks.items():
        mount = ExecMount(disk=asked) if isinstance(asked, str) else asked
        disk = disk_with(server, mount.disk)
        check_address(server, call.request, disk)
        alone = mount.queue_ms is not None or mount.checkout_paths is not None
        wait = (mount.queue_ms or 0) / 1000
        found.append(Placed(disk, f"{TARGET}/{path}", mount.subdirectory or "", mount.read_only, alone, wait))
    return found


async def _answer(execs: Execs, command: str, disks: list[Placed], cwd: str) -> Answer:
    return Answer(await execs.run(command, disks, cwd))


async def _patient(call: Call, work: Coroutine[Any, Any, Answer]) -> Answer | Response:
    """The vendor's clients give up after 30 seconds without a byte; whoever else asks learns a refusal's status."""
    if call.request.headers.get("user-agent", "").startswith(_IMPATIENT):
        return await kept_alive(call, work)
    return await while_there(call, work)
