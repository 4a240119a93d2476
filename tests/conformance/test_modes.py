"""Where a verifier runs, and when: the conformance rows M1 to M8."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.trace import Status
from tests.conformance.parts import HEAD, PASSES, SEPARATE, played, task_of


class Watched(LocalProvider):
    """Notes which sandboxes are there whenever one more is asked for."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.seen: list[int] = []

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.seen.append(len(await self.sandboxes()))
        return await super().create(spec)


@pytest.fixture
async def watched(home: Path) -> AsyncIterator[Watched]:
    async with Watched(home) as provider:
        yield provider


def test_m1_a_verifier_shares_the_agents_sandbox_unless_something_says_otherwise(tmp_path: Path) -> None:
    assert task_of(tmp_path / "plain").data.verifier == "shared"
    assert task_of(tmp_path / "apart", HEAD + "[verifier.environment]\ncpus = 1\n").data.verifier == "separate"
    said = HEAD + '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1\n'
    assert task_of(tmp_path / "said", said).data.verifier == "shared"


async def test_m5_a_verifiers_sandbox_has_nothing_of_the_agents_but_artifacts(watched: Watched, tmp_path: Path) -> None:
    toml = 'artifacts = ["/app/answer"]\n' + HEAD + 'env = {OF_THE_AGENT = "1"}\n'
    toml += '[verifier]\n[verifier.environment]\ndocker_image = "host"\nworkdir = "/check"\nenv = {ITS_OWN = "1"}\n'
    test = "#!/bin/bash\n[ -s /app/answer ] && ! [ -e /app/more ] && ! [ -e /opt/over ] && [ -z $OF_THE_AGENT ] &&\n"
    test += '[ "$PWD $ITS_OWN" = "/check 1" ] && ! pgrep -x sleep && echo 1 > /logs/verifier/reward.txt\n'
    agent = "echo x > /app/answer; echo x > /app/more; echo x > /opt/over; nohup sleep 100 >/dev/null 2>&1 &"
    trace = await played(watched, task_of(tmp_path, toml, test), agent)
    assert (trace.status, trace.reward) == (Status.SCORED, 1.0), trace.verifier


async def test_m6_the_agents_sandbox_has_ended_before_the_verifiers_begins(watched: Watched, tmp_path: Path) -> None:
    trace = await played(watched, task_of(tmp_path, HEAD + SEPARATE), ":")
    assert trace.reward == 1.0, trace.reason
    assert watched.seen == [0, 0]


@pytest.mark.parametrize(
    "test", [PASSES, "#!/bin/bash\nnohup sleep 100 >/dev/null 2>&1 &\n", "#!/bin/bash\nkill -9 -1\n"]
)
async def test_m7_the_verifiers_sandbox_ends_with_the_verification(test: str, watched: Watched, tmp_path: Path) -> None:
    task = task_of(tmp_path, HEAD + SEPARATE, test)
    for _ in range(2):
        trace = await played(watched, task, ":")
        assert trace.status in (Status.SCORED, Status.INDETERMINATE), trace.reason
    assert watched.seen == [0, 0, 0, 0]  # each of the four met none, and `play` has seen that none is left


async def test_m8_a_step_of_the_longest_name_there_can_be_is_played_and_its_logs_are_kept(
    watched: Watched, tmp_path: Path
) -> None:
    name = "é" * 127 + "x"
    toml = f'{HEAD}[[steps]]\nname = "{name}"\n[[steps]]\nname = "{name[:-1]}y"\n'
    files = {f"steps/{one}/instruction.md": "Do it.\n" for one in (name, f"{name[:-1]}y")}
    trace = await played(watched, task_of(tmp_path / "t", toml, PASSES, files), ":", keep_logs_in=tmp_path / "kept")
    assert (trace.status, trace.reward) == (Status.SCORED, 1.0), trace.reason
    assert sorted(path.name for path in (tmp_path / "kept" / trace.id / "steps").iterdir()) == [name, f"{name[:-1]}y"]


async def test_p4_names_with_blanks_and_signs_of_a_shell_are_taken_as_they_are(
    watched: Watched, tmp_path: Path
) -> None:
    name = "a b; touch $HOME"
    test = "#!/bin/bash\ncmp '/tests/a file' /tests/other && echo 1 > /logs/verifier/reward.txt\n"
    files = {
        f"steps/{name}/{place}": "x\n" for place in ("instruction.md", "tests/a file", "tests/other", "workdir/c d")
    }
    task = task_of(tmp_path / "with a blank", f'{HEAD}[[steps]]\nname = "{name}"\n', test, files)
    trace = await played(watched, task, "[ -s '/app/c d' ] || rm -rf /tests")
    assert (trace.status, trace.reward) == (Status.SCORED, 1.0), trace.reason
