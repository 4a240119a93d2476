"""`forkyard serve` and `forkyard env`: this machine's sandboxes and disks over HTTP."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from forkyard.cli.options import Provider, option, pairs
from forkyard.cli.output import complain, say
from forkyard.errors import ConfigError
from forkyard.interrupt import Interrupt
from forkyard.sandbox import Feature, default_home
from forkyard.sandbox.registry import DEFAULT_PROVIDER, make_provider

if TYPE_CHECKING:
    from forkyard.server.listening import Listening

_LOOK_AGAIN = 0.05
_LOOPBACK = re.compile(r"127(\.\d+){3}|::1|localhost")
_HOST_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def serve(  # noqa: PLR0913 - one parameter for each option
    host: Annotated[str, option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("--port", metavar="N", min=0, max=65535, help="The port; 0 is any.")] = 8700,
    tls: Annotated[bool, option("--tls", help="Speak TLS, with a certificate of our own CA.")] = False,
    certificate: Annotated[
        Path | None, option("--cert", metavar="FILE", help="Speak TLS with this certificate (PEM).")
    ] = None,
    key: Annotated[Path | None, option("--cert-key", metavar="FILE", help="The certificate's key (PEM).")] = None,
    mapped: Annotated[
        list[str] | None,
        option("--map", metavar="HOST=URL", help="Hand the proxy's requests for HOST to http://ADDRESS:PORT."),
    ] = None,
    zone: Annotated[
        str | None,
        option(
            "--zone",
            metavar="DOMAIN",
            help="Name ports of sandboxes beneath this domain, all of whose names lead here.",
        ),
    ] = None,
    storage: Annotated[
        int | None,
        option(
            "--storage-mib",
            metavar="MIB",
            min=0,
            max=1 << 24,
            help="What a sandbox may write to its disk that asks for no other bound; 0 is no bound."
            " By default a quarter of what is free, 64 GiB at most.",
        ),
    ] = None,
    provider: Provider = DEFAULT_PROVIDER,
) -> int:
    """Serve sandboxes, processes and disks over HTTP, for the clients of Archil's API and of S3.

    `forkyard key create` makes the key that clients need, `forkyard env` prints what points them here. The access log
    goes to standard error. The first Ctrl-C or SIGTERM lets requests under way end. See docs/server.md.
    """
    if (certificate is None) != (key is None):
        raise typer.BadParameter("--cert and --cert-key are given together")
    from forkyard.server.listening import Listening

    how = Listening(host, port, tls or certificate is not None, certificate, key, _mapped(mapped or ()))
    names = None if zone is None else _zone(zone)
    _log_to_stderr()
    return asyncio.run(_serve(how, provider, names, storage))


def env(
    by_hosts: Annotated[
        bool, option("--hosts", help="Print lines of /etc/hosts (as comments) in place of a proxy.")
    ] = False,
    wait: Annotated[
        float, option("--wait", metavar="SECONDS", min=0, help="Wait so long for a server that is starting.")
    ] = 0,
) -> None:
    """Print what points unmodified clients at the running server: `eval "$(forkyard env)"`.

    The server is their proxy: it answers itself for the hosts it stands for, and every other is reached through it as
    long as it runs. With --hosts those hosts are to be made names of this machine, which needs a server with --tls on
    port 443, and there is no proxy.
    """
    from forkyard.server.pointing import exports, replaced_trust
    from forkyard.server.running import running_server

    home = default_home()
    until = time.monotonic() + wait
    while (running := running_server(home)) is None and time.monotonic() < until:
        time.sleep(_LOOK_AGAIN)
    if running is None:
        raise ConfigError(f"no server runs on {home}: start one with `forkyard serve`")
    for line in exports(home, running, by_hosts=by_hosts):
        say(line)
    for told in replaced_trust(home, running):
        complain(told)


async def _serve(how: Listening, provider_name: str, zone: str | None, storage_mib: int | None) -> int:
    from forkyard.server.listening import listening
    from forkyard.server.serving import ZONE, opened

    home = default_home()
    with Interrupt():
        async with (
            make_provider(provider_name) as provider,
            opened(home, provider, zone or ZONE, storage_mib=storage_mib) as server,
            listening(server, how) as at,
        ):
            say(f"serving   {at.origin}")
            say('clients   eval "$(forkyard env)"')
            if Feature.LIMIT_DISK in provider.features and server.storage_mib:
                say(f"storage   {server.storage_mib} MiB for each sandbox that asks for no other (--storage-mib)")
            if not server.keys.list(limit=1):
                complain('there is no API key yet: eval "$(forkyard key create NAME)" makes one')
            if not at.tls and not _LOOPBACK.fullmatch(how.host):
                complain(f"keys and data cross the network in clear on {how.host}: add --tls")
            await asyncio.Event().wait()
    return 0


def _zone(text: str) -> str:
    from forkyard.server.hosts import is_vendor_host

    zone = text.lower().removeprefix("*.").removesuffix(".")
    if not _HOST_NAME.fullmatch(zone) or zone.rpartition(".")[2].isdigit() or is_vendor_host(zone):
        raise typer.BadParameter(f"{text!r} is no domain whose names can be given to ports", param_hint="--zone")
    return zone


def _mapped(texts: list[str] | tuple[()]) -> dict[str, tuple[str, int]]:
    found = {}
    for host, url in pairs(texts, "--map").items():
        try:
            to = urlsplit(url)
            port = to.port or 80
        except ValueError:
            to = urlsplit("")
        if to.scheme != "http" or not to.hostname or to.path.strip("/") or to.query or to.username is not None:
            raise typer.BadParameter(f"{url!r} is not http://ADDRESS:PORT", param_hint="--map")
        if not _HOST_NAME.fullmatch(host.lower()):
            raise typer.BadParameter(f"{host!r} is no host name", param_hint="--map")
        found[host.lower()] = (to.hostname, port)
    return found


def _log_to_stderr() -> None:
    formatter = logging.Formatter("%(asctime)sZ %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    log = logging.getLogger("forkyard.server")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
