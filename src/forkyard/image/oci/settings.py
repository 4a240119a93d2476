"""Where registries are asked, and as whom: mirrors, plain HTTP, and the credentials docker's own client keeps."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from forkyard.errors import ConfigError
from forkyard.image.oci.reference import DOCKER_HUB
from forkyard.programs import run
from forkyard.sandbox import default_home
from forkyard.secrets import Secrets
from forkyard.values import one_line

MIRRORS = "FORKYARD_MIRRORS"
INSECURE = "FORKYARD_INSECURE_REGISTRIES"
_HUB_HOST = "registry-1.docker.io"
_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", DOCKER_HUB, _HUB_HOST)
_HELPER_SECONDS = 30.0
_HELPER_ANSWER = 1 << 20


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user with a password, or a token that stands for both. Its repr shows neither."""

    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @property
    def secrets(self) -> Secrets:
        """What must be shown nowhere."""
        return Secrets(self.password, self.token, self.basic)

    @property
    def basic(self) -> str:
        """User and password as an Authorization header has them."""
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the registry `name` is asked: itself, or the mirror in its place."""

    name: str
    url: str

    @property
    def secure(self) -> bool:
        """Whether nobody on the way can read."""
        return self.url.startswith("https://")

    @property
    def host(self) -> str:
        """Host and port."""
        return urlsplit(self.url).netloc


def blobs_directory() -> Path:
    """Where blobs are kept while they are needed."""
    path = default_home() / "blobs"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be used: {error.strerror}; set FORKYARD_HOME to a directory of yours"
        ) from error
    return path


def endpoint(registry: str, environment: Mapping[str, str] = os.environ) -> Endpoint:
    """The endpoint for a registry. Raises ConfigError for a setting that cannot be read."""
    mirrors = _mirrors(environment.get(MIRRORS, ""))
    if registry in mirrors:
        return Endpoint(registry, mirrors[registry])
    insecure = {name.strip() for name in environment.get(INSECURE, "").split(",")}
    scheme = "http" if registry in insecure or _is_loopback(registry) else "https"
    return Endpoint(registry, f"{scheme}://{_HUB_HOST if registry == DOCKER_HUB else registry}")


def _is_loopback(registry: str) -> bool:
    host = registry if registry.startswith("[") else registry.partition(":")[0]
    return host == "localhost" or host.startswith("127.") or registry.startswith("[::1]")


def _mirrors(text: str) -> dict[str, str]:
    found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        registry, equals, url = pair.partition("=")
        parts = urlsplit(url)
        if not equals or not registry or parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ConfigError(f"{MIRRORS}: {one_line(pair)!r} is not REGISTRY=URL, as docker.io=http://127.0.0.1:5000")
        found[registry] = url.rstrip("/")
    return found


async def credentials(at: Endpoint) -> Credentials | None:
    """What docker's configuration file knows for an endpoint: kept in it, or by a helper program it names.

    Raises ConfigError when the file cannot be read or the helper fails.
    """
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: it cannot be read: {getattr(error, 'strerror', None) or 'it is no JSON'}") from None
    at_hub = at.host == _HUB_HOST
    names = _HUB_KEYS if at_hub else (at.host, f"https://{at.host}", f"http://{at.host}")
    document = document if isinstance(document, dict) else {}
    for name in names:
        helper = _table(document, "credHelpers").get(name)
        if isinstance(helper, str):
            return await _ask_helper(helper, name, path)
    for name in names:
        entry = _table(document, "auths").get(name) or _table(document, "auths").get(f"{name}/")
        if isinstance(entry, dict) and (found := _kept(entry, name, path)):
            return found
    store = document.get("credsStore")
    return await _ask_helper(store, names[0], path) if isinstance(store, str) and store else None


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def _kept(entry: Mapping[str, Any], name: str, path: Path) -> Credentials | None:
    if token := entry.get("identitytoken"):
        return Credentials(token=str(token))
    if entry.get("auth"):
        try:
            user, colon, password = base64.b64decode(str(entry["auth"])).decode().rstrip("\0").partition(":")
        except ValueError:
            colon = ""
        if not colon:
            raise ConfigError(f"{path}: auths.{name}.auth is not user:password in base64: `docker login {name}` again")
        return Credentials(user, password)
    if entry.get("username"):
        return Credentials(str(entry["username"]), str(entry.get("password", "")))
    return None


async def _ask_helper(helper: str, name: str, path: Path) -> Credentials | None:
    """Run docker-credential-HELPER; None when it knows nothing of the registry."""
    program = f"docker-credential-{helper}"
    if "/" in helper or (found := shutil.which(program)) is None:
        raise ConfigError(f"{path}: it names the credential helper {one_line(program)!r}, which is not installed")
    argv = [found, "get"]
    try:
        code, out, _ = await run(argv, stdin=name.encode(), seconds=_HELPER_SECONDS, keep=_HELPER_ANSWER)
    except TimeoutError:
        raise ConfigError(f"{program} did not answer within {_HELPER_SECONDS:.0f} s") from None
    if code != 0:
        if b"credentials not found" in out.lower():
            return None
        raise ConfigError(f"{program} failed for {name} (exit code {code}): try it by hand")
    try:
        answer = json.loads(out)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{program} answered something that is no user and secret") from None
    return Credentials(token=secret) if user == "<token>" else Credentials(user, secret)
