"""From a trace to its line, and back.

A message stands on a line once. `messages` is the conversation; when the graph holds no more than its first messages
in a row, node i is message i and `branches` is null. Otherwise `branches` lists the nodes of the graph, each naming
its message by the place it has `at` in `messages`, and holding only those that are not there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from forkyard.trace.calls import ModelCall, Usage
from forkyard.trace.fields import Fields
from forkyard.trace.graph import Node
from forkyard.trace.messages import Messages, Talk, message_key, typed
from forkyard.trace.trace import Trace
from forkyard.trace.values import Reward, Slot, Status, Timing
from forkyard.values import finite_or_none, tail

SCHEMA = 1
_IN_THE_GRAPH = ("token_ids", "logprobs")
_SAID = 500  # characters of why a trace could not be written
_SECONDS = ("seconds", "first_byte_seconds", "started")


def record_of(trace: Trace) -> dict[str, Any]:
    """The line of a trace: strict JSON values only."""
    error = trace.errors[-1] if trace.errors else None
    timing = trace.timing
    branches, tools = _nodes(trace)
    record = {
        "run": trace.slot.run,
        "task": trace.task,
        "sample": trace.slot.sample,
        "model": trace.model,
        "reward": trace.reward if trace.status is Status.SCORED else None,
        "passed": _count(trace, "passed"),
        "total": _count(trace, "total"),
        "steps": trace.steps,
        "usage": {"input": trace.usage.input, "output": trace.usage.output},
        "fork_ms": _rounded(timing.fork_ms),
        "agent_ms": _rounded(timing.agent_ms),
        "messages": trace.messages,
        "schema": SCHEMA,
        "id": trace.id,
        "attempt": trace.slot.attempt,
        "episode": trace.slot.episode,
        "env": trace.slot.env,
        "agent": trace.agent,
        "harness": trace.harness,
        "provider": trace.sandbox_provider,
        "status": trace.status,
        "reason": trace.reason,
        "stop": trace.stop_condition,
        "timeout": trace.is_timeout,
        "rewards": {name: asdict(r) if r else None for name, r in trace.rewards.items()},
        "metrics": trace.metrics,
        "verifier": trace.verifier,
        "setup_ms": _rounded(timing.setup_ms),
        "grade_ms": _rounded(timing.grade_ms),
        "model_ms": _rounded(timing.model_ms),
        "usage_detail": asdict(trace.usage),
        "cost_usd": trace.cost_usd,
        "task_digest": trace.task_digest,
        "started": round(trace.started, 3),
        "calls": [_call(call, trace) for call in trace.calls],
        "tools": tools,
        "branches": branches,
        "error": error and {key: error[key] for key in ("type", "message", "status_code")},
        "errors": trace.errors,
        "info": trace.info,
    }
    if not trace.trainable:
        record["trainable"] = False
    return finite_or_none(record)  # type: ignore[no-any-return]


def bare_record_of(trace: Trace, error: Exception) -> dict[str, Any]:
    """The line of a trace that cannot be written as it is, with what is known of its outcome and no more."""
    played = ("task", "task_digest", "slot", "agent", "harness", "model", "sandbox_provider", "id", "started")
    outcome = ("steps", "usage", "cost_usd", "timing", "rewards", "status", "reason", "stop_condition", "is_timeout")
    bare = Trace(**{name: getattr(trace, name) for name in (*played, *outcome, "trainable")})
    bare.info["not_recorded"] = tail(f"its conversation and more: {type(error).__name__}: {error}", _SAID)
    return record_of(bare)


def _nodes(trace: Trace) -> tuple[list[dict[str, Any]] | None, list[Any] | None]:
    """The fields `branches` and `tools`."""
    nodes = trace.graph.nodes
    tools = nodes[0].tools if nodes else []
    if _is_the_conversation(nodes, trace.messages):
        return None, tools or None
    places: dict[str, int] = {}
    for place, message in enumerate(trace.messages):
        places.setdefault(message_key(message), place)
    rows = []
    for node in nodes:
        found = places.get(message_key(node.message))
        said: dict[str, Any] = {"message": node.message} if found is None else {"at": found}
        extra = {"token_ids": node.token_ids, "logprobs": node.logprobs, "sampled": node.sampled}
        stands = {"parent": node.parent} if node.parent is not None else _own_tools(node, tools)
        rows.append({**stands, **said, **{key: value for key, value in extra.items() if value}})
    return rows, tools or None


def _own_tools(root: Node, tools: Sequence[Any]) -> dict[str, Any]:
    return {} if root.tools == tools else {"tools": root.tools}


def _is_the_conversation(nodes: Sequence[Node], messages: Messages) -> bool:
    if len(nodes) > len(messages):
        return False
    return all(
        node.parent == (place - 1 if place else None)
        and not node.token_ids
        and (node.message == message or message_key(node.message) == message_key(message))
        for place, (node, message) in enumerate(zip(nodes, messages, strict=False))
    )


def _call(call: ModelCall, trace: Trace) -> dict[str, Any]:
    """One call without what is null, empty, or said by the graph's nodes; its prompt's tokens are always said there."""
    told = call.node is not None and bool(trace.graph.nodes[call.node].token_ids)
    values = {field.name: getattr(call, field.name) for field in dataclasses.fields(call)}
    values["usage"] = {name: count for name, count in asdict(call.usage).items() if count}
    values["request"] = dict(call.request)
    for name in ("prompt_token_ids", *(_IN_THE_GRAPH if told else ())):
        values[name] = None
    for name in _SECONDS:
        values[name] = _rounded(values[name])
    return {name: value for name, value in values.items() if value not in (None, "", {}, [])}


def _count(trace: Trace, name: str) -> int | None:
    value = trace.metrics.get(name, trace.metrics.get(f"tests_{name}"))
    return int(value) if value is not None and value == int(value) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def trace_of(record: Mapping[str, Any]) -> Trace:
    """The trace a line was made of. Raises ValueError naming what keeps it from being one."""
    try:
        return _trace(record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as err:
        raise ValueError(f"this is no line of a rollout: {type(err).__name__}: {err}") from err


def is_trainable(record: Mapping[str, Any]) -> bool:
    """Whether a line is to be learned from, as it says itself, or in `info` as lines once did."""
    return record.get("trainable", record["info"].get("trainable")) is not False


def _trace(record: Mapping[str, Any]) -> Trace:
    status = record["status"]
    trace = Trace(
        task=record["task"],
        task_digest=record.get("task_digest"),
        slot=Slot(record["run"], record["sample"], *(record[name] for name in ("attempt", "episode", "env"))),
        agent=record["agent"],
        harness=record["harness"],
        model=record["model"],
        sandbox_provider=record["provider"],
        id=record["id"],
        started=record["started"],
        messages=Talk(record["messages"]),
        calls=[_call_of(call) for call in record.get("calls") or ()],
        steps=record["steps"],
        usage=Usage(**record["usage_detail"]),
        cost_usd=record["cost_usd"],
        timing=Timing(*(record[f"{name}_ms"] for name in ("fork", "setup", "agent", "grade", "model"))),
        rewards={name: reward and Reward(**reward) for name, reward in record["rewards"].items()},
        metrics=dict(record["metrics"]),
        verifier=dict(record["verifier"]),
        status=status and Status(status),
        reason=record["reason"],
        stop_condition=record["stop"],
        is_timeout=record["timeout"],
        errors=[Fields(error) for error in record["errors"]],
        info=dict(record["info"]),
        trainable=is_trainable(record),
    )
    trace.graph.restore(_nodes_of(record, trace))
    return trace


def _call_of(call: Mapping[str, Any]) -> ModelCall:
    return ModelCall(**{**call, "usage": Usage(**call.get("usage", {}))})


def _nodes_of(record: Mapping[str, Any], trace: Trace) -> list[Node]:
    tools = record.get("tools") or []
    rows = record.get("branches")
    replies = {call.node for call in trace.calls if call.node is not None}
    if rows is None:
        rows = [
            {"at": place, "sampled": place in replies, **({"parent": place - 1} if place else {})}
            for place in range(max(replies, default=-1) + 1)
        ]
    ended = {call.node: round(call.started + (call.seconds or 0.0), 3) for call in trace.calls}
    nodes: list[Node] = []
    for index, row in enumerate(rows):
        parent = row.get("parent")
        if parent is not None and not 0 <= parent < index:
            raise ValueError(f"node {index} stands under node {parent}, which comes no earlier")
        nodes.append(
            Node(
                typed(trace.messages[row["at"]] if "at" in row else row["message"]),
                parent,
                sampled=row.get("sampled", False),
                timestamp=ended.get(index, 0.0) or trace.started,
                token_ids=list(row.get("token_ids", ())),
                logprobs=list(row.get("logprobs", ())),
                tools=list(row.get("tools", tools)) if parent is None else [],
            )
        )
    return nodes
