"""The gateway of a run: one for all its agents, made of what the plan says of endpoints, prices and money."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkyard.env.config import BudgetConfig
from forkyard.errors import ConfigError
from forkyard.model.place import API_KEY, BASE_URL
from forkyard.run.plan import Plan
from forkyard.task import Task
from forkyard.task.directory import DirectoryTask

if TYPE_CHECKING:
    from forkyard.gateway import Budget, Gateway, Upstreams


_NO_BUDGET = BudgetConfig()


@dataclass(frozen=True, slots=True)
class Asker:
    """Somebody who asks a model: an agent in the dialect of its harness, or a judge.

    A program that grades names its model itself, in one of several dialects; `variable` is what it asks for one by.
    """

    who: str
    model: str | None
    dialect: str = "chat"
    budget: BudgetConfig = BudgetConfig()
    variable: str | None = None
    dialects: Sequence[str] = ()


def judges_of(
    tasks: Sequence[Task[Any, Any, Any]], model: str | None, budget: BudgetConfig = _NO_BUDGET
) -> Iterator[Asker]:
    """The judges that tasks name, each once; they ask `model` unless they name another, under the agent's budget."""
    found: dict[tuple[str, str | None], Asker] = {}
    for task in tasks:
        for judge in task.config.judges:
            one = Asker(f"judge {judge.key}", judge.model or model, budget=budget)
            found.setdefault((judge.key, judge.model), one)
    return iter(found.values())


def verifiers_of(tasks: Sequence[Task[Any, Any, Any]]) -> Iterator[Asker]:
    """The programs that grade tasks and ask a model."""
    for task in tasks:
        for variable, dialects in task.models_asked.items():
            yield Asker(f"the verifier of task {task.name}", None, variable=variable, dialects=dialects)


def unpriced_of(tasks: Sequence[Task[Any, Any, Any]], gateway: Gateway | None) -> Iterator[tuple[str, str]]:
    """What to know of verifiers that are told to ask a model without a price, each with the name of its task.

    They have a budget in money whatever the run has, so its calls would be refused. What a variable is good for is the
    program's to know, so this is no reason not to start.
    """
    for task in tasks:
        for variable, model in task.models_named.items() if isinstance(task, DirectoryTask) else ():
            spelled = (model, model.partition("/")[2])  # with its provider in front, as many clients want it
            if gateway is not None and not any(name and gateway.priced(name) for name in spelled):
                yield (
                    f"its verifier is told {variable}={model}, and no price is known for a model of that name: if it "
                    f"asks that model it is refused, and the rollout has no score. {gateway.prices.problem(model)}",
                    task.name,
                )


def _no_upstream(one: Asker, upstreams: Upstreams) -> list[str]:
    """Why a program that grades has nobody to ask."""
    if any(upstreams.reachable(dialect) for dialect in one.dialects):
        return []
    address = f" and {BASE_URL}" if one.variable == API_KEY else ""
    return [
        f"{one.who} asks a model by {one.variable}, and no upstream with a key speaks {' or '.join(one.dialects)}: "
        f"set {one.variable}{address}, or give a table of upstreams"
    ]


def base_url_of(given: str | None) -> str | None:
    """The models' endpoint: as somebody said it, else as the environment names it, if it does."""
    return given or os.environ.get(BASE_URL) or None


def make_gateway(
    upstreams: Path | None, base_url: str | None, api_key_env: str, prices: Path | None, budget: BudgetConfig
) -> Gateway:
    """A gateway to the endpoints of a table, or to the one that is given or the environment names.

    Raises ConfigError for files that cannot be read, and for a variable of a key that is named and not set.
    """
    # What asks no model does without the gateway and the HTTP client under it.
    from forkyard.gateway import Gateway, default_upstreams, load_prices, load_upstreams

    if api_key_env != API_KEY and not os.environ.get(api_key_env):
        raise ConfigError(f"{api_key_env} is not set, and it is to hold the model's key")
    table = load_upstreams(upstreams) if upstreams else default_upstreams(base_url, api_key_env)
    return Gateway(table, load_prices([prices] if prices else []), budget_of(budget))


def gateway_of(plan: Plan, askers: Sequence[Asker], spent: float) -> Gateway | None:
    """The gateway for those who ask, None when there are none; `spent` is what the run has cost before.

    Raises ConfigError for a model that nobody can be asked for, and for money where a price is not known.
    """
    if not askers:
        return None
    gateway = make_gateway(
        plan.upstreams, plan.base_url, plan.api_key_env, plan.prices, BudgetConfig(usd=plan.budget_usd)
    )
    gateway.ledger.spent.usd = spent
    problems = []
    for one in askers:
        if one.variable is not None:
            problems += _no_upstream(one, gateway.upstreams)
        elif one.model is None:
            problems.append(f"{one.who} asks a model, and neither it nor its agent names one: give the judge a `model`")
        else:
            problems += gateway.problems(one.model, one.dialect, budget_of(one.budget))
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    return gateway


def budget_of(config: BudgetConfig) -> Budget:
    """The budget as the gateway keeps it."""
    from forkyard.gateway import Budget

    return Budget(usd=config.usd, tokens=config.tokens, calls=config.calls)
