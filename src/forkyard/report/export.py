"""From runs to samples that trainers read: of each history of a rollout one, and a count of what cannot be one.

A rollout may be several histories (see `forkyard.trace.graph`), which share their beginnings. Each becomes a sample if
a model said something in it that is in no sample before: such replies, and no others, are to be learned from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from forkyard.report.files import records_of
from forkyard.report.outcome import Outcome, outcome
from forkyard.report.planned import planned_runs
from forkyard.report.rollouts import Choice
from forkyard.trace import Node, Trace, text_of
from forkyard.trace.store import Record, latest, lines_of
from forkyard.values import counted

_PLACE = "\0place"  # a key of no line
Sample = dict[str, Any]


class Unfit(ValueError):
    """A history, or a whole rollout, cannot be a sample; says why, in words that are the same for all like it."""


class History(NamedTuple):
    """A history up to its last reply; `fresh` says of each node whether it is a reply that no sample before holds."""

    branch: int
    nodes: Sequence[Node]
    fresh: Sequence[bool]
    tools: Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Tally:
    """What became of the lines: left out as the user chose, or unfit for the format, each with why and how often."""

    rollouts: int = 0
    samples: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    unfit: Counter[str] = field(default_factory=Counter)
    lacking: Counter[str] = field(default_factory=Counter)

    @property
    def notes(self) -> Iterator[str]:
        """What a user has to know, a sentence each."""
        yield f"{counted(self.samples, 'sample')} of {counted(self.rollouts, 'rollout')}"
        for name, counts in (("left out", self.left_out), ("not exported", self.unfit), ("exported", self.lacking)):
            if counts:
                yield f"{name}: " + ", ".join(f"{count} {why}" for why, count in counts.most_common())


def samples(files: Sequence[Path], fmt: str, choice: Choice, tally: Tally) -> Iterator[bytes]:
    """The samples of the lines that count and are chosen, each as a line, one rollout in memory at a time.

    Raises ConfigError for a line that is no record, before the first sample.
    """
    make = FORMATS[fmt]
    for record in _counting(files, tally):
        if why := choice.leaves_out(record):
            tally.left_out[why] += 1
            continue
        made = tally.samples
        for sample in _of(record, make, tally):
            tally.samples += 1
            yield sample
        tally.rollouts += tally.samples > made


def _of(record: Record, make: Make, tally: Tally) -> Iterator[bytes]:
    try:
        trace = Trace.from_record(record)
    except (ValueError, RecursionError):
        tally.unfit["too damaged to be read"] += 1
        return
    if not trace.trainable:
        tally.left_out["of judges and simulated users"] += 1
        return
    about, taught, replied = _about(record, outcome(record)), set[int](), False
    for history in _histories(trace, taught):
        replied = True
        try:
            line = lines_of({**make(history, tally), **about, "branch": history.branch})
        except Unfit as err:
            tally.unfit[str(err)] += 1
            continue
        except RecursionError:
            tally.unfit["nested too deeply"] += 1
            continue
        if about["reward"] is None:
            tally.lacking["without a reward"] += 1
        taught.update(map(id, history.nodes))
        yield line
    if not replied:
        tally.unfit["without a reply of a model"] += 1


def _counting(files: Sequence[Path], tally: Tally) -> Iterator[Record]:
    """The lines that no later one replaces, which only the last line tells: so they are read twice."""
    planned = planned_runs(files)

    def placed() -> Iterator[Record]:
        for file in files:
            for place, record in enumerate(records_of(file, planned.get(file))):
                record[_PLACE] = (file, place)
                yield record

    places, replaced = latest(placed(), lambda record: record[_PLACE])
    if replaced:
        tally.left_out["replaced by a later line"] += replaced
    kept = frozenset(places)
    for file in files:
        for place, record in enumerate(records_of(file, planned.get(file))):
            if (file, place) in kept:
                yield record


def _about(record: Record, found: Outcome) -> Sample:
    """What a trainer groups, weighs and filters samples by; plain values, so that all lines have the same columns."""
    names = {"run": found.run, "task": found.task, "agent": found.agent, "model": found.model, "status": found.status}
    told = {name: record.get(name) for name in ("sample", "episode", "id", "stop")}
    return {"reward": found.reward, **names, **told}


def _histories(trace: Trace, taught: Container[int]) -> Iterator[History]:
    """Every history that adds a reply to the nodes that were `taught` by then, told by their identity."""
    branches = trace.branches
    if not trace.graph.nodes:  # of a conversation that no graph was kept of, the last replies are those of the steps
        said = [node for branch in branches for node in branch.nodes if node.message.get("role") == "assistant"]
        for node in said[len(said) - trace.steps :] if 0 < trace.steps <= len(said) else ():
            node.sampled = True
    for branch in branches:
        ends = [place for place, node in enumerate(branch.nodes, 1) if node.sampled]
        nodes = branch.nodes[: ends[-1]] if ends else []
        fresh = [node.sampled and id(node) not in taught for node in nodes]
        if any(fresh):
            yield History(branch.index, nodes, fresh, branch.tools)


def _messages(history: History, tally: Tally) -> Sample:
    """The conversation in the form of chat completions; replies that are not to be learned from weigh 0."""
    said = [_message(node.message) for node in history.nodes]
    for message, fresh in zip(said, history.fresh, strict=True):
        if message.get("role") == "assistant" and not fresh:
            message["weight"] = 0
    if any("weight" in message for message in said):
        tally.lacking['with replies of "weight": 0, which came with a prompt or are in a sample before'] += 1
    if not history.tools and any(message.get("tool_calls") for message in said):
        tally.lacking["that call tools of which the record has no description"] += 1
    return {"messages": said, "tools": list(history.tools) or None}


def _message(message: Mapping[str, Any]) -> Sample:
    plain = {name: value for name, value in message.items() if name != "provider_state" and value is not None}
    content = plain.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise Unfit("with pictures or other parts that are no text")
        plain["content"] = text_of(content)
    return plain


def _tokens(history: History, tally: Tally) -> Sample:
    """The tokens as the provider told them, up to the last reply with any, and of each whether to learn from it."""
    pairs = list(zip(history.nodes, history.fresh, strict=True))
    ends = [place for place, (node, fresh) in enumerate(pairs, 1) if fresh and node.token_ids]
    if not ends:
        raise Unfit("without token ids")
    untold = len(ends) < sum(history.fresh)
    pairs = pairs[: ends[-1]]
    ids = [token for node, _ in pairs for token in node.token_ids]
    if not all(type(token) is int for token in ids):
        raise Unfit("with token ids that are no numbers")
    if untold:
        tally.lacking["with replies whose token ids were not told, which are not to be learned from"] += 1
    mask = [int(fresh) for node, fresh in pairs for _ in node.token_ids]
    told = all(len(node.logprobs) == len(node.token_ids) for node, fresh in pairs if fresh)
    if not told:
        tally.lacking["without logprobs"] += 1
    logprobs = [value for node, fresh in pairs for value in (node.logprobs if fresh else [0.0] * len(node.token_ids))]
    return {
        "token_ids": ids,
        "prompt_len": mask.index(1),
        "loss_mask": mask,
        "logprobs": logprobs if told else None,
    }


Make = Callable[[History, Tally], Sample]
FORMATS: Mapping[str, Make] = {"messages": _messages, "tokens": _tokens}
"""What samples can be written as."""
