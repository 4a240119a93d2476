"""What has to hold before a run starts: everything that would make its rollouts fail alike is said at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forkyard.env import RESOURCES, Env, Seat, limits_of
from forkyard.env.boxes import verified_task
from forkyard.env.seat import grading_mode
from forkyard.errors import ConfigError
from forkyard.image import BuildOptions, base_images, check_build, ensure_image, find_image, read_dockerfile
from forkyard.run.images import HOST, nameless
from forkyard.run.plan import Plan
from forkyard.sandbox import Feature, ImageProvider, ImageStore, Provider, image_provider
from forkyard.sandbox.promises import unkept
from forkyard.sandbox.values import BOUNDS
from forkyard.task import Task
from forkyard.values import first_names, printable

_UNNAMED = "it names none itself, so name one with --base IMAGE, or in an env with --env.AGENT.runtime.image IMAGE"
_UNBOUNDED = "`forkyard doctor` says what is missing; --unbounded plays the task without this bound"
LACKING = {
    Feature.ISOLATED: ("", "play it on one that isolates: -e local"),
    Feature.IMAGES: ("image", "play it on one that keeps images: -e local"),
    Feature.FORK: ("verifier", "grade with --verifier shared, or play it on one that forks: -e local"),
    Feature.USERS: (
        "agent_user",
        "leave the user out, or start forkyard as root or with your own range in /etc/subuid",
    ),
    Feature.NO_NETWORK: ("network_allow", "play it on one that can keep sandboxes off the network: -e local"),
    Feature.ALLOWLIST: ("network_allow", "play it on one that can keep to a list of hosts: -e local"),
    Feature.LIVE_NETWORK: (
        "network_allow",
        "give setup, agent and verifier the same network, or play it on one that can change it: -e local",
    ),
    Feature.PUBLIC_NETWORK: (
        "network_allow",
        'write network_mode = "no-network" if the task can do without (in Python network_allow = ()), '
        "or choose another provider with -e",
    ),
    Feature.COMPOSE: (
        "compose",
        "play it where several containers are brought up: -e docker, with a program for compose (Debian: "
        "`apt-get install docker-compose`)",
    ),
    Feature.GPUS: ("resources.gpu", "no provider that comes along has any"),
    Feature.TPU: ("tpu", "no provider that comes along has any"),
    Feature.WINDOWS: ("os", "no provider that comes along has it"),
    **{BOUNDS[bound].feature: (f"resources.{field}", _UNBOUNDED) for bound, field in RESOURCES.items()},
}
"""For each feature a task may ask for: the field of its data that does, and the mend when a provider lacks it."""


async def find_problems(plan: Plan, tasks: Sequence[Task], env: Env[Any], seats: Mapping[str, Seat]) -> list[str]:
    """One sentence for each reason not to start."""
    problems = [
        f"two tasks are called {printable(name)}: rename one (task.name; in Python TaskData.name)"
        for name in _doubles(tasks)
    ]
    problems += [printable(text) for task in tasks for text in task.unplayable]
    if len(seats) == len(env.agents):
        problems += grouped((text, task.name) for task in tasks for text in env.problems(task, seats))
    for name, unverified in seats.items():
        seat = env.seated(name, unverified)
        given = [env.plays(name, task) for task in tasks]
        problems += _harness_problems(seat)
        problems += _provider_problems(plan, given, seat)
        default = getattr(env.config, name).runtime.image
        apart = [verified_task(seat, each) for each in given if grading_mode(seat, each) == "separate"]
        for provider, each in ((seat.provider, given), (seat.verification.provider or seat.provider, apart)):
            if Feature.IMAGES in provider.features:
                problems += await _image_problems(plan, each, image_provider(provider), default)
    return list(dict.fromkeys(problems))


def grouped(said: Iterable[tuple[str, str]]) -> list[str]:
    """Each different text once, with the names of the tasks it was said of: `(text, name)` pairs."""
    names: dict[str, dict[str, None]] = {}
    for text, name in said:
        names.setdefault(text, {})[name] = None
    return [printable(f"{text} ({_names(list(whose))})") for text, whose in names.items()]


def notes_of(plan: Plan, task: Task, provider: Provider) -> list[str]:
    """What a user should know of one task before trusting its results."""
    notes = list(task.notes)
    if task.network is None:
        notes.append("the task does not say what network it wants: it runs without")
    if missing := unkept(limits_of(task), provider.features):
        names = " and ".join(BOUNDS[name].words for name in missing)
        notes.append(f"the provider {provider.name} cannot bound a sandbox's {names} on this machine: it has no bound")
    mode = plan.agent.verifier
    if mode is not None and mode != task.data.verifier:
        notes.append(f"grading mode {mode} takes the place of the task's {task.data.verifier}")
    named = _named_image(task)
    if plan.base is not None and named is not None and named != plan.base:
        notes.append(f"the image {plan.base} takes the place of {named}, which the task names")
    return notes


def _names(names: Sequence[str]) -> str:
    return f"{'task' if len(names) == 1 else f'{len(names)} tasks:'} {first_names(names)}"


def _doubles(tasks: Sequence[Task]) -> list[str]:
    seen: set[str] = set()
    doubles: dict[str, None] = {}
    for task in tasks:
        if task.name in seen:
            doubles[task.name] = None
        seen.add(task.name)
    return list(doubles)


def _harness_problems(seat: Seat) -> list[str]:
    """What a program inside the sandbox needs of the provider, whatever the tasks are."""
    harness, provider = seat.harness, seat.provider
    needs = {Feature.LISTEN} if harness.needs_endpoint else set()
    if harness.equipment() is not None:
        needs.add(Feature.IMAGES)
    return [
        f"the harness {harness.name} needs {feature}, which the provider {provider.name} does not promise on this "
        "machine; choose another provider: -e local"
        for feature in sorted(needs - provider.features)
    ]


def _provider_problems(plan: Plan, tasks: Sequence[Task], seat: Seat) -> list[str]:
    said: list[tuple[str, str, str]] = []
    provider = seat.provider
    for task in tasks:
        needs = set(task.needs)
        if grading_mode(seat, task) == "forked":
            needs.add(Feature.FORK)
        if not plan.unbounded:
            needs |= {BOUNDS[name].feature for name in unkept(limits_of(task), provider.features)}
        for feature in sorted(needs - provider.features):
            field, mend = LACKING.get(feature, ("", "choose another provider with -e"))
            text = f"needs {feature}, which the provider {provider.name} does not promise on this machine; {mend}"
            where = "--verifier" if feature is Feature.FORK and seat.verifier else task.where(field)
            said.append((text, where, task.name))
    return placed(said)


def placed(said: Iterable[tuple[str, str, str]]) -> list[str]:
    """As `grouped`, behind the first of the places each was said of: `(text, place, name)` triples."""
    places: dict[str, str] = {}
    names: list[tuple[str, str]] = []
    for text, place, name in said:
        places.setdefault(text, place)
        names.append((text, name))
    return [printable(f"{place}: {text}") for text, place in zip(grouped(names), places.values(), strict=True)]


async def _image_problems(plan: Plan, tasks: Sequence[Task], store: ImageProvider, default: str | None) -> list[str]:
    """Why the images of tasks cannot be had; `default` is that of tasks which name none."""
    unavailable: dict[str, str] = {}
    unnamed = default or await nameless(store)
    if plan.base is not None and (problem := await _unavailable(store, plan.base, unavailable)):
        return [f"--base: {problem}"]
    missing: list[tuple[str, str, str]] = []
    problems: list[str] = []
    for task in tasks:
        try:
            name = await _missing_image(plan, task, store, unnamed)
            if name and (problem := await _unavailable(store, name, unavailable)):
                named = task.data.image is not None or task.origin.build is not None
                missing.append((problem if named else f"{problem}; {_UNNAMED}", task.where("image"), task.name))
        except ConfigError as err:
            problems += err.problems
    return problems + placed(dict.fromkeys(missing))


async def _unavailable(store: ImageProvider, name: str, known: dict[str, str]) -> str:
    """Why an image cannot be had, asked once of each; nothing when the store has it now."""
    if name == HOST and await store.image(HOST) is None:
        return f"the provider {store.name} has no image host, which is this machine's own /usr: name another"
    if name not in known:
        try:
            await ensure_image(store, name)
            known[name] = ""
        except ConfigError as err:
            known[name] = str(err)
    return known[name]


async def _missing_image(plan: Plan, task: Task, store: ImageStore, unnamed: str) -> str | None:
    """The name of an image the task needs and the store lacks. Raises ConfigError for a bad Dockerfile or context."""
    directory = task.origin.build
    if directory is None:
        named: str = task.data.image or unnamed
        known = plan.base is not None or task.origin.has_image or await find_image(store, named) is not None
        return None if known else named
    return await check_build(store, directory, BuildOptions(base=plan.base))


def _named_image(task: Task) -> str | None:
    if (directory := task.origin.build) is not None:
        return ", ".join(base_images(read_dockerfile(directory / "Dockerfile")))
    named: str | None = task.data.image
    return named
