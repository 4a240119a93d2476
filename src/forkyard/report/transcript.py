"""One rollout as a person reads it: how it came out, who said what when, and what it left.

Whatever stands in a record was said by anybody. So all of it is escaped, and all that may have several lines is
indented under a line of ours: no message can look like the next one, or like the verifier.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError
from forkyard.report.outcome import outcome
from forkyard.report.rollouts import PHASES, Numbered
from forkyard.report.table import money, shown
from forkyard.trace import Branch, ModelCall, Trace
from forkyard.trace.store import ROLLOUTS_DIR, TRACES_FILE, Record
from forkyard.values import counted, number, one_line, printable, strict_json

LINES, CHARS, FILES = 30, 600, 20  # that are shown of what is longer, unless all is
_DEEPEST = 4
_ID = re.compile("[0-9a-f]{32}")


def rollout_text(file: Path, which: Numbered, *, full: bool = False) -> str:
    """The rollout of a line, safe to print; long parts are folded to their beginning and end unless `full`.

    Raises ConfigError when the line is not whole enough to be read.
    """
    place, record = which
    try:
        trace = Trace.from_record(record)
        view = _View(full)
        blocks = [
            _head(place, record, full),
            *view.conversation(record, trace),
            view.calls(trace),
            view.section("verifier", record.get("verifier")),
            view.section("errors", record.get("errors")),
            view.section("info", record.get("info")),
            _files(file, record, full),
        ]
    except (ValueError, RecursionError) as err:
        raise ConfigError(f"{file}, rollout {place}: {one_line(str(err))}; --json prints the line") from err
    return "\n\n".join(filter(None, ("\n".join(block) for block in blocks)))


def _head(place: int, record: Record, full: bool) -> Iterator[str]:
    found = outcome(record)
    said = [
        f"{found.task} #{record.get('sample')}, rollout {place} of run {found.run}: {record.get('id')}",
        f"agent {found.agent} of env {found.env}, harness {found.harness}, model {found.model or '-'}, "
        f"provider {record.get('provider')}",
        f"{found.status}, reward {shown(found.reward)}, stop {record.get('stop')}",
    ]
    for name in ("rewards", "metrics"):
        if isinstance(table := record.get(name), dict) and table:
            said.append(f"{name}: " + ", ".join(f"{key} {_score(value)}" for key, value in table.items()))
    usage = record.get("usage")
    spent = [*_tokens(usage if isinstance(usage, dict) else {}), *_cost(found.cost)]
    times = [f"{name.removesuffix('_ms')} {_seconds(record[name])}" for name in PHASES if number(record.get(name))]
    steps = counted(int(number(record.get("steps")) or 0), "step")
    said.append(", ".join(filter(None, [_moment(record.get("started")), steps, *spent, *times])))
    yield from (one_line(_cut(line, full)) for line in said)
    if record.get("reason"):
        yield "reason:"
        yield from _block(str(record["reason"]), 4, full)


def _score(value: Any) -> str:
    if not isinstance(value, dict):
        return shown(number(value))
    weight = number(value.get("weight"))
    return shown(number(value.get("score"))) + ("" if weight in (None, 1) else f" (weight {weight:g})")


class _View:
    """What is shown of messages, calls and tables: numbers the messages, and knows what was shown before."""

    def __init__(self, full: bool) -> None:
        self._full = full
        self._numbers: dict[int, int] = {}  # of the nodes that were shown
        self._count = 0
        self._tools: dict[str, str] = {}  # the name of the tool that a call was for

    def conversation(self, record: Record, trace: Trace) -> Iterator[list[str]]:
        """Every history, what it shares with one before it said once; then what was never put to a model."""
        branches = trace.branches
        calls = _replies(trace, branches)
        for branch in branches:
            old = sum(id(node) in self._numbers for node in branch.nodes)
            if len(branches) > 1:
                yield [self._title(branch, len(branches), old)]
            for node in branch.nodes[old:]:
                yield list(self._message(node.message, calls.get(id(node)), trace.started))
                self._numbers[id(node)] = self._count
        if rest := _unsent(record, trace):
            yield from [["in the conversation of the harness alone"]] if record.get("branches") else []
            yield from (list(self._message(message, None, trace.started)) for message in rest)

    def _title(self, branch: Branch, of: int, old: int) -> str:
        after = f", goes on after [{self._numbers[id(branch.nodes[old - 1])]}]" if old else ""
        return f"history {branch.index + 1} of {of}{after}"

    def _message(self, message: Mapping[str, Any], call: ModelCall | None, started: float) -> Iterator[str]:
        self._count += 1
        answers = message.get("tool_call_id")
        name = message.get("name") or self._tools.get(str(answers))
        who = [f"[{self._count}]", message.get("role"), name, answers and f"({answers})"]
        told = f": {', '.join(_call(call, started))}" if call else ""
        yield one_line(_cut(" ".join(str(each) for each in who if each) + told, self._full))
        if thought := _text(message.get("reasoning_content")):
            yield from self._entry("thinks", thought, 2)
        if content := _text(message.get("content")):
            yield from ["  says:"] if thought else []
            yield from _block(content, 4, self._full)
        asked = message.get("tool_calls")
        for each in asked if isinstance(asked, list) else ():
            yield from self._tool_call(each if isinstance(each, dict) else {"function": each})

    def _tool_call(self, call: Mapping[str, Any]) -> Iterator[str]:
        function = call.get("function")
        told = function if isinstance(function, dict) else {"arguments": function}
        self._tools[str(call.get("id"))] = str(told.get("name"))
        yield one_line(_cut(f"  calls {told.get('name')} ({call.get('id')})", self._full))
        arguments = told.get("arguments")
        try:
            read = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            read = arguments
        for name, value in read.items() if isinstance(read, dict) else [("arguments", read)]:
            yield from self._entry(str(name), value, 4)

    def calls(self, trace: Trace) -> Iterator[str]:
        """The calls of models that left no reply in the conversation: those that failed, and those of judges."""
        apart = [call for call in trace.calls if call.error is not None or call.purpose != "agent"]
        for call in apart:
            said = [f"{call.purpose}'s call of {call.model}", *_call(call, trace.started)]
            failure = [f"failed: {call.error}"] if call.error else []
            yield one_line(_cut(", ".join([*said, *failure]), self._full))

    def section(self, name: str, value: Any) -> Iterator[str]:
        """A named part of the line, without what is empty in it."""
        kept = {key: each for key, each in value.items() if not _empty(each)} if _is_table(value) else value
        if kept:
            yield from self._entry(name, kept, 0)

    def _entry(self, name: str, value: Any, indent: int, depth: int = 0) -> Iterator[str]:
        """A name and what it stands for: in its line, or under it when that is a table or has lines."""
        head = " " * indent + one_line(_cut(name, self._full))
        inner = dict(enumerate(value, 1)) if isinstance(value, list) and any(map(_is_table, value)) else value
        if _is_table(inner) and inner and depth < _DEEPEST:
            yield f"{head}:"
            for key, each in inner.items():
                yield from self._entry(str(key), each, indent + 2, depth + 1)
            return
        text = value if isinstance(value, str) else strict_json(value)
        if "\n" not in text.strip("\n"):
            yield f"{head}: {one_line(_cut(text.strip(chr(10)), self._full))}"
            return
        yield f"{head}:"
        yield from _block(text, indent + 2, self._full)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _empty(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})


def _unsent(record: Record, trace: Trace) -> list[Mapping[str, Any]]:
    """Messages of the conversation that are in no history, as the results of the last calls."""
    rows, nodes = record.get("branches"), trace.graph.nodes
    if not nodes:
        return []
    sent = set(range(len(nodes))) if rows is None else {row["at"] for row in rows if "at" in row}
    told = [message for place, message in enumerate(trace.messages) if place in sent]
    return [message for place, message in enumerate(trace.messages) if place not in sent and message not in told]


def _replies(trace: Trace, branches: Sequence[Branch]) -> dict[int, ModelCall]:
    """The call that each reply came from, by the reply's node."""
    nodes = trace.graph.nodes
    if nodes:
        return {id(nodes[call.node]): call for call in trace.calls if call.node in range(len(nodes))}  # type: ignore[index]
    said = [node for branch in branches for node in branch.nodes if node.message.get("role") == "assistant"]
    calls = [call for call in trace.calls if call.purpose == "agent" and call.error is None]
    return {id(node): call for node, call in zip(said, calls, strict=False)} if len(said) == len(calls) else {}


