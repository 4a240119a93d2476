"""The states of a sandbox, and what each request means in each of them: the whole machine, as one table."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType


class Phase(StrEnum):
    """Where a sandbox is in its life. Clients know the first three by one word (`status_of`)."""

    CREATING = "creating"
    STARTING = "starting"  # on the disk it has
    RESUMING = "resuming"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    EXITED = "exited"  # it ended by itself, or before it ran
    FAILED = "failed"
    DELETING = "deleting"


class Action(StrEnum):
    """What is asked of a sandbox."""

    START = "start"
    RESUME = "resume"
    PAUSE = "pause"
    STOP = "stop"
    FORK = "fork"
    TIMEOUT = "timeout"
    DELETE = "delete"


class Rule(StrEnum):
    """What an action means in a phase."""

    GO = "go"  # it is done
    SAME = "same"  # it is so already: the answer is the sandbox as it is
    JOIN = "join"  # it is under way: the answer is that of whoever began it
    WAIT = "wait"  # it is looked at again once the phase is over, which is soon
    END = "end"  # what is under way is given up
    NO = "no"  # 409


_TABLE = """
          creating  starting  resuming  running  pausing  paused  stopping  stopped  exited  failed  deleting
start     join      join      no        same     no       go      no        go       go      go      no
resume    no        no        join      same     no       go      no        no       no      no      no
pause     no        no        wait      go       join     same    no        same     no      no      no
stop      end       wait      wait      go       wait     go      join      same     same    same    no
fork      no        wait      wait      go       wait     go      wait      go       go      go      no
timeout   no        no        wait      go       no       go      no        go       go      go      no
delete    no        no        no        no       no       no      no        go       go      go      join
"""


def _read(text: str) -> dict[tuple[Action, Phase], Rule]:
    head, *rows = [line.split() for line in text.strip().splitlines()]
    return {
        (Action(row[0]), Phase(phase)): Rule(rule) for row in rows for phase, rule in zip(head, row[1:], strict=True)
    }


RULES = MappingProxyType(_read(_TABLE))

WAY = MappingProxyType(
    {
        Action.START: (Phase.STARTING, Phase.RUNNING),
        Action.RESUME: (Phase.RESUMING, Phase.RUNNING),
        Action.PAUSE: (Phase.PAUSING, Phase.PAUSED),
        Action.STOP: (Phase.STOPPING, Phase.STOPPED),
    }
)
"""What an action leads through, and to; `delete` leads to no phase, and the others change none."""

FOUND = MappingProxyType(
    dict.fromkeys(Phase, Phase.STOPPED)
    | {
        Phase.CREATING: Phase.FAILED,
        Phase.EXITED: Phase.EXITED,
        Phase.FAILED: Phase.FAILED,
        Phase.DELETING: Phase.DELETING,
    }
)
"""Where a server that starts finds what another left in a phase; a deletion goes on."""

WITH_CHECKPOINT = frozenset({Phase.PAUSING, Phase.PAUSED, Phase.STOPPING, Phase.STOPPED})
"""Where the object names the state of the disk that a fork would have."""

_PENDING = frozenset({Phase.CREATING, Phase.STARTING, Phase.RESUMING})


def status_of(phase: Phase) -> str:
    """The word clients know a phase by."""
    return "pending" if phase in _PENDING else phase.value
