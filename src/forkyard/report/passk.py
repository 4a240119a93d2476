"""pass@k as results of task directories are compared by it: every attempt counts, and rewards say yes or no.

An attempt without a reward, or without a primary one, is one that failed. k goes as far as every task has attempts. A
primary reward that is neither 0 nor 1 says how well, not whether: a group with such a one has no pass@k.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from forkyard.report.outcome import Outcome
from forkyard.report.stats import mean, pass_at_k


def ks(most: int) -> list[int]:
    """The k that are told of, up to `most`: 2, 4, 8, ... and 5, 10, 15, ..."""
    powers = (1 << power for power in range(1, most.bit_length()))
    return sorted({*powers, *range(5, most + 1, 5)})


def pass_at_ks(tasks: Iterable[Sequence[Outcome]]) -> dict[int, float]:
    """pass@k of some tasks' attempts, averaged over the tasks; empty when there is none."""
    attempts = list(tasks)
    primaries = {_primary(item) for task in attempts for item in task}
    if not attempts or not primaries <= {None, 0.0, 1.0} or any(item.odd for task in attempts for item in task):
        return {}
    counts = [(len(task), sum(_primary(item) == 1 for item in task)) for task in attempts]
    return dict(_estimates(counts))


def _primary(item: Outcome) -> float | None:
    return round(item.reward, 9) if item.scored and item.reward is not None else None  # weighted sums miss by rounding


def _estimates(counts: Sequence[tuple[int, int]]) -> Iterator[tuple[int, float]]:
    for k in ks(min(n for n, _ in counts)):
        value = mean([found for n, c in counts if (found := pass_at_k(n, c, k)) is not None])
        if value is not None:
            yield k, value
