"""What has to hold of a seat and a task before a run starts."""

from __future__ import annotations

from dataclasses import replace

from forkyard.env.seat import Seat, grading_mode
from forkyard.grade import double_artifacts
from forkyard.sandbox import Feature
from forkyard.task import Task, VerifierMode
from forkyard.task.staging import Staging
from forkyard.tools import inside_problems


def seat_problems(task: Task, seat: Seat) -> list[str]:
    """Why this agent cannot play this task, or its work cannot be graded, one sentence each."""
    mode = grading_mode(seat, task)
    staging = task.in_stages()
    problems = [] if task.origin.compose is None else _compose_problems(task, staging, mode, seat)
    if staging is not None:
        return problems + _staged_problems(staging, mode, seat)
    problems += [*seat.harness.problems(task), *inside_problems(task, seat.provider)]
    return problems + separate_problems(task, seat) if mode == "separate" else problems


def _compose_problems(task: Task, staging: Staging | None, mode: VerifierMode, seat: Seat) -> list[str]:
    """What a sandbox with services beside it cannot do."""
    problems = []
    if mode == "forked":
        problems.append(
            "a task of several containers has no forks: they would be without the other services; grade it with "
            "--verifier shared, or in a separate sandbox"
        )
    tasks = [task, *(part for _, part in staging.tasks)] if staging else [task]
    networks = {network for each in tasks for network in replace(each.networks, verifier=None).asked}
    if mode != "separate":
        networks |= {network for each in tasks for network in each.networks.asked}
    if len(networks) > 1 and any(network.mode == "public" for network in networks):
        problems.append(
            f"{task.where('network_allow')}: the ways out of several containers are open from the start to the end, or "
            "not at all: give all phases the network public, or none of them"
        )
    if task.origin.has_image and (equipment := seat.harness.equipment()) is not None:
        problems.append(
            f"{equipment.what} is installed into the image of the agent's sandbox, and {task.where('compose')} brings "
            "its own for the service main: describe it by environment/Dockerfile or environment.docker_image"
        )
    return problems


def _staged_problems(staging: Staging, mode: VerifierMode, seat: Seat) -> list[str]:
    problems = [f"stage {name!r}: {text}" for name, task in staging.tasks for text in seat.harness.problems(task)]
    if mode == "separate":
        problems.append(
            "separate_not_available_for_steps: a task with steps is graded in the agent's sandbox, or a fork of it"
        )
    if mode == "forked" and Feature.FORK_RUNNING not in seat.provider.features:
        problems.append(
            f"to grade the stages of a task in forks, the provider {seat.provider.name} would have to fork what runs: "
            "play it with --verifier shared, or on another provider, as with -e local"
        )
    return problems


def separate_problems(task: Task, seat: Seat) -> list[str]:
    """Why a task cannot be graded in a separate sandbox."""
    own = seat.verification
    verifier = own.provider or seat.provider
    problems = [
        f"a separate verifier needs sandboxes that are machines of their own, which the provider {provider.name} "
        "does not make: play it on another, as with -e local"
        for provider in dict.fromkeys((seat.provider, verifier))
        if Feature.ISOLATED not in provider.features
    ]
    relative = [artifact.source for artifact in task.data.artifacts if not artifact.source.startswith("/")]
    if relative and own.workdir not in (None, task.data.workdir):
        problems.append(
            f"cannot transfer relative artifacts {relative} between the agent's workdir {task.data.workdir!r} and the "
            f"verifier's {own.workdir!r}: give them absolute paths"
        )
    known = task.needs if own.provider is None else frozenset()  # of the agent's own provider it is asked elsewhere
    lacking = sorted(task.for_verifier().needs - known - verifier.features)
    problems += [
        f"{task.where('verifier')}: its separate verifier needs {feature}, which the provider {verifier.name} does not "
        "promise on this machine; choose another with -e"
        for feature in lacking
    ]
    doubles = double_artifacts(task.data.artifacts, task.data.workdir or "/")
    if doubles and not task.collects_what_it_can:
        problems.append(f"{task.where('artifacts')}: declared more than once: {', '.join(doubles)}")
    return problems
