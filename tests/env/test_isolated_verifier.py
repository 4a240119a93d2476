"""Verification in a sandbox of its own: what reaches it, and what becomes of a verification that fails ("6.5")."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import forkyard as vf
from forkyard.env.config import RuntimeChoice
from forkyard.env.isolated_verifier import IsolatedVerifierConfig, IsolatedVerifierEnv, VerifierConfig
from forkyard.errors import ConfigError
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.subprocess import SubprocessProvider
from tests.env.parts import Commands, play, seat

ANSWER = "/app/answer.txt"


class Iso(vf.Task):
    """Write 42 into /app/answer.txt; the check is a hidden script that looks around."""

    async def setup(self, runtime: vf.Sandbox) -> None:
        await runtime.write("/app/from_setup", b"1")

    def runtime_env(self) -> dict[str, str]:
        return {"GIVEN": "by the task"}

    async def stage_verifier(self, runtime: vf.Sandbox) -> None:
        await runtime.write("/tests/check.sh", b"grep -qx 42 /app/answer.txt\n")

    @vf.reward
    async def right(self, runtime: vf.Sandbox) -> float:
        return float((await runtime.run(["sh", "/tests/check.sh"])).ok)

    @vf.metric
    async def seen(self, runtime: vf.Sandbox, trace: vf.Trace) -> float:
        look = "ls /app /logs/artifacts; cat /logs/artifacts/* ; echo $GIVEN; ps ax 2>/dev/null | grep -c '[s]leep'"
        trace.info["seen"] = (await runtime.run(look)).stdout
        return 1.0


def iso(kind: type[vf.Task] = Iso, **data: Any) -> vf.Task:
    return kind(vf.TaskData(**{"name": "iso", "prompt": "?", "artifacts": (vf.Artifact(source=ANSWER),), **data}))


async def verified(
    local: LocalProvider, task: vf.Task, *commands: str, verifier: VerifierConfig | None = None, **fields: Any
) -> vf.Trace:
    env = IsolatedVerifierEnv(IsolatedVerifierConfig(verifier=verifier or VerifierConfig()))
    seats = {"agent": seat(local, Commands(*commands), **fields)}
    assert env.problems(task, seats) == []
    episode = await play(env, task, seats)
    (trace,) = episode.traces
    return trace


async def test_6_5_only_what_is_declared_reaches_the_verifier(local: LocalProvider) -> None:
    trace = await verified(
        local,
        iso(),
        f"echo 42 > {ANSWER}; echo x > /app/undeclared",
        "mkdir -p /logs/artifacts /tests /logs/verifier; echo noted > /logs/artifacts/n; echo 'true' > /tests/check.sh",
        "setsid sleep 1000 >/dev/null 2>&1 &",
    )
    assert (trace.status, trace.reward, trace.ok) == (vf.Status.SCORED, 1.0, True), trace.reason
    assert trace.info["seen"] == "/app:\nanswer.txt\nfrom_setup\n\n/logs/artifacts:\nn\nnoted\nby the task\n0\n"
    assert trace.verifier["mode"] == "separate"


async def test_6_5_a_wrong_answer_is_a_zero(local: LocalProvider) -> None:
    trace = await verified(local, iso(), f"echo 41 > {ANSWER}")
    assert (trace.status, trace.reward, trace.ok) == (vf.Status.SCORED, 0.0, True)


@pytest.mark.parametrize("hook", ["stage_verifier", "right"])
async def test_6_5_a_verification_that_raises_is_tried_three_times_and_is_no_zero(
    local: LocalProvider, hook: str
) -> None:
    tries: list[int] = []

    async def booms(self: vf.Task) -> float:
        tries.append(1)
        raise RuntimeError("stage boom")

    kind = type("Iso", (Iso,), {hook: vf.reward(booms) if hook == "right" else booms})
    trace = await verified(local, iso(kind), f"echo 42 > {ANSWER}")
    assert len(tries) == 3
    said = "verifier staging" if hook == "stage_verifier" else "reward right of task iso"
    assert trace.reason == f"{said}: RuntimeError: stage boom"
    assert (trace.status, trace.ok, trace.to_record()["reward"]) == (vf.Status.SCORING_ERROR, False, None)
    assert trace.verifier["failed_attempts"] == [trace.reason] * 2
    assert [error["type"] for error in trace.errors] == ["task"]


async def test_a_verification_that_works_at_the_second_try_is_whole(
    local: LocalProvider, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    class Shaky(Iso):
        @vf.reward
        async def right(self, runtime: vf.Sandbox, trace: vf.Trace) -> float:  # type: ignore[override]
            trace.info["half"] = len(tries)
            tries.append(1)
            if len(tries) == 1:
                raise RuntimeError("for once")
            return 0.5

    trace = await verified(local, iso(Shaky), f"echo 42 > {ANSWER}")
    assert (trace.status, trace.reward, trace.ok, trace.reason) == (vf.Status.SCORED, 0.5, True, None)
    assert trace.verifier["failed_attempts"] == ["reward right of task iso: RuntimeError: for once"]
    assert "iso #0: separate verifier, attempt 1/3 failed (reward right of task iso: " in caplog.text


async def test_6_5_a_missing_artifact_is_the_agents_account(local: LocalProvider) -> None:
    looked: list[int] = []

    class Watched(Iso):
        async def stage_verifier(self, runtime: vf.Sandbox) -> None:
            looked.append(1)

    trace = await verified(local, iso(Watched), "rm -rf /app/answer.txt")
    assert trace.status is vf.Status.INDETERMINATE  # never retried, and a failure in the second reading of a report
    assert trace.reason == f"declared artifact {ANSWER!r} does not exist in the runtime"
    assert (trace.errors[0]["type"], trace.verifier["code"], looked) == ("task", "missing_artifact", [])
    assert "task finalize: " in trace.errors[0]["message"]
    assert trace.stop_condition == "agent_completed"


async def test_an_optional_artifact_may_be_missing(local: LocalProvider) -> None:
    task = iso(artifacts=(vf.Artifact(source=ANSWER, required=False),))
    trace = await verified(local, task)
    assert (trace.status, trace.reward) == (vf.Status.SCORED, 0.0)


async def test_6_5_an_image_nobody_has_fails_the_verification_and_scores_nothing(local: LocalProvider) -> None:
    class NoImage(vf.SandboxError):
        """As a run's images say it."""

    asked: list[str | None] = []

    async def image_for(task: vf.Task) -> str:
        asked.append(task.data.image)
        if task.data.image:
            raise NoImage(f"no such image: {task.data.image}")
        return "host"

    runtime = RuntimeChoice(image="nobody/has:this")
    env = IsolatedVerifierEnv(IsolatedVerifierConfig(verifier=VerifierConfig(runtime=runtime, retries=1)))
    seats = {"agent": vf.Seat(Commands(f"echo 42 > {ANSWER}"), local, image_for)}
    (trace,) = (await play(env, iso(), seats)).traces
    assert asked == [None, "nobody/has:this", "nobody/has:this"]
    assert (trace.status, trace.ok) == (vf.Status.INFRASTRUCTURE_ERROR, False)
    assert trace.reason == "no such image: nobody/has:this"


