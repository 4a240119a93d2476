"""A sandbox that is lent to rollouts: whoever opened it closes it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from forkyard.sandbox import NO_NETWORK, Network, PlainDirectory, Sandbox
from forkyard.task import Task

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Loan:
    """A lent sandbox, and what is known of it: its network at first, its image; None when somebody else made it.

    `touched` once an agent has been in it: what breaks there from then on may be that agent's doing. `owned` when an
    agent of the episode opened it.
    """

    sandbox: Sandbox
    network: Network | None
    image: str | None
    over: bool = False
    touched: bool = False
    owned: bool = True

    def check(self, task: Task) -> None:
        """Raise ValueError for a task of another network, or when the loan is over; TypeError for one with an image
        in a sandbox that has none. Another image is only warned of.
        """
        where = f"task {task.name}"
        if self.over:
            raise ValueError(f"{where} was given a sandbox that its owner has closed")
        if isinstance(self.sandbox, PlainDirectory) and (task.data.image or task.origin.build):
            raise TypeError(f"{where} names an image, and it was given a plain directory of this machine")
        if self.image is None:
            return
        wanted, given = task.networks.at_first, self.network or NO_NETWORK
        if wanted != given:
            raise ValueError(f"{where} wants the network {wanted}, and the sandbox it was given has {given}")
        if task.data.image is not None and task.data.image != self.image:
            _log.warning("%s names the image %s, and plays in a sandbox of %s", where, task.data.image, self.image)
