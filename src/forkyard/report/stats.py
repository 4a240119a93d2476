"""Statistics of evals: estimators per task and intervals over tasks.

The task is the unit: samples of one task are correlated, and intervals that take rollouts for independent points miss
the truth a quarter of the time. Every estimator here is per task; `mean` averages over tasks; intervals are 95%.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

LEVEL = 0.95
BOOTSTRAP_DRAWS = 2000
BOOTSTRAP_SEED = 0
_UPPER = 0.5 + LEVEL / 2
_Z = NormalDist().inv_cdf(_UPPER)


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95% interval and how it was made."""

    low: float
    high: float
    method: str


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return math.fsum(values) / len(values) if values else None


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """The chance that k of a task's n samples, c of them solved, hold a solved one (unbiased); None when n < k."""
    _check(n, c, k)
    if n < k:
        return None
    # Whole numbers divided once: exact to the last bit, and no overflow however large n is.
    every = math.comb(n, k)
    return (every - math.comb(n - c, k)) / every


def pass_hat_k(n: int, c: int, k: int) -> float | None:
    """The chance that k of a task's n samples are all solved (unbiased); None when n < k."""
    _check(n, c, k)
    return None if n < k else math.comb(c, k) / math.comb(n, k)


def best_of_k(rewards: Sequence[float], k: int) -> float | None:
    """The expected highest reward among k of a task's rewards (unbiased); None when there are fewer than k."""
    n = len(rewards)
    _check(n, 0, k)
    if n < k:
        return None
    every = math.comb(n, k)
    return math.fsum(x * (math.comb(below, k - 1) / every) for below, x in enumerate(sorted(rewards)))


def t_cdf(t: float, df: int) -> float:
    """Student's distribution function for a whole number of degrees of freedom."""
    angle = math.atan(t / math.sqrt(df))
    # The finite series in powers of the cosine (Abramowitz and Stegun 26.7.3 and 26.7.4): exact for whole df.
    cos2 = math.cos(angle) ** 2
    odd = df % 2
    term = math.cos(angle) if odd else 1.0
    total = term if df > 1 else 0.0
    for i in range(2 + odd, df - 1, 2):
        term *= cos2 * (i - 1) / i
        total += term
    inside = math.sin(angle) * total
    return 0.5 + (angle + inside) / math.pi if odd else 0.5 + inside / 2


def t_quantile(p: float, df: int) -> float:
    """The point below which Student's distribution has probability p; ValueError outside 0 < p < 1 or df < 1."""
    if not 0 < p < 1 or df < 1:
        raise ValueError(f"no quantile for p={p}, df={df}")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    norm = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    # The normal quantile lies below, and there the distribution function is concave: Newton climbs and cannot pass it.
    t = NormalDist().inv_cdf(p)
    for _ in range(200):
        step = (p - t_cdf(t, df)) / math.exp(norm - (df + 1) / 2 * math.log1p(t * t / df))
        t += step
        if abs(step) <= 1e-12 * (1 + t):
            break
    return t


def wilson(rate: float, n: float, method: str = "Wilson") -> Interval:
    """Wilson's interval of a success rate seen in n independent trials; n need not be whole."""
    z2 = _Z * _Z
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    return Interval(max(0.0, centre - half), min(1.0, centre + half), method)


def success_interval(counts: Sequence[tuple[int, int]]) -> Interval | None:
    """The interval of a success rate averaged over tasks, each given as (samples, solved); None without samples.

    Wilson's with the effective sample size: as many independent trials as would give the spread seen between tasks,
    at least one a task and at most one a sample. Of a single task it speaks of that task only, and says so.
    """
    counts = [(n, c) for n, c in counts if n]
    if not counts:
        return None
    if len(counts) == 1:
        n, c = counts[0]
        return wilson(c / n, n, "Wilson, this task only")
    rates = [c / n for n, c in counts]
    rate = math.fsum(rates) / len(rates)
    samples = sum(n for n, _ in counts)
    return wilson(rate, _effective(rate, _standard_error(rates), len(rates), samples), "Wilson, effective sample size")


