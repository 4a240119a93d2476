"""Sandboxes: the protocol, and the providers that keep it."""

from forkyard.sandbox.abilities import BoundsDisk, HasServices, PlainDirectory, Remounts, StandsApart, TellsLimits
from forkyard.sandbox.common import ARGUMENT_LIMIT, DEFAULT_PATH, check_command, default_home
from forkyard.sandbox.network import NO_NETWORK, PUBLIC, Network, Visit, forwarded
from forkyard.sandbox.patches import patch
from forkyard.sandbox.promises import image_provider
from forkyard.sandbox.protocol import ImageProvider, ImageStore, Process, Provider, Sandbox
from forkyard.sandbox.values import (
    SYSTEM_DIRECTORIES,
    Change,
    EndedBy,
    Feature,
    Healthcheck,
    ImageConfig,
    ImageInfo,
    Limits,
    Mount,
    OnOutput,
    ProgramResult,
    SandboxInfo,
    SandboxSpec,
    Stream,
    Terminal,
)

__all__ = [
    "SYSTEM_DIRECTORIES",
    "ARGUMENT_LIMIT",
    "DEFAULT_PATH",
    "NO_NETWORK",
    "PUBLIC",
    "BoundsDisk",
    "Change",
    "EndedBy",
    "Feature",
    "HasServices",
    "Healthcheck",
    "ImageConfig",
    "ImageInfo",
    "ImageProvider",
    "ImageStore",
    "Limits",
    "Mount",
    "Network",
    "OnOutput",
    "PlainDirectory",
    "Process",
    "ProgramResult",
    "Provider",
    "Remounts",
    "Sandbox",
    "SandboxInfo",
    "SandboxSpec",
    "StandsApart",
    "Stream",
    "TellsLimits",
    "Terminal",
    "Visit",
    "check_command",
    "default_home",
    "forwarded",
    "image_provider",
    "patch",
]
