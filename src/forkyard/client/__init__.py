"""Sandboxes and disks for programs: the same verbs on a server by its URL, and in this process without one."""

from forkyard.client.client import Client
from forkyard.client.default import (
    configure,
    create_disk,
    create_sandbox,
    exec,
    get_disk,
    get_sandbox,
    list_disks,
    list_sandboxes,
)
from forkyard.client.disks import Disk
from forkyard.client.mounts import Mount
from forkyard.client.processes import SandboxProcess
from forkyard.client.sandboxes import Sandbox
from forkyard.client.values import (
    DiskExec,
    ExecResult,
    FileTransferError,
    Listing,
    ObjectInfo,
    SandboxStartError,
)
from forkyard.sandbox import Terminal
from forkyard.wire import ClosedError, RefusedError

__all__ = [
    "Client",
    "ClosedError",
    "Disk",
    "DiskExec",
    "ExecResult",
    "FileTransferError",
    "Listing",
    "Mount",
    "ObjectInfo",
    "RefusedError",
    "Sandbox",
    "SandboxProcess",
    "SandboxStartError",
    "Terminal",
    "configure",
    "create_disk",
    "create_sandbox",
    "exec",
    "get_disk",
    "get_sandbox",
    "list_disks",
    "list_sandboxes",
]
