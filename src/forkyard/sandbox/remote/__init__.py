"""The provider `remote`: the sandboxes of a Forkyard server on another machine, by its URL."""

from forkyard.sandbox.remote.provider import RemoteProvider
from forkyard.sandbox.remote.sandbox import RemoteSandbox

__all__ = ["RemoteProvider", "RemoteSandbox"]
