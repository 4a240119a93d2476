"""What is collected of an agent's sandbox: the conformance rows A5, A9, A10, A14 and S9."""

from __future__ import annotations

from pathlib import Path

import pytest

import forkyard as vf
from forkyard.errors import ConfigError, HarnessError
from forkyard.sandbox.local import LocalProvider
from forkyard.trace import Status
from tests.conformance.parts import HEAD, SEPARATE, manifest_of, played, task_of
from tests.env.parts import Commands

LEAVES = "echo made > /logs/artifacts/made; mkdir -p /app/out; echo told > /logs/agent/told; echo x > /app/out/x"
DECLARED = 'artifacts = ["/app/out"]\n' + HEAD


class Fails(Commands):
    """Acts, and then breaks."""

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        await super().launch(ctx, task, trace, runtime)
        raise HarnessError("the agent's program is broken")


@pytest.mark.parametrize("entry", ['{source = "/x", service = "db"}', '{source = "/x", service = "main-2"}'])
def test_a5_an_artifact_of_a_service_is_refused_where_there_is_none(entry: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="comes from the service .* but the task has one container"):
        task_of(tmp_path, f"artifacts = [{entry}]\n{HEAD}")


async def test_a9_what_was_not_there_is_left_out_and_the_verifier_meets_what_was(
    local: LocalProvider, tmp_path: Path
) -> None:
    toml = 'artifacts = ["/app/out", "/app/none"]\n' + HEAD + SEPARATE
    test = "#!/bin/bash\n[ -s /app/out/x ] && ! [ -e /app/none ] && echo 1 > /logs/verifier/reward.txt\n"
    trace = await played(local, task_of(tmp_path, toml, test), LEAVES, keep_logs_in=tmp_path / "kept")
    assert (trace.reward, trace.verifier["missing_artifacts"]) == (1.0, ["/app/none"]), trace.reason
    assert manifest_of(tmp_path / "kept", trace)["/app/none"]["status"] == "failed"


@pytest.mark.parametrize("toml", [HEAD, DECLARED, DECLARED + SEPARATE], ids=["nothing declared", "shared", "separate"])
async def test_a10_what_an_agent_left_that_failed_is_collected_all_the_same(
    toml: str, local: LocalProvider, tmp_path: Path
) -> None:
    task, kept = task_of(tmp_path, toml), tmp_path / "kept"
    trace = await played(local, task, harness=Fails(LEAVES), keep_logs_in=kept)
    assert (trace.status, trace.reward, trace.verifier) == (Status.INDETERMINATE, None, {})
    place = kept / trace.id
    assert (place / "agent/told").read_text() == "told\n"
    assert (place / "artifacts/logs/artifacts/made").read_text() == "made\n"
    expected = {"/logs/artifacts": "ok", **({"/app/out": "ok"} if toml.startswith("artifacts") else {})}
    assert {source: entry["status"] for source, entry in manifest_of(kept, trace).items()} == expected


@pytest.mark.parametrize("toml", [HEAD, DECLARED, DECLARED + SEPARATE], ids=["nothing declared", "shared", "separate"])
async def test_a10_what_is_graded_is_collected_once(toml: str, local: LocalProvider, tmp_path: Path) -> None:
    task, kept = task_of(tmp_path, toml), tmp_path / "kept"
    trace = await played(local, task, LEAVES, keep_logs_in=kept)
    assert trace.reward == 1.0, trace.reason
    assert "logs" not in trace.info
    found = sorted(str(path.relative_to(kept / trace.id / "artifacts")) for path in (kept / trace.id).rglob("made"))
    assert found == ["logs/artifacts/made"]


async def test_a10_of_a_sandbox_that_is_gone_is_said_that_nothing_could_be_had(
    local: LocalProvider, tmp_path: Path
) -> None:
    class Ends(Fails):
        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            await runtime.close()
            raise HarnessError("the agent's program is broken")

    trace = await played(local, task_of(tmp_path), harness=Ends(), keep_logs_in=tmp_path / "kept")
    assert trace.status is Status.INDETERMINATE
    assert len(trace.errors) == 1 and "lost" in trace.info["logs"][0]


async def test_a14_an_agents_logs_can_be_an_artifact(local: LocalProvider, tmp_path: Path) -> None:
    toml = 'artifacts = ["/logs/agent"]\n' + HEAD + SEPARATE
    test = "#!/bin/bash\n[ -s /logs/agent/told ] && echo 1 > /logs/verifier/reward.txt\n"
    trace = await played(local, task_of(tmp_path, toml, test), LEAVES, keep_logs_in=tmp_path / "kept")
    assert trace.reward == 1.0, trace.reason
    assert (tmp_path / "kept" / trace.id / "artifacts/logs/agent/told").read_text() == "told\n"


@pytest.mark.parametrize("setup", ["true", "false"], ids=["played to the end", "ended early"])
async def test_s9_a_task_with_steps_leaves_no_empty_folders_beside_those_of_its_steps(
    setup: str, local: LocalProvider, tmp_path: Path
) -> None:
    toml = f'{HEAD}[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
    files = {f"steps/{name}/instruction.md": "Do it.\n" for name in ("one", "two")}
    task = task_of(tmp_path / "t", toml, files={**files, "steps/two/workdir/setup.sh": f"{setup}\n"})
    trace = await played(local, task, ":", keep_logs_in=tmp_path / "kept")
    assert (trace.reward == 1.0) == (setup == "true"), trace.reason
    assert [path.name for path in (tmp_path / "kept" / trace.id).iterdir()] == ["steps"]


async def test_s11_the_artifacts_of_a_step_are_the_tasks_and_its_own(local: LocalProvider, tmp_path: Path) -> None:
    toml = (
        f'artifacts = ["/app/all"]\n{HEAD}[[steps]]\nname = "one"\nartifacts = ["/app/one"]\n[[steps]]\nname = "two"\n'
    )
    files = {f"steps/{name}/instruction.md": "Do it.\n" for name in ("one", "two")}
    kept = tmp_path / "kept"
    trace = await played(
        local, task_of(tmp_path / "t", toml, files=files), "echo x >> /app/all; cp /app/all /app/one", keep_logs_in=kept
    )
    places = {name: kept / trace.id / "steps" / name / "artifacts" for name in ("one", "two")}
    assert {name: (place / "app/all").read_text() for name, place in places.items()} == {"one": "x\n", "two": "x\nx\n"}
    assert [(place / "app/one").exists() for place in places.values()] == [True, False]
