"""The guide that the server's clients must be able to follow: its scripts, and a model that solves its tasks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCRIPTS = (Path(__file__).parents[2] / "../shared/acceptance/fork_guide").resolve()
MODEL_HOST = "ai-gateway.vercel.sh"
TABLE = """\
task          rollouts  solved  pass@1  pass@2  mean_reward
calc          2         0       0       0       0.92
duration      2         2       1       1       1
sales-report  2         2       1       1       1
overall       6         4       0.67    0.67    0.97
"""
"""What the guide prints at its end, of a model that knows all of Python's numbers but for `1_000`."""

_CALC = r"""
import re

TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)|(\*\*|//|[-+*/%()]))")
LEVELS = [("+", "-"), ("*", "/", "//", "%")]
DO = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
      "//": lambda a, b: a // b, "%": lambda a, b: a % b}


def evaluate(expr):
    tokens, at = [], 0
    while expr[at:].strip():
        match = TOKEN.match(expr, at)
        if match is None:
            raise SyntaxError(expr)
        tokens.append(match.group(1) or match.group(2))
        at = match.end()
    value = binary(tokens, 0)
    if tokens:
        raise SyntaxError(expr)
    return value


def binary(tokens, level):
    if level == len(LEVELS):
        return unary(tokens)
    value = binary(tokens, level + 1)
    while tokens and tokens[0] in LEVELS[level]:
        operator = tokens.pop(0)
        value = DO[operator](value, binary(tokens, level + 1))
    return value


def unary(tokens):
    if tokens and tokens[0] in "+-":
        return -unary(tokens) if tokens.pop(0) == "-" else unary(tokens)
    value = atom(tokens)
    if tokens and tokens[0] == "**":
        tokens.pop(0)
        return value ** unary(tokens)
    return value


def atom(tokens):
    token = tokens.pop(0)
    if token == "(":
        value = binary(tokens, 0)
        if tokens.pop(0) != ")":
            raise SyntaxError("parenthesis")
        return value
    return int(token) if token.isdigit() else float(token)
"""
_DURATION = """
import re

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_duration(text):
    match = re.fullmatch("".join(rf"(?:([0-9]+){unit})?" for unit in UNITS), text)
    if not text or match is None:
        raise ValueError(text)
    return sum(int(amount or 0) * seconds for amount, seconds in zip(match.groups(), UNITS.values()))
"""
_REPORT = """
import csv
from collections import defaultdict
from decimal import Decimal

totals = defaultdict(Decimal)
with open("sales.csv", newline="") as file:
    for row in csv.DictReader(file):
        if row["quantity"].strip():
            price = row["unit_price"].replace("$", "").replace(",", "")
            totals[row["region"].strip().lower()] += int(row["quantity"]) * Decimal(price)
for region, total in sorted(totals.items(), key=lambda item: -item[1]):
    print(f"{region},{total:.2f}")
"""


def _solution(file: str, program: str, trial: str) -> tuple[str, str]:
    """What the model does with a task: it reads it, then writes the file and tries it."""
    return "cat TASK.md", f"cat > {file} <<'END'{program}END\n{trial}"


_SOLUTIONS = {
    "calc": _solution("calc.py", _CALC, "python3 -c 'import calc; print(calc.evaluate(\"2 ** 3 ** 2\"))'"),
    "duration": _solution("duration.py", _DURATION, "python3 -c 'from duration import *; parse_duration(\"1h\")'"),
    "sales-report": _solution("report.py", _REPORT, "python3 report.py"),
}  # fmt: skip


class Model:
    """The host of the guide's models, as its two clients speak to it: `openai`, and `ai` 7 from npm."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        """Of each request the path and the authorization."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            _, path, _ = head.split(" ")
            self.asked.append((path, headers.get("authorization", "")))
            answer = json.dumps(_DIALECTS[path](body, len(self.asked))).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(answer), answer))
            await writer.drain()


def _command(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """What the model does next, None once it is done: what it was told decides, so that rollouts may mix."""
    place = re.search(r"/work/([a-z-]+)", json.dumps(messages))
    assert place is not None
    answers = sum(message["role"] == "tool" for message in messages)
    commands = _SOLUTIONS[place[1]]
    return commands[answers] if answers < len(commands) else None


def _chat(body: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    command = _command(body["messages"])
    message: dict[str, Any] = {"role": "assistant", "content": "The task is done."}
    if command is not None:
        function = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps({"command": command})}
        calls = [{"id": f"call_{number}", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "finish_reason": "tool_calls" if command else "stop", "message": message}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    whole = {"id": f"chat_{number}", "object": "chat.completion", "created": 1, "model": body["model"]}
    return {**whole, "choices": [choice], "usage": usage}


def _language_model(body: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    command = _command(body["prompt"])
    content: dict[str, Any] = {"type": "text", "text": "The task is done."}
    if command is not None:
        said = json.dumps({"command": command})
        content = {"type": "tool-call", "toolCallId": f"call_{number}", "toolName": "bash", "input": said}
    usage = {
        "inputTokens": {"total": 10, "noCache": 10, "cacheRead": 0, "cacheWrite": 0},
        "outputTokens": {"total": 5, "text": 5, "reasoning": 0},
    }
    reason = {"unified": "tool-calls" if command else "stop", "raw": None}
    return {"content": [content], "finishReason": reason, "usage": usage, "warnings": []}


_DIALECTS = {"/v1/chat/completions": _chat, "/v4/ai/language-model": _language_model}
