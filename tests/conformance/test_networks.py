"""What each phase may reach: the conformance rows N1 to N17, and N19."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.run import start
from forkyard.sandbox import NO_NETWORK, Feature, Network
from forkyard.sandbox.local import LocalProvider
from forkyard.task import DirectoryTask, Task
from tests.conformance.parts import HEAD, task_of
from tests.run.parts import Heard, plan_of, write_task

ALLOW = 'network_mode = "allowlist"\nallowed_hosts = ["a.test"]\n'
PUBLIC, NONE = 'network_mode = "public"\n', 'network_mode = "no-network"\n'
SAME = {  # one network from the start to the end
    "N1 nothing is said": ("", "unsaid"),
    "N2 public": (PUBLIC, "public"),
    "N3 no network": (NONE, "none"),
    "N4 a list": (ALLOW, "a.test"),
    "N5 no network, and the agent says so too": (NONE + "[agent]\n" + NONE, "none"),
    "N6 public, and the verifier says so too": (PUBLIC + "[verifier]\n" + PUBLIC, "public"),
    "N7 the older key": ("allow_internet = false\n", "none"),
    "N8 a list, and both say so too": (ALLOW + "[agent]\n" + ALLOW + "[verifier]\n" + ALLOW, "a.test"),
}
OTHERS = {  # while it is set up, for the agent, for the verifier
    "N9 public, the agent none": (PUBLIC + "[agent]\n" + NONE, ("public", "none", "public")),
    "N10 public, the agent a list": (PUBLIC + "[agent]\n" + ALLOW, ("public", "a.test", "public")),
    "N11 none, the agent public": (NONE + "[agent]\n" + PUBLIC, ("none", "public", "none")),
    "N12 none, the agent a list": (NONE + "[agent]\n" + ALLOW, ("none", "a.test", "none")),
    "N13 a list, the agent none": (ALLOW + "[agent]\n" + NONE, ("a.test", "none", "a.test")),
    "N14 none, the verifier public": (NONE + "[verifier]\n" + PUBLIC, ("none", "none", "public")),
    "N15 public, the verifier none": (PUBLIC + "[verifier]\n" + NONE, ("public", "public", "none")),
    "N16 none, the agent a list, the verifier public": (
        NONE + "[agent]\n" + ALLOW + "[verifier]\n" + PUBLIC,
        ("none", "a.test", "public"),
    ),
    "N17 a list, the agent public, the verifier none": (
        ALLOW + "[agent]\n" + PUBLIC + "[verifier]\n" + NONE,
        ("a.test", "public", "none"),
    ),
}


def told(network: Network | None) -> str:
    if network is None:
        return "unsaid"
    return network.mode if network.mode != "allowlist" else ",".join(network.allow)


def phases(task: Task) -> tuple[str, str, str]:
    """What is reached while the task is set up, by its agent, and while it is graded."""
    own = task.network
    return told(task.networks.setup or own), told(own), told(task.networks.verifier or own)


def row(tmp_path: Path, text: str) -> DirectoryTask:
    return task_of(tmp_path / "t", HEAD + text)


@pytest.mark.parametrize(("text", "network"), SAME.values(), ids=SAME.keys())
def test_n1_to_n8_one_network_is_never_changed(text: str, network: str, tmp_path: Path) -> None:
    task = row(tmp_path, text)
    assert phases(task) == (network, network, network)
    assert (task.networks.setup, task.networks.verifier) == (None, None)
    assert Feature.LIVE_NETWORK not in task.needs


@pytest.mark.parametrize(("text", "networks"), OTHERS.values(), ids=OTHERS.keys())
def test_n9_to_n17_a_phase_with_a_network_of_its_own_needs_a_change(
    text: str, networks: tuple[str, str, str], tmp_path: Path
) -> None:
    task = row(tmp_path, text)
    assert phases(task) == networks
    assert Feature.LIVE_NETWORK in task.needs


@pytest.mark.parametrize(("text", "networks"), OTHERS.values(), ids=OTHERS.keys())
def test_n9_to_n17_a_step_may_say_it_as_well(text: str, networks: tuple[str, str, str], tmp_path: Path) -> None:
    steps = '[[steps]]\nname = "plain"\n[[steps]]\nname = "own"\n'
    at = min(text.index(table) for table in ("[agent]", "[verifier]") if table in text)
    baseline, own_tables = (
        text[:at],
        text[at:].replace("[agent]", "[steps.agent]").replace("[verifier]", "[steps.verifier]"),
    )
    said = steps + own_tables
    files = {f"steps/{name}/instruction.md": "Do it.\n" for name in ("plain", "own")}
    task = task_of(tmp_path / "t", HEAD + baseline + said, files=files)
    staging = task.in_stages()
    assert staging is not None
    (_, plain), (_, own) = staging.tasks
    assert phases(plain) == (networks[0],) * 3
    assert phases(own) == networks
    assert Feature.LIVE_NETWORK in task.needs


def test_n8_a_separate_verifier_reaches_what_its_own_table_says_and_is_sealed_otherwise(tmp_path: Path) -> None:
    own = '[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\n'
    for text, expected in ((own, NO_NETWORK), (own + PUBLIC, Network("public"))):
        apart = row(tmp_path, PUBLIC + text).for_verifier()
        assert (apart.network, apart.networks.setup, apart.networks.verifier) == (expected, None, None)


class WithoutChanges(LocalProvider):
    """A provider that cannot change a network while a sandbox runs."""

    @property
    def features(self) -> frozenset[Feature]:
        return super().features - {Feature.LIVE_NETWORK}


async def test_n19_a_change_that_the_provider_cannot_make_is_refused_before_anything_starts(
    tmp_path: Path, home: Path
) -> None:
    write_task(tmp_path / "tasks", "a", toml="[agent]\n" + NONE + "[verifier]\n" + ALLOW)
    with pytest.raises(ConfigError, match="live_network"):
        await start(plan_of(tmp_path), Heard(), provider=WithoutChanges(home))
    assert not (tmp_path / "runs").exists()
