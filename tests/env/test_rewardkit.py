"""Tasks graded by the real Reward Kit, whose judges reach a model from a sandbox without a network."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from forkyard.sandbox.local import LocalProvider
from tests.support.rewardkit import make_rewardkit_image
from tests.support.upstream import Turn, Upstream
from tests.support.web import served

pytestmark = pytest.mark.slow

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-a-key-of-the-host", "OPENAI_API_KEY": "sk-another-key-of-the-host"}
FILES = {
    "task.toml": """\
artifacts = ["/app/answer.txt"]
[task]
name = "cases/rewardkit"
[environment]
docker_image = "rewardkit:test"
network_mode = "no-network"
[verifier]
environment_mode = "shared"
[verifier.env]
ANTHROPIC_API_KEY = "${ANTHROPIC_API_KEY}"
OPENAI_API_KEY = "${OPENAI_API_KEY}"
LITELLM_LOCAL_MODEL_COST_MAP = "True"
""",
    "instruction.md": "Write a greeting into /app/answer.txt.\n",
    "environment/nothing": "",
    "solution/solve.sh": "#!/bin/bash\necho 'Good morning!' > /app/answer.txt\n",
    "tests/test.sh": """\
#!/bin/bash
chmod +x /tests/claude
PATH=/tests:$PATH rewardkit /tests || exit
cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | sort -u
""",
    "tests/files.py": 'import rewardkit\n\nrewardkit.file_exists("answer.txt")\n',
    "tests/tone.toml": """\
[judge]
judge = "anthropic/claude-haiku-4-5"
files = ["/app/answer.txt"]
[[criterion]]
description = "The greeting is friendly."
type = "likert"
points = 5
""",
    # In the place of the CLI, which is no part of Reward Kit: what it is started with is what it asks the model.
    "tests/claude": """\
#!/usr/bin/env python3
import json, os, sys, urllib.request
said = dict(zip(sys.argv[1:], sys.argv[2:]))
asked = {"model": said["--model"], "max_tokens": 99, "messages": [{"role": "user", "content": said["-p"]}]}
head = {"Content-Type": "application/json", "X-Api-Key": os.environ["ANTHROPIC_API_KEY"]}
address = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
reply = json.load(urllib.request.urlopen(urllib.request.Request(address, json.dumps(asked).encode(), head)))
print(json.dumps({"structured_output": json.loads(reply["content"][0]["text"])}))
""",
}
VERDICT = Turn(text=json.dumps({"score": 4, "reasoning": "It wishes somebody well."}))


@pytest.fixture(scope="module")
def kit_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an image in which Reward Kit is installed."""
    home = tmp_path_factory.mktemp("home")

    async def make() -> None:
        async with LocalProvider(home) as provider:
            await make_rewardkit_image(provider, "rewardkit:test")

    asyncio.run(make())
    return home


async def graded(root: Path, home: Path, upstream: Upstream, *options: str) -> tuple[dict[str, Any], str]:
    """The record of one rollout of the task, played by its solution, and everything that the run left."""
    for path, text in FILES.items():
        (root / "task" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "task" / path).write_text(text)
    async with served(upstream) as port:
        addresses = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}", "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "forkyard.cli", "run", str(root / "task"), "-a", "oracle"),
            *("--out", str(root / "runs"), "--run", "kit", *options),
            env={**os.environ, **KEYS, **addresses, "FORKYARD_HOME": str(home)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output = (await process.communicate())[0].decode()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
    assert process.returncode == 0, output
    left = [path.read_text() for path in (root / "runs").rglob("*") if path.is_file()]
    record = json.loads((root / "runs" / "kit" / "traces.jsonl").read_text())
    assert (record["status"], record["reward"]) == ("SCORED", 0.875), record  # of one check 1, of the judge 4 of 1..5
    return record, "\n".join([output, *left])


def assert_nobody_saw_a_key(record: dict[str, Any], left: str, heard: dict[str, str], family: str) -> None:
    """The provider was given the host's key by the gateway; the verifier had one of its own address, which is gone."""
    assert KEYS[family] in (heard.get("x-api-key"), heard.get("authorization", "").removeprefix("Bearer "))
    assert f"{family}=fy-" in record["verifier"]["output_tail"]
    assert not any(key in left for key in KEYS.values())


@pytest.mark.parametrize(
    ("options", "path", "model", "family", "usd"),
    [
        ((), "/v1/messages", "claude-haiku-4-5", "ANTHROPIC_API_KEY", 10 * 1.0 + 5 * 5.0),
        (
            ("--ve", "REWARDKIT_JUDGE=openai/gpt-5-mini", "--verifier", "forked"),
            *("/v1/chat/completions", "gpt-5-mini", "OPENAI_API_KEY", 10 * 0.25 + 5 * 2.0),
        ),
        (
            ("--ve", "REWARDKIT_JUDGE=claude", "--ve", "REWARDKIT_MODEL=claude-opus-4-1", "--verifier", "separate"),
            *("/v1/messages", "claude-opus-4-1", "ANTHROPIC_API_KEY", 10 * 15.0 + 5 * 75.0),
        ),
    ],
    ids=["the task's own judge", "a judge of the run", "a judge and a model of the run"],
)
async def test_reward_kit_asks_its_judge_through_the_gateway(
    kit_home: Path, tmp_path: Path, options: tuple[str, ...], path: str, model: str, family: str, usd: float
) -> None:
    upstream = Upstream(VERDICT)
    record, left = await graded(tmp_path, kit_home, upstream, *options)
    ((at, asked, headers),) = upstream.heard
    assert (at.partition("?")[0], asked["model"]) == (path, model)
    assert "The greeting is friendly." in json.dumps(asked)
    assert [call["purpose"] for call in record["calls"]] == ["judge"]
    assert record["verifier"]["judge_cost_usd"] == record["cost_usd"] == pytest.approx(usd / 1e6)
    assert record["usage"]["input"] == record["usage"]["output"] == 0
    assert_nobody_saw_a_key(record, left, headers, family)