async def test_the_verifiers_own_environment_takes_the_place_of_the_tasks(local: LocalProvider) -> None:
    trace = await verified(
        local, iso(), f"echo 42 > {ANSWER}", verifier=VerifierConfig(env={"GIVEN": "by the verifier"})
    )
    assert "by the verifier" in trace.info["seen"]


@pytest.mark.parametrize(
    "trick",
    [
        f"ln -s /tests/check.sh {ANSWER}",
        f"mkdir {ANSWER}; ln -s ../../tests {ANSWER}/t",
        f"mkfifo {ANSWER}",
        f"head -c 50000000 /dev/zero > {ANSWER}",
        f"echo 42 > {ANSWER}; chmod 000 {ANSWER} /app",
        "rm -rf /app; ln -s / /app",
        "mv /app /gone",
    ],
)
async def test_tricks_with_artifacts_earn_neither_a_score_nor_another_try(local: LocalProvider, trick: str) -> None:
    trace = await verified(local, iso(), trick)
    if "chmod" in trick:
        assert (trace.status, trace.reward) == (vf.Status.SCORED, 1.0)
    else:
        assert trace.status in (vf.Status.SCORED, vf.Status.INDETERMINATE), trace.reason
        assert trace.reward in (0.0, None)


async def test_a_link_out_of_an_artifact_is_left_out_and_the_rest_is_graded(local: LocalProvider) -> None:
    task = iso(artifacts=(vf.Artifact(source="/app"),))
    trace = await verified(local, task, f"echo 42 > {ANSWER}; ln -s /tests /app/t")
    assert (trace.status, trace.reward) == (vf.Status.SCORED, 1.0)
    assert trace.verifier["left_out"] == ["artifact symlink 'app/t' has unsafe target '/tests'"]


async def test_relative_artifacts_lie_in_the_working_directory_of_the_task(local: LocalProvider) -> None:
    task = iso(artifacts=(vf.Artifact(source="answer.txt"),), workdir="/app")
    trace = await verified(local, task, f"echo 42 > {ANSWER}")
    assert (trace.status, trace.reward) == (vf.Status.SCORED, 1.0), trace.reason


