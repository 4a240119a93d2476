"""What a session can have done: one function for each word of the engine's socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forkyard.errors import ConfigError
from forkyard.sandbox import ImageConfig, Network, Provider, Sandbox, Terminal, image_provider
from forkyard.sandbox.abilities import StandsApart
from forkyard.sandbox.keeping import KeepPolicy, KeepsDisks
from forkyard.sandbox.remote.values import (
    VERSION,
    BrokenWire,
    changes_out,
    dumped,
    environment,
    read,
    result_out,
    spec_in,
)
from forkyard.server.engine.holdings import Box, Holdings

Tell = Callable[[str, bytes], None]
Answer = tuple[Any, bytes]
NOTHING: Answer = (None, b"")


@dataclass(frozen=True, slots=True)
class Asked:
    """One call: its arguments are as they came, and are checked where they are used."""

    provider: Provider
    holdings: Holdings
    args: Mapping[str, Any]
    data: bytes
    tell: Tell
    accepted: Callable[..., Any]
    refuse: Callable[[str], None]

    @property
    def box(self) -> Box:
        """The sandbox that is meant."""
        return self.holdings.box(self.args.get("box"))

    def given(self, kind: Any, name: str) -> Any:
        """An argument of that type."""
        return read(kind, self.args.get(name))

    def text(self, name: str) -> str:
        """An argument that is text, which need not be UTF-8."""
        value = self.args.get(name)
        if not isinstance(value, str):
            raise BrokenWire(f"{name} is no text")
        return value

    def maybe(self, name: str) -> str | None:
        """The same, or None."""
        return None if self.args.get(name) is None else self.text(name)

    def texts(self, name: str) -> list[str]:
        """A list of texts, which need not be UTF-8."""
        value = self.args.get(name)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise BrokenWire(f"{name} is no list of texts")
        return value


Deed = Callable[[Asked], Awaitable[Answer]]


def about(provider: Provider) -> dict[str, Any]:
    """What is said of a provider to whoever wants to use it from elsewhere."""
    return {"version": VERSION, "provider": provider.name, "features": sorted(map(str, provider.features))}


async def hello(asked: Asked) -> Answer:
    """Who is there."""
    return about(asked.provider), b""


# Of the provider.


def _shown(asked: Asked, sandbox: Sandbox, *, survives: bool = False) -> Answer:
    box = asked.holdings.add(sandbox, survives=survives)
    return {"box": box.number, "info": dumped(sandbox.info)}, b""


async def create(asked: Asked) -> Answer:
    """`Provider.create`."""
    spec = spec_in(asked.args.get("spec"))
    return _shown(asked, await asked.provider.create(spec), survives=spec.survives)


async def open_(asked: Asked) -> Answer:
    """`Provider.open`: what was kept until now stays kept, unless it is closed."""
    return _shown(asked, await asked.provider.open(asked.text("name")), survives=True)


async def sandboxes(asked: Asked) -> Answer:
    """`Provider.sandboxes`."""
    return [dumped(info) for info in await asked.provider.sandboxes()], b""


async def sweep(asked: Asked) -> Answer:
    """`Provider.sweep`."""
    return await asked.provider.sweep(), b""


async def images(asked: Asked) -> Answer:
    """`ImageStore.images`."""
    return [dumped(info) for info in await image_provider(asked.provider).images()], b""


async def image(asked: Asked) -> Answer:
    """`ImageStore.image`."""
    found = await image_provider(asked.provider).image(asked.text("name"))
    return None if found is None else dumped(found), b""


async def commit(asked: Asked) -> Answer:
    """`ImageStore.commit`."""
    config = asked.given(ImageConfig, "config")
    return dumped(await image_provider(asked.provider).commit(asked.box.sandbox, asked.text("name"), config)), b""


async def remove_image(asked: Asked) -> Answer:
    """`ImageStore.remove_image`."""
    await image_provider(asked.provider).remove_image(asked.text("name"))
    return NOTHING


async def prune_images(asked: Asked) -> Answer:
    """`ImageStore.prune_images`."""
    return await image_provider(asked.provider).prune_images(asked.text("prefix")), b""


def _keeper(asked: Asked) -> KeepsDisks:
    if not isinstance(asked.provider, KeepsDisks):
        raise ConfigError(f"the server's provider {asked.provider.name} keeps no disks")
    return asked.provider


async def keep_disk(asked: Asked) -> Answer:
    """`KeepsDisks.keep_disk`."""
    await _keeper(asked).keep_disk(asked.box.sandbox, asked.text("name"), asked.texts("without_env"))
    return NOTHING


async def from_kept(asked: Asked) -> Answer:
    """`KeepsDisks.from_kept`."""
    return _shown(asked, await _keeper(asked).from_kept(asked.text("name"), spec_in(asked.args.get("spec"))))


async def kept_disks(asked: Asked) -> Answer:
    """`KeepsDisks.kept_disks`."""
    found = await asked.provider.kept_disks() if isinstance(asked.provider, KeepsDisks) else []
    return [dumped(disk) for disk in found], b""


async def prune_kept(asked: Asked) -> Answer:
    """`KeepsDisks.prune_kept`."""
    policy = asked.given(KeepPolicy, "policy")
    found = await asked.provider.prune_kept(policy) if isinstance(asked.provider, KeepsDisks) else []
    return [dumped(disk) for disk in found], b""


# Of a sandbox.


def _command(asked: Asked) -> dict[str, Any]:
    argv, env = asked.args.get("argv"), asked.args.get("env")
    return {
        "argv": argv if isinstance(argv, str) else asked.texts("argv"),
        "env": None if env is None else environment(env),
        "cwd": asked.maybe("cwd"),
        "user": asked.maybe("user"),
    }


async def run(asked: Asked) -> Answer:
    """`Sandbox.run`."""
    result = await asked.box.sandbox.run(
        **_command(asked),
        stdin=asked.data,
        timeout=asked.given(float | None, "timeout"),
        output_limit=asked.given(int, "output_limit"),
        on_output=asked.tell if asked.args.get("told") else None,
    )
    return result_out(result)


async def spawn(asked: Asked) -> Answer:
    """`Sandbox.spawn`."""
    size = asked.given(tuple[int, int] | None, "terminal")
    box = asked.box
    process = await box.sandbox.spawn(**_command(asked), terminal=None if size is None else Terminal(*size))
    return asked.holdings.spawned(process, box), b""


async def read_(asked: Asked) -> Answer:
    """`Sandbox.read`."""
    return None, await asked.box.sandbox.read(asked.text("path"), asked.given(int, "max_bytes"))


async def write(asked: Asked) -> Answer:
    """`Sandbox.write`."""
    await asked.box.sandbox.write(asked.text("path"), asked.data, asked.given(int, "mode"))
    return NOTHING


async def pull(asked: Asked) -> Answer:
    """`Sandbox.pull`."""
    limit = asked.given(int, "max_bytes")
    return None, await asked.box.sandbox.pull(asked.text("path"), asked.texts("exclude"), limit)


async def push(asked: Asked) -> Answer:
    """`Sandbox.push`."""
    await asked.box.sandbox.push(asked.data, asked.text("path"), layer=asked.given(bool, "layer"))
    return NOTHING


async def listen(asked: Asked) -> Answer:
    """`Sandbox.listen`: the client is told of each connection."""
    box, again = asked.box, asked.given(bool, "again")
    return await asked.holdings.listen(box, asked.given(int, "port"), again, asked.accepted), b""


async def connect(asked: Asked) -> Answer:
    """`Sandbox.connect`: the token of a stream."""
    return asked.accepted(None, await asked.box.sandbox.connect(asked.given(int, "port"))), b""


async def refuse(asked: Asked) -> Answer:
    """Close a stream that nobody serves."""
    asked.refuse(asked.text("stream"))
    return NOTHING


async def set_network(asked: Asked) -> Answer:
    """`Sandbox.set_network`."""
    await asked.box.sandbox.set_network(asked.given(Network, "network"))
    return NOTHING


async def fork(asked: Asked) -> Answer:
    """`Sandbox.fork`."""
    box = asked.box
    return _shown(asked, await box.sandbox.fork(asked.maybe("name")), survives=box.survives)


async def pristine(asked: Asked) -> Answer:
    """`Sandbox.pristine`."""
    return _shown(asked, await asked.box.sandbox.pristine())


async def apart(asked: Asked) -> Answer:
    """`StandsApart.apart`."""
    sandbox = asked.box.sandbox
    beside = await sandbox.apart(asked.texts("own")) if isinstance(sandbox, StandsApart) else None
    return NOTHING if beside is None else _shown(asked, beside)


async def is_quiet(asked: Asked) -> Answer:
    """`Sandbox.is_quiet`."""
    return await asked.box.sandbox.is_quiet(), b""


async def changes(asked: Asked) -> Answer:
    """`Sandbox.changes`."""
    return changes_out(await asked.box.sandbox.changes()), b""


async def close(asked: Asked) -> Answer:
    """`Sandbox.close`."""
    await asked.holdings.close(asked.box)
    return NOTHING


def _simply(name: str) -> Deed:
    """A method of a sandbox that takes nothing and gives nothing."""

    async def deed(asked: Asked) -> Answer:
        await getattr(asked.box.sandbox, name)()
        return NOTHING

    return deed


# Of a process.


async def feed(asked: Asked) -> Answer:
    """`Process.write`."""
    await asked.holdings.process(asked.args.get("process")).process.write(asked.data)
    return NOTHING


async def close_stdin(asked: Asked) -> Answer:
    """`Process.close_stdin`."""
    await asked.holdings.process(asked.args.get("process")).process.close_stdin()
    return NOTHING


async def output(asked: Asked) -> Answer:
    """The next piece of `Process.output`."""
    return await asked.holdings.process(asked.args.get("process")).next() or NOTHING


async def resize(asked: Asked) -> Answer:
    """`Process.resize`."""
    cols, rows = asked.given(int, "cols"), asked.given(int, "rows")
    await asked.holdings.process(asked.args.get("process")).process.resize(cols, rows)
    return NOTHING


async def kill(asked: Asked) -> Answer:
    """`Process.kill`."""
    await asked.holdings.process(asked.args.get("process")).process.kill()
    return NOTHING


async def wait(asked: Asked) -> Answer:
    """`Process.wait`."""
    return result_out(await asked.holdings.process(asked.args.get("process")).process.wait())


_PLAIN = (
    hello, create, sandboxes, sweep, images, image, commit, remove_image, prune_images, keep_disk, from_kept,
    kept_disks, prune_kept, run, spawn, write, pull, push, listen, connect, refuse, set_network, fork, pristine,
    apart, is_quiet, changes, close, feed, close_stdin, output, resize, kill, wait,
)  # fmt: skip
DEEDS: Mapping[str, Deed] = {
    **{deed.__name__: deed for deed in _PLAIN},
    "open": open_,
    "read": read_,
    **{name: _simply(name) for name in ("pause", "resume", "stop", "start")},
}
