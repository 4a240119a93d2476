"""Sampling: further keys go into the request, misspelt ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from forkyard.cli.dotted import fill, read_arguments
from forkyard.cli.eval_config import EvalConfig
from forkyard.env.config import SamplingConfig
from forkyard.errors import ConfigError
from forkyard.model import Sampling
from forkyard.task import JudgeConfig
from forkyard.task.sampling import flat, meant


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("temprature", "temperature"),
        ("temp", "temperature"),
        ("max_token", "max_tokens"),
        ("topp", "top_p"),
        ("return_token_id", "return_token_ids"),
        ("logprob", "logprobs"),
        ("seeds", "seed"),
    ],
)
def test_a_misspelt_name_is_told_from_the_known_ones(name: str, near: str) -> None:
    assert meant(name) == near
    with pytest.raises(ValidationError, match=f"did you mean {near}"):
        SamplingConfig.model_validate({name: 1})
    with pytest.raises(ValidationError, match=f"did you mean {near}"):
        JudgeConfig(sampling={name: 1})


@pytest.mark.parametrize(
    "name",
    ["top_k", "top_h", "min_p", "min_tokens", "return_token_ids", "logprobs", "n", "mirostat_tau", "dry_base", "x"],
)
def test_what_is_no_misspelling_goes_into_the_request(name: str) -> None:
    config = SamplingConfig.model_validate({name: 1, "temperature": 0.5})
    assert Sampling.of(flat(config.model_dump(exclude_none=True))) == Sampling(temperature=0.5, extra={name: 1})


def test_a_table_of_its_own_sends_any_name() -> None:
    config = SamplingConfig.model_validate({"extra_body": {"temprature": 1, "seed": 3}})
    assert Sampling.of(flat(config.model_dump(exclude_none=True))) == Sampling(seed=3, extra={"temprature": 1})
    judge = JudgeConfig(sampling={"extra_body": {"max_token": 1}})
    assert flat(judge.sampling) == {"max_token": 1}


def test_flags_and_files_are_told_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "ev.toml").write_text("[sampling]\ntemprature = 0.3\ntop_k = 4\n")
    words = ["--sampling.max_token", "5", "@", str(tmp_path / "ev.toml")]
    with pytest.raises(ConfigError) as told:
        fill(EvalConfig, read_arguments(words).settings)
    assert told.value.problems == (
        f"{tmp_path}/ev.toml, line 2: sampling.temprature: there is no such option; did you mean "
        "--sampling.temperature?",
        "--sampling.max_token: there is no such option; did you mean --sampling.max-tokens?",
    )
    good = ["--sampling.return-token-ids", "true", "--sampling.extra-body", '{"sed": 1}']
    said = fill(EvalConfig, read_arguments(good).settings).sampling
    assert (said.model_extra, said.extra_body) == ({"return_token_ids": True}, {"sed": 1})
