"""What calls cost: prices by model, ours and a user's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from forkyard.gateway.upstreams import read_toml
from forkyard.trace import Usage

PACKAGED = Path(__file__).with_name("prices.toml")
_MILLION = 1_000_000


class Price(BaseModel):
    """USD per million tokens for the models whose names fit; see prices.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    model: str | tuple[str, ...]
    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(None, ge=0)
    written: float | None = Field(None, ge=0)

    def fits(self, model: str) -> bool:
        """Whether it is the price of a model."""
        patterns = (self.model,) if isinstance(self.model, str) else self.model
        return any(fnmatchcase(model, pattern) for pattern in patterns)

    def cost(self, usage: Usage, written: int = 0) -> float:
        """USD for the tokens of a call, of which `written` of the input went into the cache."""
        cached = min(usage.cached, usage.input)
        written = min(written, usage.input - cached)
        plain = usage.input - cached - written
        return (
            plain * self.input
            + cached * (self.input if self.cached is None else self.cached)
            + written * (self.input if self.written is None else self.written)
            + usage.output * self.output
        ) / _MILLION

    def at_most(self, tokens: int, output: int) -> float:
        """USD that so many tokens can cost at most, however the cache takes them."""
        return (tokens * max(self.input, self.written or 0.0, self.cached or 0.0) + output * self.output) / _MILLION


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    price: tuple[Price, ...]


@dataclass(frozen=True, slots=True)
class Prices:
    """A price table; the first entry that fits is taken."""

    entries: tuple[Price, ...] = ()

    def of(self, *names: str) -> Price | None:
        """The price of a model by the first of its names that has one."""
        return next((price for name in names for price in self.entries if price.fits(name)), None)

    def problem(self, *names: str) -> str | None:
        """Why a budget in money cannot be kept for a model, in one sentence."""
        if self.of(*names):
            return None
        return (
            f"a budget in USD needs the price of model {names[0]!r}, and none is known: put a [[price]] with "
            f'model = "{names[0]}", input = ... and output = ... (USD per million tokens) into a file and give it '
            "with --prices"
        )


def load_prices(paths: Iterable[Path] = ()) -> Prices:
    """The prices of files, the first file before the next, and then ours. Raises ConfigError."""
    given = [price for path in paths for price in read_toml(path, _Table).price]
    return Prices((*given, *_packaged()))


@cache
def _packaged() -> tuple[Price, ...]:
    return read_toml(PACKAGED, _Table).price
