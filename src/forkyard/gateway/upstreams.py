"""The table of upstreams: which provider is asked for which model, with which key."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forkyard.errors import ConfigError
from forkyard.gateway.dialects import NAMES, Dialect
from forkyard.gateway.headers import Headers
from forkyard.model import Place
from forkyard.model.place import API_KEY, BASE_URL, check_place, is_loopback
from forkyard.secrets import SHORTEST_SECRET, Secrets, is_secret

ANTHROPIC_URL, ANTHROPIC_KEY = "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"
ANTHROPIC = "https://api.anthropic.com"
DialectName = Literal["chat", "responses", "messages"]


@dataclass(frozen=True, slots=True)
class Upstream:
    """A provider. `alias` is its own name for the model, `auth` how it takes the key ("bearer", "x-api-key").

    With `stream_usage` a streamed chat completion is asked for its usage although its client did not.
    """

    place: Place
    key: str | None = field(default=None, repr=False)
    model: str = "*"
    dialects: tuple[str, ...] = NAMES
    alias: str | None = None
    auth: Literal["bearer", "x-api-key"] | None = None
    stream_usage: bool = True

    def url(self, dialect: Dialect, path: str) -> str:
        """Where a path of the dialect is; OpenAI's base URLs end in /v1, Anthropic's do not."""
        base = self.place.url.rstrip("/")
        version = "/v1" if dialect.name == "messages" and not base.endswith("/v1") else ""
        return f"{base}{version}{path}"

    def key_headers(self, dialect: Dialect, headers: Headers) -> dict[str, str]:
        """The headers that carry the key: unless `auth` says otherwise, where the client had put its own."""
        if self.key is None:
            return {}
        names = {name for name, _ in headers}
        clients = "bearer" if b"authorization" in names and b"x-api-key" not in names else dialect.auth
        bearer = (self.auth or clients) == "bearer"
        return {"authorization": f"Bearer {self.key}"} if bearer else {"x-api-key": self.key}


@dataclass(frozen=True, slots=True)
class Upstreams:
    """The table; the first entry that fits is taken."""

    entries: tuple[Upstream, ...] = ()

    @property
    def secrets(self) -> Secrets:
        """Every key in it."""
        return Secrets(*(entry.key for entry in self.entries))

    @property
    def keys(self) -> list[str]:
        """Every key in it that no reply may hold: a short word is a placeholder, which replies may well hold."""
        return [entry.key for entry in self.entries if entry.key and is_secret(entry.key)]

    def find(self, model: str, dialect: str) -> Upstream:
        """Who is asked for a model in a dialect. Raises LookupError with a sentence that says what to do."""
        fitting = [entry for entry in self.entries if fnmatchcase(model, entry.model)]
        for entry in fitting:
            if dialect in entry.dialects:
                return entry
        if not fitting:
            known = ", ".join(entry.model for entry in self.entries) or "none"
            raise LookupError(f"no upstream is known for model {model!r} (known are: {known}); {_mend(dialect)}")
        places = ", ".join(f"{entry.place} speaks {' and '.join(entry.dialects)}" for entry in fitting)
        raise LookupError(
            f"model {model!r} was asked for as {dialect!r}, and its upstream does not speak that ({places}); requests "
            f"are never translated: {_mend(dialect)}"
        )

    def reachable(self, dialect: str) -> bool:
        """Whether anybody can be asked in a dialect: with a key, or on this machine."""
        return any(dialect in each.dialects and (each.key or is_loopback(each.place.url)) for each in self.entries)

    def problems(self, model: str, dialect: str) -> list[str]:
        """Why a model cannot be asked in a dialect, one sentence each."""
        try:
            entry = self.find(model, dialect)
        except LookupError as err:
            return [str(err)]
        if entry.key is None and not is_loopback(entry.place.url):
            return [
                f"model {model!r} needs a key: set {entry.place.key_from} (if the endpoint takes none, a word of fewer "
                f"than {SHORTEST_SECRET} letters will do, as EMPTY: longer ones are taken for secrets)"
            ]
        return []


def _mend(dialect: str) -> str:
    variables = f"{ANTHROPIC_KEY}" if dialect == "messages" else f"{BASE_URL} and {API_KEY}"
    return f"set {variables}, or give a table of upstreams with an entry whose dialects hold {dialect!r}"


def default_upstreams(
    base_url: str | None = None, api_key_env: str | None = None, environ: Mapping[str, str] = os.environ
) -> Upstreams:
    """The table of a run without one: its own base URL for every dialect, otherwise what the environment names.

    OPENAI_BASE_URL is asked for chat and responses, Anthropic (or ANTHROPIC_BASE_URL) for messages once there is a key.
    Raises ConfigError for URLs and keys that cannot be used.
    """
    values = {name: value.strip() for name, value in environ.items() if value.strip()}
    key_name = api_key_env or API_KEY
    entries = []
    openai = values.get(BASE_URL)
    if base_url and base_url.strip() != openai:
        entries.append(_checked(Upstream(Place(base_url.strip(), "--base-url", key_name), values.get(key_name))))
    elif openai:
        place = Place(openai, BASE_URL, key_name)
        entries.append(_checked(Upstream(place, values.get(key_name), dialects=("chat", "responses"))))
    if ANTHROPIC_URL in values or ANTHROPIC_KEY in values:
        place = Place(values.get(ANTHROPIC_URL, ANTHROPIC), ANTHROPIC_URL, ANTHROPIC_KEY)
        entries.append(_checked(Upstream(place, values.get(ANTHROPIC_KEY), dialects=("messages",))))
    return Upstreams(tuple(entries))


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str = "*"
    base_url: str
    api_key_env: str | None = None
    dialects: Annotated[tuple[DialectName, ...], Field(min_length=1)] = ("chat", "responses")
    alias: str | None = None
    auth: Literal["bearer", "x-api-key"] | None = None
    stream_usage: bool = True


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    upstream: tuple[_Entry, ...]


def load_upstreams(path: Path, environ: Mapping[str, str] = os.environ) -> Upstreams:
    """The table of a TOML file. Raises ConfigError naming the file, the entry and the mend."""
    table = read_toml(path, _Table)
    problems, entries = [], []
    for number, entry in enumerate(table.upstream):
        where = f"{path}: upstream {number} ({entry.model})"
        key = environ.get(entry.api_key_env, "").strip() if entry.api_key_env else ""
        if entry.api_key_env and not key:
            problems.append(f"{where}: {entry.api_key_env} is not set, and it is to hold the key")
        place = Place(entry.base_url, f"base_url of {where}", entry.api_key_env or f"api_key_env of {where}")
        rest: dict[str, Any] = entry.model_dump(exclude={"base_url", "api_key_env"})
        try:
            entries.append(_checked(Upstream(place, key or None, **rest)))
        except ConfigError as err:
            problems += err.problems
    if problems:
        raise ConfigError(*problems)
    return Upstreams(tuple(entries))


_AnyTable = TypeVar("_AnyTable", bound=BaseModel)


def read_toml(path: Path, kind: type[_AnyTable]) -> _AnyTable:
    """A file of TOML as a value. Raises ConfigError naming the file and the place in it."""
    try:
        return kind.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as err:
        raise ConfigError(f"{path}: cannot be read: {err.strerror}") from None
    except ValidationError as err:
        raise ConfigError(
            *(f"{path}: {'.'.join(map(str, item['loc'])) or 'the file'}: {item['msg']}" for item in err.errors())
        ) from None
    except ValueError as err:
        raise ConfigError(f"{path}: not TOML: {err}") from None


def _checked(entry: Upstream) -> Upstream:
    check_place(entry.place, entry.key)
    return entry
