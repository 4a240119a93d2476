"""Work on disks that takes a while: done by children of the spawner, who may read and write what any guest wrote.

Requests, and the one answer to each (JSON, then the socket closes); `disks` are topmost first:

    merge    {disks, base, host, to}  {}: `to` is a new disk, holding what these are together on a stack `base`; without
                                      a base it is a plain copy of one
    changes  {disks, base, host}      {"changes": [[path, kind, regular], ...]}: of these disks, on a stack `base`
    measure  {disks}                  {"bytes": {disk: bytes}}
    watch    {}                      none: a conversation, see `watcher`
    apart    {}                      none: what PID 1 speaks, once it has its descriptors, see `apart`

or {"error": text}. A child ends as soon as the one who asked shuts its end of the socket, or the spawner dies.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import select
import socket
from collections.abc import Callable
from typing import Any

from . import apart, files, kernel, merge, rootfs, survey, watcher

LINKS = "l"
_OFTEN = 64


def run(request: dict[str, Any], fd: int) -> None:
    """Do one errand in a forked child of the spawner, and end."""
    try:
        if (converse := _CONVERSATIONS.get(request["op"])) is not None:  # for sandboxes that outlive the spawner
            kernel.close_all_but(fd)
            converse(fd)
            return
        kernel.die_with_parent()
        kernel.close_all_but(fd)
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a walk holds some for each level of a tree
        sock = socket.socket(fileno=fd)
        try:
            answer = _ERRANDS[request["op"]](request, _watch(sock))
        except Exception as err:  # noqa: BLE001 - whatever it is, the one who asked is told
            answer = {"error": f"{err}" if isinstance(err, OSError) else f"{type(err).__name__}: {err}"}
        sock.sendall(json.dumps(answer).encode())
    finally:
        os._exit(0)


def _watch(sock: socket.socket) -> Callable[[], None]:
    """A function to call often: it ends the process when nobody waits for it any more."""
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLRDHUP)
    counter = itertools.count(1)

    def check() -> None:
        if next(counter) % _OFTEN == 0 and poll.poll(0):
            os._exit(0)

    return check


def _merge(request: dict[str, Any], check: Callable[[], None]) -> dict[str, Any]:
    to, base, host = request["to"], request["base"], request["host"]
    if base is not None:
        _mount(base, host)
    os.mkdir(to, 0o755)
    os.mkdir(f"{to}/{LINKS}", 0o700)
    for part, inside in (("u", ""), ("usr", "/usr")) if host else (("u", ""),):
        beneath = None if base is None else f"{rootfs.ROOT}{inside}"
        merge.merge([f"{disk}/{part}" for disk in request["disks"]], beneath, f"{to}/{part}", f"{to}/{LINKS}", check)
    os.rmdir(f"{to}/{LINKS}")
    return {}


def _mount(stack: list[str], host: bool) -> None:
    kernel.unshare(kernel.NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    rootfs.mount_stack(stack, host)


def _changes(request: dict[str, Any], check: Callable[[], None]) -> dict[str, Any]:
    _mount(request["base"], request["host"])
    disks = request["disks"]
    found = survey.changes([f"{disk}/u" for disk in disks], rootfs.ROOT, "", files.SYSTEM, check)
    if request["host"]:
        usr = survey.changes([f"{disk}/usr" for disk in disks], f"{rootfs.ROOT}/usr", "/usr", (), check)
        found = itertools.chain(found, usr)
    told = list(itertools.islice(found, survey.MOST + 1))
    if len(told) > survey.MOST:
        return {"error": f"it has more than {survey.MOST} changes"}
    return {"changes": sorted(told)}


def _measure(request: dict[str, Any], check: Callable[[], None]) -> dict[str, Any]:
    return {"bytes": {disk: survey.room(disk, check) for disk in request["disks"]}}


_CONVERSATIONS = {"watch": watcher.watch, "apart": apart.stand}
_ERRANDS: dict[str, Callable[[dict[str, Any], Callable[[], None]], dict[str, Any]]] = {
    "merge": _merge,
    "changes": _changes,
    "measure": _measure,
}
