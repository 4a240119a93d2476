"""What a sandbox may reach beyond itself, and the door through which it does."""

from forkyard.sandbox.network.draining import Drains
from forkyard.sandbox.network.forward import forwarded
from forkyard.sandbox.network.policy import NO_NETWORK, PUBLIC, Network
from forkyard.sandbox.network.rules import Rule
from forkyard.sandbox.network.visits import Visit

__all__ = ["NO_NETWORK", "PUBLIC", "Drains", "Network", "Rule", "Visit", "forwarded"]
