"""Mode `separate`: a verifier that nothing of the agent's reaches but the artifacts the task declares.

In this order: collect the artifacts, keep them and the logs, end the agent's sandbox; then open a fresh one, run
`Task.setup` in it, restore the artifacts, let the hidden files in, change to the verifier's network, score, close it.

A failure that is no verdict has a fresh sandbox tried again. What the agent can provoke (artifacts that are missing,
too large or no files) is its own account and is not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from forkyard.errors import EngineLost, RolloutError, SandboxError, TaskError, boundary
from forkyard.grade.archives import cleaned
from forkyard.grade.artifacts import Collected, place
from forkyard.grade.blame import settle_failure
from forkyard.grade.declared import collect_declared
from forkyard.grade.evidence import keep_artifacts
from forkyard.grade.grading import Grading, closed, score, stage
from forkyard.grade.logs import COLLECTED, keep_collected, keep_parts
from forkyard.grade.services import collect_from_services
from forkyard.sandbox import Sandbox
from forkyard.task import Task, invoke
from forkyard.trace import Trace
from forkyard.values import backoff

_log = logging.getLogger(__name__)
_COMPLAINTS_KEPT = 20


async def verify_separately(grading: Grading, trace: Trace, sandbox: Sandbox) -> None:
    """Grade a rollout in a fresh sandbox; `sandbox` is the agent's."""
    try:
        collected = await collect_declared(grading.task, trace, sandbox, grading.workdir)
        if grading.keep_in is not None:
            await keep_parts(trace, sandbox, grading.keep_in, ("agent",))
        collected = await collect_from_services(grading.task, trace, sandbox, stop=not grading.lent) | collected
        if grading.keep_in is not None:
            await asyncio.to_thread(keep_collected, collected, grading.keep_in / COLLECTED)
            await keep_artifacts(grading, trace, collected)
        archive, complaints = await asyncio.to_thread(_cleaned, collected)
    except RolloutError as err:
        settle_failure(trace, err, acted=True)
        return
    finally:
        await grading.end()
    if complaints:
        trace.verifier["left_out"] = complaints[:_COMPLAINTS_KEPT]
    await _verify_until_it_works(grading, trace, collected, archive)


async def verify_collected(grading: Grading, trace: Trace, collected: Collected) -> None:
    """The same of what was collected earlier, when the agent's sandbox is gone."""
    try:
        archive, complaints = await asyncio.to_thread(_cleaned, collected)
    except RolloutError as err:
        settle_failure(trace, err, acted=True)
        return
    if complaints:
        trace.verifier["left_out"] = complaints[:_COMPLAINTS_KEPT]
    await _verify_until_it_works(grading, trace, collected, archive)


def _cleaned(collected: Collected) -> tuple[bytes, list[str]]:
    """What a verifier may see of it. A link that leads out is left out: planting one is no way to go unscored."""
    with boundary(SandboxError, "artifacts"):
        return cleaned(collected)


async def _verify_until_it_works(grading: Grading, trace: Trace, collected: Collected, archive: bytes) -> None:
    failures: list[str] = []
    while True:
        before = _Verdict(trace)
        attempt = _Attempt(grading, trace)
        try:
            await attempt.run(collected, archive)
            break
        except RolloutError as err:
            for_good = err.lasting or err.fatal or isinstance(err, EngineLost)
            if for_good or len(failures) == grading.retries:
                settle_failure(trace, err, acted=attempt.entered)
                break
            before.put_back()
            failures.append(str(err))
        pause = backoff(len(failures))
        _log.warning(
            "%s #%d: separate verifier, attempt %d/%d failed (%s); retrying in %.1f s",
            *(trace.task, trace.slot.sample, len(failures), grading.retries + 1, failures[-1], pause),
        )
        await asyncio.sleep(pause)
    if failures:
        trace.verifier["failed_attempts"] = failures


class _Attempt:
    """One fresh sandbox; `entered` once anything of the agent's is in it."""

    def __init__(self, grading: Grading, trace: Trace) -> None:
        self._grading, self._trace = grading, trace
        self.entered = False

    async def run(self, collected: Mapping[str, Any], archive: bytes) -> None:
        task, trace = self._grading.task, self._trace
        verifier = await self._grading.fresh()
        try:
            seconds = task.data.timeout.setup
            try:
                async with asyncio.timeout(seconds):
                    await self._prepare(task, verifier, collected, archive)
            except TimeoutError as err:
                raise SandboxError(f"the verifier's sandbox was not ready within its {seconds:g} s") from err
            await score(self._grading, trace, verifier)
            if self._grading.keep_in is not None:
                await keep_parts(trace, verifier, self._grading.keep_in, ("verifier",))
        finally:
            if trouble := await closed(verifier):
                trace.info["close"] = trouble

    async def _prepare(self, task: Task, verifier: Sandbox, collected: Mapping[str, Any], archive: bytes) -> None:
        with boundary(TaskError, "verifier task setup"):
            await invoke(task.setup, task=task.data, trace=self._trace, runtime=verifier)
        self.entered = True
        with boundary(TaskError, "restoring artifacts"):
            await place(verifier, collected, archive)
        await stage(task, self._trace, verifier, "verifier staging")
        at_first, network = task.networks.at_first, task.networks.at_last
        if network != at_first:
            await verifier.set_network(network)


class _Verdict:
    """What a verification writes on a trace, to be put back when it failed. Calls of judges stay: they cost."""

    _FIELDS = ("status", "reason", "is_timeout", "stop_condition")
    _MAPPINGS = ("rewards", "metrics", "verifier", "info")

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._values = {name: getattr(trace, name) for name in self._FIELDS}
        self._values |= {name: dict(getattr(trace, name)) for name in self._MAPPINGS}

    def put_back(self) -> None:
        for name, value in self._values.items():
            setattr(self._trace, name, value)
