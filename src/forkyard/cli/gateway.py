"""`forkyard gateway`: the model gateway by itself, for harnesses that run elsewhere."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from forkyard.cli.options import BaseUrl, KeyVariable, Prices, option, positive
from forkyard.cli.output import complain, say
from forkyard.env.config import BudgetConfig
from forkyard.errors import ConfigError
from forkyard.interrupt import Interrupt
from forkyard.model.place import API_KEY
from forkyard.run.gateways import make_gateway
from forkyard.values import counted

if TYPE_CHECKING:
    from forkyard.gateway import Gateway


def gateway(  # noqa: PLR0913 - one parameter for each option is how typer is told of them
    model: Annotated[
        str | None, option("-m", "--model", metavar="MODEL", help="Ask for this model, whatever clients say.")
    ] = None,
    upstreams: Annotated[
        Path | None, option("--upstreams", metavar="FILE", help="A TOML table of providers, in place of variables.")
    ] = None,
    base_url: BaseUrl = None,
    api_key_env: KeyVariable = API_KEY,
    prices: Prices = None,
    budget_usd: Annotated[
        float | None, option("--budget-usd", metavar="USD", callback=positive, help="What all calls together may cost.")
    ] = None,
    budget_tokens: Annotated[
        int | None, option("--budget-tokens", metavar="N", min=1, help="How many tokens all calls may take.")
    ] = None,
    budget_calls: Annotated[
        int | None, option("--budget-calls", metavar="N", min=1, help="How many calls may be made.")
    ] = None,
    record: Annotated[
        Path | None, option("--record", metavar="FILE", help="Append each call to this file, as a line of JSON.")
    ] = None,
    port: Annotated[int, option("--port", metavar="N", min=0, max=65535, help="A port of 127.0.0.1; 0 is any.")] = 9170,
) -> int:
    """Serve models to harnesses on this machine: keys stay here, money is counted, each call is a line.

    It prints a base URL and a token, which clients use as their key. See docs/gateway.md.
    """
    from forkyard.gateway.dialects import CHAT

    budget = BudgetConfig(usd=budget_usd, tokens=budget_tokens, calls=budget_calls)
    made = make_gateway(upstreams, base_url, api_key_env, prices, budget)
    if not made.upstreams.entries:
        raise ConfigError("no provider is known: set OPENAI_BASE_URL and OPENAI_API_KEY, or give --upstreams FILE")
    if model is not None:
        made.upstream(model, CHAT)
    return asyncio.run(_serve(made, model, record, port))


async def _serve(gateway: Gateway, model: str | None, record: Path | None, port: int) -> int:
    from forkyard.gateway.alone import Alone
    from forkyard.gateway.listening import serve

    async with AsyncExitStack() as stack:
        stack.push_async_callback(gateway.close)
        lines = stack.enter_context(record.open("ab", buffering=0)) if record is not None else None

        def keep(line: str) -> None:
            if lines is not None:
                lines.write(line.encode() + b"\n")

        alone = Alone(gateway, model, keep)
        stack.push_async_callback(alone.close)
        try:
            sock = socket.create_server(("127.0.0.1", port), backlog=1024)
        except OSError as err:
            raise ConfigError(f"port {port} cannot be had ({err.strerror}): give another with --port") from None
        listener = await serve(alone, sock)
        stack.callback(listener.close)
        say(f"base URL  http://127.0.0.1:{listener.port}")
        say(f"token     {alone.token}")
        with Interrupt():
            await asyncio.Event().wait()
    complain(f"{counted(gateway.ledger.spent.calls, 'call')}, {gateway.spent_usd:.4f} USD")
    return 0
