"""How options are written here: short help, and no word on the environment variables that every one of them has."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

ENVIRONMENT = "FORKYARD"
"""`FORKYARD_RUN_SAMPLES=4` is `forkyard run --samples 4`; typer makes these names by itself."""


class Verbatim(typer.core.TyperCommand):
    """A command that is given its arguments as they are: what they mean depends on what they choose."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep everything in `ctx.args`."""
        ctx.args = list(args)
        return []


def option(*flags: str, **more: Any) -> Any:
    """An option as typer knows it."""
    return typer.Option(*flags, show_envvar=False, **more)


BaseUrl = Annotated[str | None, option("--base-url", metavar="URL", help="The model's endpoint. [$OPENAI_BASE_URL]")]
KeyVariable = Annotated[str, option("--api-key-env", metavar="NAME", help="The variable that holds the model's key.")]
Provider = Annotated[str, option("-e", "--provider", metavar="PROVIDER", help="Where sandboxes run.")]
Prices = Annotated[
    Path | None, option("--prices", metavar="FILE", help="A TOML table of prices, before the one that comes along.")
]
Concurrent = Annotated[int, option("-n", "--concurrent", metavar="N", min=1, help="Rollouts at work at once.")]
OfTask = Annotated[str | None, option("--task", metavar="NAME", help="Only the rollouts of this task.")]
Quiet = Annotated[bool, option("-q", "--quiet", help="Print nothing but errors (and --json).")]
ReportAsJson = Annotated[bool, option("--json", help="Print the report as JSON and nothing else on standard output.")]
Upstreams = Annotated[
    Path | None, option("--upstreams", metavar="FILE", help="A TOML table of endpoints, in place of these two.")
]
VerifierEnv = Annotated[
    list[str] | None,
    option("--ve", metavar="KEY=VALUE", help="REWARDKIT_JUDGE or REWARDKIT_MODEL of verifiers; repeatable."),
]


def pairs(texts: Iterable[str], flag: str) -> dict[str, str]:
    """KEY=VALUE texts as a mapping. Raises typer.BadParameter naming the option."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=flag)
        found[key] = value
    return found


def positive(value: float | None) -> float | None:
    """The callback of an option that takes a number above 0. Raises typer.BadParameter for others, and for infinity."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise typer.BadParameter(f"{value:g} is not a number above 0")
    return value


def share(value: float | None) -> float | None:
    """The callback of an option that takes a share. Raises typer.BadParameter unless it is in [0, 1]."""
    if value is not None and (math.isnan(value) or not 0 <= value <= 1):
        raise typer.BadParameter(f"{value:g} is not a number from 0 to 1")
    return value


FailUnder = Annotated[
    float | None,
    option(
        "--fail-under",
        metavar="X",
        callback=share,
        help="Exit 3 when the mean reward is below; a rollout without one counts as 0.",
    ),
]
BudgetUsd = Annotated[
    float | None, option("--budget-usd", metavar="USD", callback=positive, help="What all models together may cost.")
]


def model_settings(**said: Any) -> dict[str, Any]:
    """What was said of where and how models are asked, as fields of a plan; what was not said is left out."""
    told = pairs(said.pop("ve") or (), "--ve")
    return {name: value for name, value in (*said.items(), ("verifier_env", told or None)) if value is not None}


def flag_of(parameter: str) -> str:
    """How a parameter of a command is said."""
    return {"paths": "PATH", "name": "--run", "verifier_env": "--ve"}.get(parameter, f"--{parameter.replace('_', '-')}")
