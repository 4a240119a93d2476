"""Sandboxes: the protocol, and the providers that keep it."""

from forkyard.sandbox.common import ARGUMENT_LIMIT, DEFAULT_PATH, check_command, default_home
from forkyard.sandbox.network import NO_NETWORK, PUBLIC, Network, Visit, forwarded
from forkyard.sandbox.patches import patch
from forkyard.sandbox.promises import image_provider
from forkyard.sandbox.protocol import ImageProvider, ImageStore, Provider, Sandbox
from forkyard.sandbox.values import (
    Change,
    Feature,
    Healthcheck,
    ImageConfig,
    ImageInfo,
    Limits,
    OnOutput,
    ProgramResult,
    SandboxInfo,
    SandboxSpec,
)

__all__ = [
    "ARGUMENT_LIMIT",
    "DEFAULT_PATH",
    "Change",
    "NO_NETWORK",
    "PUBLIC",
    "Feature",
    "Healthcheck",
    "ImageConfig",
    "ImageInfo",
    "ImageProvider",
    "ImageStore",
    "Limits",
    "Network",
    "OnOutput",
    "ProgramResult",
    "Provider",
    "Sandbox",
    "SandboxInfo",
    "SandboxSpec",
    "Visit",
    "check_command",
    "default_home",
    "forwarded",
    "image_provider",
    "patch",
]
