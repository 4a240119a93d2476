"""What docs/gateway.md shows is what works."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from forkyard.cli.app import app
from forkyard.gateway import load_prices, load_upstreams
from tests.gateway.upstream import KEY, chat_body, providing, whole

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_tables_are_read(tmp_path: Path) -> None:
    upstreams, prices = (tmp_path / name for name in ("upstreams.toml", "prices.toml"))
    for path, text in zip((upstreams, prices), blocks("toml"), strict=True):
        path.write_text(text)
    table = load_upstreams(upstreams, {"ANTHROPIC_API_KEY": KEY})
    assert table.find("coder", "messages").alias == "org/coder-7b"
    assert load_prices([prices]).of("org/coder-7b") is not None


async def test_the_program_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = blocks("python")
    names: dict[str, Any] = {}
    exec(compile(program, "gateway.md", "exec"), names)
    async with providing(whole(chat_body("hi"))) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        await names["main"]()
    assert capsys.readouterr().out == "hi 100\n"


def test_the_command_has_the_options_shown() -> None:
    command = typer.main.get_command(app)
    gateway: Any = command.get_command(typer.Context(command), "gateway")  # type: ignore[attr-defined]
    known = {flag for option in gateway.params for flag in option.opts}
    for line in re.findall(r"^\$ forkyard gateway (.*)$", PAGE, re.MULTILINE):
        assert set(re.findall(r"--[\w-]+", line)) <= known


async def test_the_requests_shown_open_and_end_a_rollout() -> None:
    from tests.gateway.test_alone import alone

    shown = re.findall(r"^\$ curl .*$", PAGE, re.MULTILINE)
    async with providing(whole(chat_body())) as provider, alone(provider) as at:
        script = "\n".join(line.removeprefix("$ ").replace("http://127.0.0.1:9170", at.base_url) for line in shown)
        opening, ending = script.split("\n")
        pipe = asyncio.subprocess.PIPE
        whole_script = f"O=$({opening}); ID=$(echo $O | cut -d'\"' -f4); echo $O; {ending}"
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", whole_script, env={"TOKEN": at.token, "PATH": "/usr/bin:/bin"}, stdout=pipe
        )
        said, _ = await process.communicate()
    opened, ended = said.decode().split("}")[:2]
    assert '"token": "fy-' in opened and '"calls": 0, "tokens": 0' in ended
