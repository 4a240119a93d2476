"""The tables of upstreams and prices, as files and as they come along."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.gateway import default_upstreams, load_prices, load_upstreams
from forkyard.gateway.dialects import CHAT, MESSAGES
from forkyard.trace import Usage

TABLE = """
[[upstream]]
model = "claude-*"
base_url = "https://api.anthropic.com"
api_key_env = "CLAUDE"
dialects = ["messages"]

[[upstream]]
model = "mine"
base_url = "http://127.0.0.1:8000/v1"
alias = "org/mine-7b"
dialects = ["chat", "messages"]
auth = "bearer"
stream_usage = false
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.toml"
    path.write_text(text)
    return path


def test_the_first_entry_that_fits_is_asked(tmp_path: Path) -> None:
    table = load_upstreams(written(tmp_path, TABLE), {"CLAUDE": "key-of-claude"})
    claude, mine = table.find("claude-x", "messages"), table.find("mine", "chat")
    assert (claude.url(MESSAGES, "/messages"), claude.key) == ("https://api.anthropic.com/v1/messages", "key-of-claude")
    assert (mine.url(CHAT, "/chat/completions"), mine.alias) == (
        "http://127.0.0.1:8000/v1/chat/completions",
        "org/mine-7b",
    )
    assert mine.url(MESSAGES, "/messages") == "http://127.0.0.1:8000/v1/messages"
    assert claude.key_headers(MESSAGES, []) == {"x-api-key": "key-of-claude"}
    assert claude.key_headers(MESSAGES, [(b"authorization", b"x")]) == {"authorization": "Bearer key-of-claude"}
    assert "key-of-claude" not in repr(table)


def test_a_dialect_that_is_not_spoken_is_refused_in_words(tmp_path: Path) -> None:
    table = load_upstreams(written(tmp_path, TABLE), {"CLAUDE": "key-of-claude"})
    with pytest.raises(LookupError, match="'claude-x' was asked for as 'chat'.*speaks messages.*never translated"):
        table.find("claude-x", "chat")
    assert "known are: claude-*, mine" in table.problems("gpt", "chat")[0]
    assert table.problems("mine", "chat") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[upstream]]\nbase_url = 'x'", "is not an http or https URL: check base_url of .*upstream 0"),
        ("[[upstream]]\nbase_url = 'https://x/v1'\napi_key_env = 'UNSET'", "UNSET is not set"),
        ("[[upstream]]\nbase_url = 'https://x/v1'\nkey = 'k'", r"upstream\.0\.key: Extra inputs"),
        ("[[upstream]]\nbase_url = 'https://x/v1'\ndialects = ['grpc']", r"upstream\.0\.dialects\.0"),
        ("[[upstream]\n", "not TOML"),
        ("", "upstream: Field required"),
    ],
)
def test_a_bad_table_names_the_place_and_the_mend(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=f"{path}.*{said}|{said}"):
        load_upstreams(path, {})


def test_the_default_table_is_what_the_environment_names() -> None:
    both = {"OPENAI_BASE_URL": "https://o.example/v1", "OPENAI_API_KEY": "o" * 9, "ANTHROPIC_API_KEY": "a" * 9}
    table = default_upstreams(environ=both)
    assert table.find("m", "responses").key == "o" * 9
    assert table.find("m", "messages").place.url == "https://api.anthropic.com"
    assert default_upstreams(environ={}).entries == ()
    said = default_upstreams(environ={}).problems("m", "messages")
    assert "ANTHROPIC_API_KEY" in said[0]
    own = default_upstreams("http://127.0.0.1:9/v1", "MINE", both | {"MINE": "m" * 9})
    assert {own.find("m", dialect).key for dialect in ("chat", "responses", "messages")} == {"m" * 9}
    assert own.problems("m", "chat") == []
    assert "set MINE" in default_upstreams("https://far.example/v1", "MINE", {}).problems("m", "chat")[0]


def test_a_users_prices_come_before_ours(tmp_path: Path) -> None:
    path = written(tmp_path, '[[price]]\nmodel = ["gpt-5", "mine-*"]\ninput = 7.0\noutput = 8.0\n')
    prices = load_prices([path])
    ours = load_prices().of("gpt-5")
    assert ours is not None and prices.of("gpt-5") != ours
    assert prices.of("mine-1") == prices.of("gpt-5")
    assert prices.of("gpt-5-mini") == load_prices().of("gpt-5-mini") and prices.of("nobody") is None


def test_cached_and_written_tokens_have_their_own_prices() -> None:
    price = load_prices().of("claude-haiku-4-5")
    assert price is not None
    usage = Usage(input=1_000_000, output=100_000, cached=400_000)
    assert price.cost(usage, written=200_000) == pytest.approx(0.4 * 1.0 + 0.4 * 0.1 + 0.2 * 1.25 + 0.1 * 5.0)
    assert price.at_most(1_000_000, 100_000) >= price.cost(usage, written=200_000)


@pytest.mark.parametrize(
    "text", ["[[price]]\nmodel = 'm'\ninput = -1\noutput = 1", "[[price]]\nmodel = 'm'\ninput = 1"]
)
def test_bad_prices_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"table\.toml: price\.0\.(input|output)"):
        load_prices([written(tmp_path, text)])
