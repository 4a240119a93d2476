"""A report as plain text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.cells import cell_len

from forkyard.report.outcome import Totals
from forkyard.report.summary import COLUMNS, NEEDED, Group, Report, Row, columns_of
from forkyard.trace import SINGLE_AGENT
from forkyard.values import counted, decimal, first_names, one_line, strict_json

REPORT_SCHEMA = 1
NAME_WIDTH = 60


def to_text(report: Report) -> str:
    """The tables and notes of a report, safe to print: names in it are escaped and of bounded width."""
    unfinished = {run.name for run in report.runs if run.recorded < run.planned}
    titles = _titles(report.groups)
    blocks = [
        "\n".join(_block(group, title, not unfinished.isdisjoint(group.runs)))
        for group, title in zip(report.groups, titles, strict=True)
    ]
    foot = [one_line(note) for note in report.notes]
    if report.groups:
        foot.insert(0, _totals(sum(group.overall.rollouts for group in report.groups), report.totals))
    return "\n\n".join([*blocks, "\n".join(foot)])


def to_json(report: Report) -> str:
    """A report as one line of strict JSON; a row's keys are the table's columns and a few more estimates."""
    return strict_json(
        {
            "schema": REPORT_SCHEMA,
            "files": [str(file) for file in report.files],
            "runs": [
                {"run": run.name, "directory": str(run.directory), "planned": run.planned, "recorded": run.recorded}
                for run in report.runs
                if run.flaw is None
            ],
            "groups": [_group_values(group) for group in report.groups],
            "totals": asdict(report.totals),
            "notes": report.notes,
        }
    )


def shown(value: float | None) -> str:
    """A number with at most two decimals and no trailing zeros (0.92, 1, 0), "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return decimal(value).rstrip("0").rstrip(".")


def aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Cells padded into columns, two spaces between them; wide letters count as two."""
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _titles(groups: Sequence[Group]) -> list[str | None]:
    """What each group is called: nothing when there is one, else as much as it takes to tell them apart."""
    if len(groups) < 2:
        return [None for _ in groups]
    several = len({(group.env, group.agent) for group in groups}) > 1
    short = [(f"agent {name_shown(group.agent)}, " if several else "") + who_of(group) for group in groups]
    return [
        title if short.count(title) == 1 else f"{title}, {_particulars(group)}"
        for title, group in zip(short, groups, strict=True)
    ]


def who_of(group: Group) -> str:
    """Who played: harness and model."""
    return f"harness {name_shown(group.harness or '-')}, model {name_shown(group.model or '-')}"


def _particulars(group: Group) -> str:
    parts = [f"{'run' if len(group.runs) == 1 else 'runs'} {first_names([name_shown(run) for run in group.runs])}"]
    parts += [f"graded {name_shown(', '.join(group.modes))}"] if group.modes else []
    parts += [f"env {name_shown(group.env)}"] if group.env != SINGLE_AGENT else []
    parts += [name_shown(group.setting)] if group.setting else []
    return ", ".join(parts)


def _block(group: Group, title: str | None, interim: bool) -> Iterator[str]:
    if title is not None:
        yield title
    if not group.rewarded:
        kinds = ", ".join(f"{status} {count}" for status, count in group.statuses.items())
        yield one_line(f"{counted(group.overall.rollouts, 'rollout')} that rewards are not for: {kinds}")
        yield from _by_name(group)
        yield from _cost(group)
        return
    names = columns_of(group.rows)
    yield from aligned([["task", *names], *(_cells(row, names) for row in (*group.rows, group.overall))])
    yield from _by_name(group)
    yield from (one_line(note) for note in group.notes)
    if group.strict:
        rates = ", ".join(f"{name} {shown(COLUMNS[name](group.strict))}" for name in NEEDED if name in names)
        yield f"with every rollout that has no reward counted as a failure, overall: {rates}"
    if max(group.pass_at_k, default=0) > 2:
        yield "every rollout counted: " + ", ".join(f"pass@{k} {shown(value)}" for k, value in group.pass_at_k.items())
    if group.intervals:
        parts = (f"{name} {shown(i.low)} to {shown(i.high)} ({i.method})" for name, i in group.intervals.items())
        yield f"95% intervals{', interim' if interim else ''}: " + ", ".join(parts)
    if title is not None:
        yield from _cost(group)


def _by_name(group: Group) -> Iterator[str]:
    if len(group.rewards) > 1:
        means = [f"{name_shown(name)} {shown(value)}" for name, value in group.rewards.items()]
        yield f"rewards by name, before their weights: {first_names(means)}"
    if group.metrics:
        yield "metrics: " + first_names([f"{name_shown(name)} {shown(value)}" for name, value in group.metrics.items()])


def _cost(group: Group) -> Iterator[str]:
    if group.cost_usd is not None:
        yield f"cost {_dollars(group.cost_usd, group.judges_usd)}"


def _dollars(total: float, judges: float) -> str:
    shares = f", of it {money(judges)} for judges" if judges else ""
    return money(total) + shares


def money(value: float) -> str:
    """US dollars: $1.25, and $0.0125 of what is less than one."""
    return f"${value:,.{2 if value >= 1 else 4}f}"


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    return [name_shown(row.task), *(shown(COLUMNS[name](row)) for name in names)]


def name_shown(text: str) -> str:
    """A name of anybody's, safe to print and of bounded width."""
    text = short = one_line(text)
    half = NAME_WIDTH // 2
    while cell_len(short) > NAME_WIDTH:
        short = f"{text[: half - 1]}…{text[-half:]}"
        half -= 1
    return short


def _totals(rollouts: int, totals: Totals) -> str:
    parts = [
        f"total: {counted(rollouts, 'rollout')}",
        f"tokens {totals.input_tokens:,} in, {totals.output_tokens:,} out",
    ]
    if totals.cost_usd is not None:
        unpriced = "" if totals.priced == totals.lines else f" ({totals.priced} of {totals.lines} lines priced)"
        parts.append(f"cost {_dollars(totals.cost_usd, totals.judges_usd)}{unpriced}")
    times = {"fork_ms": totals.fork_ms, "agent_ms": totals.agent_ms, "grade_ms": totals.grade_ms}
    medians = [
        f"{name} {shown(value) if value < 10 else f'{value:,.0f}'}"
        for name, value in times.items()
        if value is not None
    ]
    if medians:
        parts.append("median " + ", ".join(medians))
    return "; ".join(parts)


def _group_values(group: Group) -> dict[str, Any]:
    return {
        "env": group.env,
        "agent": group.agent,
        "rewarded": group.rewarded,
        "harness": group.harness,
        "model": group.model,
        "setting": group.setting,
        "graded": group.modes,
        "runs": group.runs,
        "tasks": [_row_values(row) for row in group.rows],
        "overall": _row_values(group.overall),
        "unscored_as_failures": group.strict and _row_values(group.strict),
        "pass_at_k": {str(k): value for k, value in group.pass_at_k.items()},
        "intervals": {name: asdict(interval) for name, interval in group.intervals.items()},
        "metrics": group.metrics,
        "rewards": group.rewards,
        "statuses": group.statuses,
        "cost_usd": group.cost_usd,
        "judges_usd": group.judges_usd,
        "notes": group.notes,
    }


def _row_values(row: Row) -> dict[str, Any]:
    columns = {name: value(row) for name, value in COLUMNS.items()}
    return {"task": row.task, **columns, "pass^2": row.pass_hat_2, "best_of_2": row.best_of_2}
