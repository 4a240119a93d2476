"""Models: what answers a conversation."""

from forkyard.model.chat import ChatModel
from forkyard.model.failures import ToolsRefusedError
from forkyard.model.place import Place
from forkyard.model.protocol import Endpoint, Model, Reply, Sampling, ToolSpec
from forkyard.model.scripted import Script, ScriptedModel, load_scripts, script_for

__all__ = [
    "ChatModel",
    "Endpoint",
    "Model",
    "Place",
    "Reply",
    "Sampling",
    "Script",
    "ScriptedModel",
    "ToolSpec",
    "ToolsRefusedError",
    "load_scripts",
    "script_for",
]