async def test_what_a_task_collects_itself_is_not_collected_again(local: LocalProvider) -> None:
    class Own(Iso):
        async def finalize(self, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            from forkyard.grade import collect

            await runtime.write(ANSWER, b"42\n")
            trace.state.artifacts = await collect(runtime, self.data.artifacts)
            await runtime.write(ANSWER, b"41\n")

    trace = await verified(local, iso(Own))
    assert (trace.status, trace.reward) == (vf.Status.SCORED, 1.0)


async def test_what_grading_needs_is_kept(local: LocalProvider, tmp_path: Path) -> None:
    trace = await verified(
        local,
        iso(),
        f"echo 42 > {ANSWER}; mkdir -p /logs/agent /logs/verifier; echo a > /logs/agent/a; echo v > /logs/verifier/v",
        keep_logs_in=tmp_path,
    )
    kept = tmp_path / trace.id
    assert (kept / "agent" / "a").read_text() == "a\n"
    assert not (kept / "verifier" / "v").exists()  # it would pass for the verifier's
    manifest = json.loads((kept / "collected" / "manifest.json").read_text())
    assert manifest == [{"path": "/logs/artifacts", "archive": None}, {"path": ANSWER, "archive": "1.tar"}]
    assert b"42" in (kept / "collected" / "1.tar").read_bytes()
    assert "logs" not in trace.info


async def test_scoring_that_hangs_in_the_verifier_ends_at_its_deadline_and_is_not_tried_again(
    local: LocalProvider,
) -> None:
    class Hangs(Iso):
        @vf.reward
        async def right(self, runtime: vf.Sandbox) -> float:
            await runtime.run("sleep 1000")
            return 1.0

    trace = await verified(local, iso(Hangs), f"echo 42 > {ANSWER}", timeout=vf.TaskTimeout(scoring=0.5))
    assert (trace.status, trace.is_timeout) == (vf.Status.INDETERMINATE, True)
    assert "failed_attempts" not in trace.verifier


async def test_a_verifier_whose_setup_hangs_is_infrastructure(local: LocalProvider) -> None:
    class Slow(Iso):
        async def setup(self, runtime: vf.Sandbox, trace: vf.Trace) -> None:  # type: ignore[override]
            if trace.timing.agent_ms is not None:
                await runtime.run("sleep 1000")
            await runtime.run(["true"])

    trace = await verified(
        local,
        iso(Slow),
        f"mkdir -p /app; echo 42 > {ANSWER}",
        timeout=vf.TaskTimeout(setup=5.0),
        verifier=VerifierConfig(retries=0),
    )
    assert (trace.status, trace.errors[0]["type"]) == (vf.Status.INFRASTRUCTURE_ERROR, "sandbox")
    assert "was not ready within its 5 s" in str(trace.reason)


async def test_what_cannot_be_verified_apart_is_said_before_anything_starts(
    local: LocalProvider, tmp_path: Path
) -> None:
    env = IsolatedVerifierEnv(
        IsolatedVerifierConfig(verifier=VerifierConfig.model_validate({"runtime": {"workdir": "/other"}}))
    )
    relative = iso(artifacts=(vf.Artifact(source="src"), vf.Artifact(source="/app/src/")), workdir="/app")
    problems = env.problems(relative, {"agent": seat(local, Commands())})
    assert "cannot transfer relative artifacts ['src'] between" in problems[0]
    assert "declared more than once: /app/src" in problems[1]
    async with SubprocessProvider(tmp_path) as plain:
        (problem,) = IsolatedVerifierEnv().problems(iso(), {"agent": seat(plain, Commands())})
    assert "machines of their own" in problem
    with pytest.raises(ConfigError, match="no provider"):
        IsolatedVerifierEnv(
            IsolatedVerifierConfig(verifier=VerifierConfig.model_validate({"runtime": {"type": "lokal"}}))
        )


async def test_the_verifier_may_work_at_another_provider(local: LocalProvider, tmp_path: Path) -> None:
    choice = {"runtime": {"type": "forkyard.sandbox.local:LocalProvider", "home": str(tmp_path)}}
    env = IsolatedVerifierEnv(IsolatedVerifierConfig(verifier=VerifierConfig.model_validate(choice)))

    class Other(LocalProvider):
        name = "other"

    async with env.serving(), Other(tmp_path / "agents") as agents:
        (trace,) = (await play(env, iso(), {"agent": seat(agents, Commands(f"echo 42 > {ANSWER}"))})).traces
    assert (trace.status, trace.reward) == (vf.Status.SCORED, 1.0)


async def test_mode_separate_is_the_same_in_any_env(local: LocalProvider) -> None:
    episode = await play(
        vf.SingleAgentEnv(), iso(verifier="separate"), {"agent": seat(local, Commands(f"echo 42 > {ANSWER}"))}
    )
    assert (episode.traces[0].reward, episode.traces[0].verifier["mode"]) == (1.0, "separate")


async def test_an_agent_that_kills_its_sandbox_has_no_score_and_no_second_try(local: LocalProvider) -> None:
    async def kill(runtime: vf.Sandbox) -> None:
        os.kill(runtime._live.pid, signal.SIGKILL)  # type: ignore[attr-defined]

    env = IsolatedVerifierEnv()
    (trace,) = (await play(env, iso(), {"agent": seat(local, Commands(f"echo 42 > {ANSWER}", then=kill))})).traces
    assert trace.status is vf.Status.INDETERMINATE
    assert trace.errors[0]["type"] == "sandbox"


async def test_a_cancelled_verification_leaves_no_sandbox(local: LocalProvider) -> None:
    scoring = asyncio.Event()

    class Waits(Iso):
        @vf.reward
        async def right(self, runtime: vf.Sandbox) -> float:
            scoring.set()
            await runtime.run("sleep 1000")
            return 1.0

    playing = asyncio.create_task(verified(local, iso(Waits), f"echo 42 > {ANSWER}"))
    await scoring.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert await local.sandboxes() == []
