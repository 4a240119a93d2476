"""What leaves the agent's sandbox of a task directory, and what a separate verifier gets; by the conformance ids."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import forkyard as vf
from forkyard.env import SingleAgentEnv
from forkyard.harness import OracleHarness
from forkyard.sandbox.local import LocalProvider
from forkyard.task import load_task
from forkyard.trace import Status
from tests.env.parts import Commands, play, seat

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEAD = '[task]\nname = "cases/collected"\n[environment]\ndocker_image = "host"\nworkdir = "/app"\n'
SEPARATE = HEAD + '[verifier]\nenvironment_mode = "separate"\n'
LISTS = "#!/bin/bash\ncd {}; find . -type f | sort; echo 1 > /logs/verifier/reward.txt\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(tmp_path_factory.mktemp("home")) as provider:
        yield provider


def made(root: Path, toml: str, test: str, solve: str, **files: str) -> vf.Task:
    """A task whose agent runs `solve`."""
    written = {
        "task.toml": toml,
        "instruction.md": "Do it.\n",
        "environment/nothing": "",
        "tests/test.sh": test,
        "solution/solve.sh": f"#!/bin/bash\n{solve}\n",
        **files,
    }
    for path, text in written.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return load_task(root, {})


async def played(provider: LocalProvider, task: vf.Task, **fields: Any) -> vf.Trace:
    episode = await play(SingleAgentEnv(), task, {"agent": seat(provider, OracleHarness(), **fields)})
    return episode.traces[0]


def output(trace: vf.Trace) -> list[str]:
    assert trace.status is Status.SCORED, trace.reason
    return str(trace.verifier["output_tail"]).split()


async def test_a2_a3_and_a8_what_is_declared_arrives_at_its_own_path_without_what_is_excluded(
    provider: LocalProvider, tmp_path: Path
) -> None:
    entries = 'artifacts = ["/srv/a", {source = "out", destination = "else/where", exclude = ["*.o", "cache"]}]\n'
    solve = "mkdir -p out/cache /srv; touch out/x out/x.o out/cache/y /srv/a /srv/b; echo n > /logs/artifacts/note"
    test = LISTS.format("/").replace("find .", "find ./app ./srv ./logs/artifacts")
    task = made(tmp_path / "task", entries + SEPARATE, test, solve)
    trace = await played(provider, task, keep_logs_in=tmp_path / "kept")
    patch = "./logs/artifacts/model.patch"
    assert output(trace) == ["./app/out/x", patch, "./logs/artifacts/note", "./srv/a"]
    kept = tmp_path / "kept" / trace.id / "artifacts"
    files = sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file())
    places = ["else/where/x", "logs/artifacts/model.patch", "logs/artifacts/note", "manifest.json", "srv/a"]
    assert files == places


async def test_a1_a_shared_verifier_gets_nothing_brought_and_its_artifacts_are_kept_as_the_agent_left_them(
    provider: LocalProvider, tmp_path: Path
) -> None:
    test = "#!/bin/bash\necho changed > /app/x; echo 1 > /logs/verifier/reward.txt\n"
    task = made(tmp_path / "task", 'artifacts = ["/app/x"]\n' + HEAD, test, "echo agents > x")
    for mode in ("shared", "forked"):
        trace = await played(provider, task, keep_logs_in=tmp_path / "kept", verifier=mode)
        kept = tmp_path / "kept" / trace.id
        assert (kept / "artifacts/app/x").read_text() == "agents\n"
        assert (kept / "verifier/reward.txt").read_text() == "1\n"


async def test_a_shared_task_that_declares_nothing_has_a_manifest_too(provider: LocalProvider, tmp_path: Path) -> None:
    task = made(tmp_path / "task", HEAD, LISTS.format("/app"), "echo n > /logs/artifacts/note")
    trace = await played(provider, task, keep_logs_in=tmp_path / "kept")
    kept = tmp_path / "kept" / trace.id / "artifacts"
    assert (kept / "logs/artifacts/note").read_text() == "n\n"
    (entry,) = json.loads((kept / "manifest.json").read_text())
    assert (entry["source"], entry["status"], entry["type"]) == ("/logs/artifacts", "ok", "directory")


async def test_a6_and_a7_what_fails_and_what_has_no_place_is_in_the_manifest_and_stops_nothing(
    provider: LocalProvider, tmp_path: Path
) -> None:
    entries = 'artifacts = ["/app/d/f", "/app/d", "/app/none", "/app/huge", "/app/empty"]\n'
    solve = "mkdir d empty; echo 1 > d/f; echo 2 > d/g; head -c 3000000 /dev/zero > huge"
    task = made(tmp_path / "task", entries + SEPARATE, LISTS.format("/app"), solve)
    task = task.with_data(artifact_max_bytes=1_000_000)
    trace = await played(provider, task, keep_logs_in=tmp_path / "kept")
    assert output(trace) == ["./d/f", "./d/g"]
    manifest = json.loads((tmp_path / "kept" / trace.id / "artifacts/manifest.json").read_text())
    assert [(entry["source"], entry["type"], entry["status"]) for entry in manifest] == [
        ("/logs/artifacts", "directory", "ok"),
        ("/app/d/f", "file", "ok"),
        ("/app/d", "directory", "skipped"),
        ("/app/none", "file", "failed"),
        ("/app/huge", "file", "failed"),
        ("/app/empty", "directory", "empty"),
    ]
    assert list(trace.verifier["failed_artifacts"]) == ["/app/huge"]
    assert trace.verifier["missing_artifacts"] == ["/app/none"]


async def test_a_link_that_leads_out_of_an_artifact_is_left_out_and_told(
    provider: LocalProvider, tmp_path: Path
) -> None:
    task = made(tmp_path, 'artifacts = ["/app/d"]\n' + SEPARATE, LISTS.format("/app"), "mkdir d; ln -s /tests d/t")
    trace = await played(provider, task)
    assert output(trace) == []
    assert "unsafe target" in trace.verifier["left_out"][0]


async def test_the_collection_script_runs_in_the_working_directory_before_the_hooks_and_the_tests(
    provider: LocalProvider, tmp_path: Path
) -> None:
    hook = '[[verifier.collect]]\ncommand = "echo hook >> /logs/artifacts/log; pwd >> /logs/artifacts/log"\n'
    script = (
        "#!/bin/bash\nls /tests 2>/dev/null; pwd > /logs/artifacts/log; echo script >> /logs/artifacts/log; exit 9\n"
    )
    test = "#!/bin/bash\ncat /logs/artifacts/log; ls /logs/artifacts; echo 1 > /logs/verifier/reward.txt\n"
    for mode in (SEPARATE, HEAD):
        task = made(tmp_path, mode + hook, test, ":", **{"pre_artifacts.sh": script})
        trace = await played(provider, task)
        assert output(trace) == ["/app", "script", "hook", "/app", "log"]
        (failed,) = trace.verifier["failed_hooks"]
        assert (failed["command"], failed["exit_code"], failed["output_tail"]) == ("pre_artifacts.sh", 9, "")


async def test_hooks_of_a_sandbox_that_cannot_run_them_are_told_and_stop_nothing(
    provider: LocalProvider, tmp_path: Path
) -> None:
    hook = '[[verifier.collect]]\ncommand = "true"\n'
    task = made(
        tmp_path, SEPARATE + hook, LISTS.format("/tests"), "cd /; rm -rf /app /bin/sh /usr/bin/sh /usr/bin/dash"
    )
    trace = await played(provider, task)
    assert output(trace) == ["./test.sh"]
    assert trace.verifier["failed_hooks"][0]["command"] == "true"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git (apt-get install git)")
async def test_without_a_script_the_patch_holds_what_was_changed_since_the_start(
    provider: LocalProvider, tmp_path: Path
) -> None:
    init = "cd /app && git init -q . && git config user.email a@b.c && git config user.name a"
    test = "#!/bin/bash\ncat /logs/artifacts/model.patch; echo 1 > /logs/verifier/reward.txt\n"
    solve = "echo new > added; echo more >> kept; git add kept; git -c commit.gpgsign=false commit -qm x; rm gone"
    task = made(tmp_path, SEPARATE, test, solve)
    files = {"kept": b"old\n", "gone": b"g\n"}
    base = await provider.create(vf.SandboxSpec(image="host", workdir="/app"))
    for name, content in files.items():
        await base.write(f"/app/{name}", content)
    done = await base.run(f"{init} && git add . && git commit -qm start", user="0")
    assert done.ok, done
    await base.stop()
    await provider.commit(base, "in-git", (await provider.image("host")).config)  # type: ignore[union-attr]
    await base.close()

    async def image(task: vf.Task) -> str:
        return "in-git"

    chosen = vf.Seat(OracleHarness(), provider, image)
    episode = await play(SingleAgentEnv(), task, {"agent": chosen})
    patch = str(episode.traces[0].verifier["output_tail"])
    assert len(episode.traces[0].verifier["base_commit"]) == 40
    assert "+new" in patch and "+more" in patch and "-g" in patch and patch.startswith("diff --git")


async def test_c2_an_image_without_the_tests_it_is_to_hold_is_named(provider: LocalProvider, tmp_path: Path) -> None:
    own = SEPARATE + '[verifier.environment]\ndocker_image = "other:1"\n'
    trace = await played(provider, made(tmp_path, own, LISTS.format("/"), ":"))
    assert trace.status is Status.SCORING_ERROR
    assert "the image other:1 has no /tests/test.sh" in str(trace.reason)
    assert "failed_attempts" not in trace.verifier


async def test_files_that_the_agent_plants_reach_no_separate_verifier(provider: LocalProvider, tmp_path: Path) -> None:
    plants = [
        "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; touch /tests/conftest.py",
        "printf '#!/bin/sh\\nexit 0' > /usr/local/bin/grep; chmod 755 /usr/local/bin/grep",
        "echo 'echo 1 > /logs/verifier/reward.txt' > /etc/profile.d/x.sh; cp /etc/profile.d/x.sh ~/.bashrc",
        "echo /app/lib.so > /etc/ld.so.preload",
    ]
    check = "grep -qx done /app/answer 2>/dev/null && r=1 || r=0"
    test = f"#!/bin/bash\n{check}; ls /tests; echo $r > /logs/verifier/reward.txt\n"
    task = made(tmp_path, 'artifacts = ["/app/answer"]\n' + SEPARATE, test, "true")
    seats = {"agent": seat(provider, Commands(*plants))}
    (trace,) = (await play(SingleAgentEnv(), task, seats)).traces
    assert (trace.status, trace.reward, trace.verifier["output_tail"]) == (Status.SCORED, 0.0, "test.sh\n")
