"""A simulated user and an assistant: who says what to whom, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import forkyard as vf
from forkyard.env.user_sim import GREETING, UserSimConfig, UserSimEnv
from forkyard.harness import NopHarness, OracleHarness
from forkyard.sandbox.local import LocalProvider
from tests.env.parts import Says, answering, play, roles, seat
from tests.model.provider import error

ROWS = json.loads((Path(__file__).parents[1] / "cases" / "tables" / "usersim_scripts.json").read_text())
DONE = "###DONE###"


class Support(vf.Task):
    """The assistant is to say that the order is cancelled."""

    @vf.reward
    async def cancelled(self, trace: vf.Trace) -> float:
        return float("ancelled" in trace.last_reply)


TASK = Support(vf.TaskData(name="order", prompt="You want order 12 cancelled.", system_prompt="Be kind."))


def env_of(**fields: Any) -> UserSimEnv:
    return UserSimEnv(UserSimConfig(**fields))


async def talk(
    local: LocalProvider, user: list[str], assistant: list[str], turns: int | None = None, **fields: Any
) -> tuple[vf.Trace, vf.Trace]:
    """The traces of the assistant and the user."""
    seats = {
        "assistant": seat(local, Says(*assistant)),
        "user": seat(local, Says(*user), limits=vf.AgentLimits(max_turns=turns)),
    }
    env = env_of(**fields)
    assert env.problems(TASK, seats) == []
    episode = await play(env, TASK, seats)
    assert episode.ok, episode.errors
    return episode.by_agent["assistant"][0], episode.by_agent["user"][0]


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
async def test_the_scripts_of_the_table(local: LocalProvider, row: dict[str, Any]) -> None:
    assistant, _ = await talk(local, row["user"], row["assistant"], row["max_turns"], done_marker=row["stop_mark"])
    expect = row["expect"]
    assert assistant.metrics["user_turns"] == expect.get("user_turns", assistant.metrics["user_turns"])
    assert assistant.info["ended_by"] == expect.get("ended_by", "user")
    assert assistant.steps == expect.get("assistant_turns", assistant.steps)
    assert assistant.ok


async def test_two_who_never_end_talk_no_longer_than_the_user_may_by_default(local: LocalProvider) -> None:
    assistant, user = await talk(local, ["Hello."] * 20, ["Yes?"] * 20)
    assert (assistant.metrics["user_turns"], assistant.info["ended_by"], user.steps) == (8.0, "max_turns", 8)
    assert assistant.ok


def test_what_is_left_open_of_the_user_stays_as_it_is_here() -> None:
    config = UserSimConfig.model_validate({"user": {"model": "other"}})
    assert (config.user.model, config.user.max_turns, config.user.harness) == (
        "other",
        8,
        vf.UserSimConfig().user.harness,
    )
    chosen = UserSimConfig.model_validate(
        {"user": {"harness": {"id": "bash", "output_chars": 10}, "max_turns": 3}}
    ).user
    assert (chosen.max_turns, chosen.harness and chosen.harness.model_dump()) == (3, {"id": "bash", "output_chars": 10})
    assert UserSimConfig.model_validate({"user": {"max_turns": None}}).user.max_turns == 8
    assert UserSimConfig.model_validate(config.model_dump(exclude_defaults=True)) == config


async def test_who_hears_what(local: LocalProvider) -> None:
    assistant, user = await talk(local, ["A", "B", DONE], ["one", "two"])
    assert [(m["role"], m["content"]) for m in assistant.messages] == [
        *(("system", "Be kind."), ("user", "A"), ("assistant", "one"), ("user", "B"), ("assistant", "two")),
    ]
    assert roles(user.messages) == ["system", "user", "assistant", "user", "assistant", "user", "assistant"]
    assert "You want order 12 cancelled." in user.messages[0]["content"]
    assert [m["content"] for m in user.messages if m["role"] == "user"] == [GREETING, "one", "two"]
    assert "order 12" not in str(assistant.messages)
    assert assistant.metrics["user_turns"] == 3.0
    assert (assistant.stop_condition, user.stop_condition) == ("user_closed", "user_closed")


async def test_the_assistant_is_graded_and_the_user_is_not_learned_from(local: LocalProvider) -> None:
    assistant, user = await talk(local, ["Cancel it.", DONE], ["It is cancelled."])
    assert (assistant.status, assistant.reward) == (vf.Status.SCORED, 1.0)
    assert (user.status, user.reward, user.trainable) == (vf.Status.SCORED, None, False)
    assert assistant.trainable


async def test_the_assistant_has_the_last_word_unless_told_otherwise(local: LocalProvider) -> None:
    said = ["Cancel it.", f"Yes {DONE}"]
    assistant, _ = await talk(local, said, ["Shall I?", "Cancelled."])
    assert [m["content"] for m in assistant.messages][-2:] == ["Yes", "Cancelled."]
    assistant, _ = await talk(local, said, ["Shall I?", "Cancelled."], last_turn=False)
    assert (assistant.steps, assistant.reward) == (1, 0.0)


async def test_an_assistant_that_runs_into_its_limit_ends_it(local: LocalProvider) -> None:
    seats = {
        "assistant": seat(local, Says("1", "2", "3"), limits=vf.AgentLimits(max_turns=2)),
        "user": seat(local, Says(*"ABCDEF")),
    }
    episode = await play(env_of(), TASK, seats)
    (assistant,) = episode.by_agent["assistant"]
    assert (assistant.stop_condition, assistant.info["ended_by"], assistant.ok) == ("max_turns", "max_turns", True)
    assert assistant.status is vf.Status.SCORED


async def test_when_the_users_side_fails_nothing_is_known_of_the_assistant(local: LocalProvider) -> None:
    class Breaks(Says):
        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            if trace.steps == 1:
                raise RuntimeError("no more")
            await super().launch(ctx, task, trace, runtime)

    seats = {"assistant": seat(local, Says("It is cancelled.")), "user": seat(local, Breaks("A", "B"))}
    episode = await play(env_of(), TASK, seats)
    (assistant,) = episode.by_agent["assistant"]
    assert assistant.status is vf.Status.INDETERMINATE
    assert "the user's side failed" in str(assistant.reason)
    assert assistant.to_record()["reward"] is None


async def test_a_user_whose_provider_is_gone_from_the_start_is_infrastructure(local: LocalProvider) -> None:
    from forkyard.harness import NullHarness

    async with answering(error(401, "no")) as (gateway, _):
        seats = {"assistant": seat(local, Says("Hi")), "user": seat(local, NullHarness(), gateway=gateway)}
        episode = await play(env_of(), TASK, seats)
    assert {trace.status for trace in episode.traces} == {vf.Status.INFRASTRUCTURE_ERROR}


def test_what_cannot_be_played_is_said_before_anything_starts(local: LocalProvider) -> None:
    seats = {"assistant": seat(local, OracleHarness()), "user": seat(local, NopHarness())}
    problems = env_of().problems(Support(vf.TaskData(name="x")), seats)
    assert [text for text in problems if "talked with" in text and "'oracle'" in text]
    assert [text for text in problems if "talked with" in text and "'nop'" in text]
    assert [text for text in problems if "no prompt" in text]
    with pytest.raises(ValueError, match="the persona has no {done}"):
        UserSimConfig(persona="You want {scenario}.")
