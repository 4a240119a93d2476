"""Sandboxes in containers of a Docker Engine on this machine, and compose projects."""

from forkyard.sandbox.composing import ComposePlan
from forkyard.sandbox.docker.project import Project, ServiceSandbox
from forkyard.sandbox.docker.provider import DockerProvider

__all__ = ["ComposePlan", "DockerProvider", "Project", "ServiceSandbox"]
