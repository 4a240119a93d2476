"""Sandboxes over HTTP: their lives, kept in rows, and what other parts have to do with them.

`Sandboxes.get(id)` gives a `Life`; `Life.sandbox` is the live sandbox, or the 409 to answer. An `Attendant` is a part
that is asked and told at each turn of a life.
"""

from forkyard.server.sandboxes.attendants import Attendant, attendants
from forkyard.server.sandboxes.life import Life
from forkyard.server.sandboxes.record import Record
from forkyard.server.sandboxes.registry import Sandboxes
from forkyard.server.sandboxes.states import Action, Phase
from forkyard.server.sandboxes.values import CreateSandbox, ForkSandbox

__all__ = ["Action", "Attendant", "CreateSandbox", "ForkSandbox", "Life", "Phase", "Record", "Sandboxes", "attendants"]