def _call(call: ModelCall, started: float) -> Iterator[str]:
    """When, how long, what it took, and how it ended, as far as it is known."""
    began, took = number(call.started), number(call.seconds)
    if began and number(started):
        yield f"after {began - started:.1f} s"
    if took:
        yield f"took {took:.1f} s"
    yield from _tokens({"input": call.usage.input, "output": call.usage.output})
    yield from _cost(number(call.cost_usd))
    if call.finish_reason not in (None, "stop", "tool_calls"):
        yield str(call.finish_reason)


def _tokens(usage: Mapping[str, Any]) -> list[str]:
    into, out = (number(usage.get(name)) or 0 for name in ("input", "output"))
    return [f"tokens {into:,.0f} in, {out:,.0f} out"] if into or out else []


def _cost(value: float | None) -> list[str]:
    return [money(value)] if value else []


def _seconds(milliseconds: Any) -> str:
    return f"{(number(milliseconds) or 0) / 1000:.3g} s"


def _moment(started: Any) -> str:
    seconds = number(started)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z" if seconds and 0 < seconds < 1e11 else ""


def _text(content: Any) -> str:
    """A message's content as text; of what is none, what it is and how long."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(map(_part_text, parts))


def _part_text(part: Any) -> str:
    if _is_table(part) and isinstance(part.get("text"), str):
        return str(part["text"])
    said = strict_json(part)
    return f"[{part.get('type')}: {_cut(said, full=False)}]" if _is_table(part) else said


def _block(text: str, indent: int, full: bool) -> Iterator[str]:
    """Lines, indented and safe to print; of many those at the beginning and at the end."""
    lines = printable(text.strip("\n")).split("\n")
    left_out = len(lines) - LINES
    if left_out > 1 and not full:
        half = LINES // 2
        note = f"[{left_out} lines left out; --full shows them]"
        lines = [*lines[:half], note, *lines[-half:]]
    yield from (" " * indent + _cut(line, full) if line else "" for line in lines)


def _cut(text: str, full: bool) -> str:
    left_out = len(text) - CHARS
    if full or left_out <= CHARS // 10:
        return text
    return f"{text[: CHARS // 2]} [{left_out} characters left out; --full shows them] {text[-CHARS // 2 :]}"


def _files(file: Path, record: Record, full: bool) -> Iterator[str]:
    """What is kept of the sandbox, beside the run's lines."""
    own = record.get("id")
    directory = file.parent / ROLLOUTS_DIR / str(own)
    if file.name != TRACES_FILE or not (isinstance(own, str) and _ID.fullmatch(own) and directory.is_dir()):
        return
    found = sorted(
        (Path(where, name) for where, _, names in os.walk(directory) for name in names), key=lambda path: path.parts
    )
    yield one_line(f"{counted(len(found), 'file')} kept in {directory}")
    for path in islice(found, None if full else FILES):
        yield f"  {one_line(str(path.relative_to(directory)))} ({path.lstat().st_size:,} bytes)"
    if len(found) > FILES and not full:
        yield f"  and {len(found) - FILES} more"
