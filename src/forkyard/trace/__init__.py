"""Traces: what a rollout leaves, as values, as lines, and as files."""

from forkyard.trace import messages
from forkyard.trace.calls import ModelCall, Usage
from forkyard.trace.limits import AgentLimits, limit_reached
from forkyard.trace.messages import Message, Messages
from forkyard.trace.trace import SCHEMA, Reward, Slot, Status, Timing, Trace

__all__ = [
    "SCHEMA",
    "AgentLimits",
    "Message",
    "Messages",
    "ModelCall",
    "Reward",
    "Slot",
    "Status",
    "Timing",
    "Trace",
    "Usage",
    "limit_reached",
    "messages",
]
