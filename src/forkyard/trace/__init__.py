"""Traces: what a rollout leaves, as values, as lines, and as files."""

from forkyard.trace import messages
from forkyard.trace.calls import ModelCall, Usage
from forkyard.trace.fields import Fields
from forkyard.trace.graph import Branch, Graph, Node, advantages
from forkyard.trace.limits import AgentLimits, Used, limit_reached
from forkyard.trace.messages import (
    AnyMessage,
    AssistantMessage,
    ImageUrlContentPart,
    ImageUrlSource,
    Message,
    Messages,
    SystemMessage,
    TextContentPart,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
    message_key,
    text_of,
    typed,
)
from forkyard.trace.record import SCHEMA
from forkyard.trace.trace import Trace
from forkyard.trace.values import SINGLE_AGENT, Reward, Slot, Status, Timing, is_full, unit_of

__all__ = [
    "SCHEMA",
    "SINGLE_AGENT",
    "AgentLimits",
    "AnyMessage",
    "AssistantMessage",
    "Branch",
    "Fields",
    "Graph",
    "ImageUrlContentPart",
    "ImageUrlSource",
    "Message",
    "Messages",
    "ModelCall",
    "Node",
    "Reward",
    "Slot",
    "Status",
    "SystemMessage",
    "TextContentPart",
    "Timing",
    "Tool",
    "ToolCall",
    "ToolMessage",
    "Trace",
    "Usage",
    "Used",
    "UserMessage",
    "advantages",
    "is_full",
    "limit_reached",
    "message_key",
    "messages",
    "text_of",
    "typed",
    "unit_of",
]