def t_interval(values: Sequence[float]) -> Interval | None:
    """Student's interval of a mean over tasks; None when there are fewer than two or they do not differ."""
    if len(values) < 2 or min(values) == max(values):
        return None
    centre = math.fsum(values) / len(values)
    half = t_quantile(_UPPER, len(values) - 1) * _standard_error(values)
    return Interval(centre - half, centre + half, "t over tasks")


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of two means over the same tasks, `b - a`, and what pairing the tasks says of it.

    Without an interval, and so without `p`, when there are fewer than two tasks or the difference is the same in all.
    """

    tasks: int
    a: float
    b: float
    error: float | None
    interval: Interval | None
    p: float | None

    @property
    def value(self) -> float:
        """The difference."""
        return self.b - self.a

    @property
    def detectable(self) -> float | None:
        """The difference that as many tasks of this kind show four times in five."""
        return None if self.error is None else (_Z + NormalDist().inv_cdf(0.8)) * self.error

    @property
    def tasks_needed(self) -> int | None:
        """How many tasks of this kind show this very difference four times in five."""
        if self.detectable is None or self.value == 0:
            return None
        return math.ceil(self.tasks * (self.detectable / self.value) ** 2)


def sign_test(better: int, worse: int) -> float | None:
    """How likely tasks that go one way or the other by chance are as one-sided as this; None of no such task.

    Exact, of both sides, and without the tasks that go neither way. With one sample each it is McNemar's test.
    """
    tasks = better + worse
    if not tasks:
        return None
    tail = sum(math.comb(tasks, k) for k in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / (1 << tasks))


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """The difference of two means, each value of `a` paired with the one of `b` of the same task; None of nothing.

    The standard error is that of the differences of tasks, which is one clustered by task; p is of Student's test.
    """
    if not a:
        return None
    differences = [y - x for x, y in zip(a, b, strict=True)]
    centre = math.fsum(differences) / len(differences)
    interval = t_interval(differences)
    means = math.fsum(a) / len(a), math.fsum(b) / len(b)
    if interval is None:
        return Difference(len(a), *means, None, None, None)
    error = _standard_error(differences)
    p = min(1.0, 2 * (1 - t_cdf(abs(centre) / error, len(a) - 1)))
    return Difference(len(a), *means, error, Interval(interval.low, interval.high, "paired t"), p)


def bootstrap_interval(values: Sequence[float]) -> Interval | None:
    """The interval of a mean over tasks by redrawing tasks (2,000 draws, fixed seed); None as for `t_interval`."""
    if len(values) < 2 or min(values) == max(values):
        return None
    rng = random.Random(BOOTSTRAP_SEED)
    # Sorted, so that the same tasks in another order give the same interval.
    pool, size = sorted(values), len(values)
    means = sorted(sum(rng.choices(pool, k=size)) / size for _ in range(BOOTSTRAP_DRAWS))
    return Interval(_percentile(means, 1 - _UPPER), _percentile(means, _UPPER), "task bootstrap")


def _check(n: int, c: int, k: int) -> None:
    if k < 1 or not 0 <= c <= n:
        raise ValueError(f"not a count of samples: n={n}, c={c}, k={k}")


def _standard_error(values: Sequence[float]) -> float:
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((x - centre) ** 2 for x in values) / (len(values) - 1) / len(values))


def _effective(rate: float, error: float, tasks: int, samples: int) -> float:
    spread = rate * (1 - rate)
    if spread == 0:
        return tasks  # all tasks at 0% or at 100%: nothing is known of the spread, so the least is assumed
    if error == 0:
        return samples
    return min(max(spread / error**2, tasks), samples)


def _percentile(ordered: Sequence[float], p: float) -> float:
    place = p * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
