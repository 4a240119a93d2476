"""Sandboxes behind a second wall: gVisor, over the images and disks of the `local` provider."""

from forkyard.sandbox.gvisor.provider import GvisorProvider

__all__ = ["GvisorProvider"]
