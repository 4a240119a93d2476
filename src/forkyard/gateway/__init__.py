"""The gateway: the one way to every model. Keys stay here, money is counted here, and each call goes on the record."""

from forkyard.gateway.budget import NO_BUDGET, Budget
from forkyard.gateway.gateway import Bounds, Gateway
from forkyard.gateway.prices import Price, Prices, load_prices
from forkyard.gateway.route import Route
from forkyard.gateway.upstreams import Upstream, Upstreams, default_upstreams, load_upstreams

__all__ = [
    "NO_BUDGET",
    "Bounds",
    "Budget",
    "Gateway",
    "Price",
    "Prices",
    "Route",
    "Upstream",
    "Upstreams",
    "default_upstreams",
    "load_prices",
    "load_upstreams",
]
