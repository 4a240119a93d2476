"""Getting in: what a registry's 401 asks for, and the Authorization header that answers it."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import httpx2

from forkyard.image.oci.errors import ImageSourceError
from forkyard.image.oci.settings import Credentials, Endpoint
from forkyard.secrets import Secrets
from forkyard.values import one_line

_FIELD = re.compile(r'([A-Za-z_]+)="([^"]*)"')
_TOKEN_LIMIT = 1 << 20


class Access:
    """The Authorization headers for one endpoint, by scope; tokens are asked for when a registry first wants one."""

    def __init__(self, client: httpx2.AsyncClient, at: Endpoint, known: Credentials | None) -> None:
        self._client, self._at, self._known = client, at, known
        self._headers: dict[str, str] = {}

    @property
    def hint(self) -> str:
        """What to do about a refusal."""
        return _hint(self._at, self._known)

    def hide(self, text: str) -> str:
        """A text without the credentials."""
        tokens = Secrets(*(header.partition(" ")[2] for header in self._headers.values()))
        return ((self._known.secrets | tokens) if self._known else tokens).hide(text)

    def headers(self, scope: str) -> dict[str, str]:
        """What is sent with a request of that scope, as far as it is known."""
        found = self._headers.get(scope)
        return {"Authorization": found} if found else {}

    async def answer(self, refused: httpx2.Response, scope: str) -> bool:
        """Get what a 401 asks for; False when there is nothing to offer.

        Raises ImageSourceError when the token cannot be had, and what httpx2 raises.
        """
        asked = [header.strip() for header in refused.headers.get_list("www-authenticate")]
        for header in asked:
            kind, _, rest = header.partition(" ")
            if kind.lower() == "bearer":
                self._headers[scope] = f"Bearer {await self._token(dict(_FIELD.findall(rest)), scope)}"
                return True
            if kind.lower() == "basic" and self._known and self._known.user:
                self._headers[scope] = f"Basic {self._known.basic}"
                return True
        return False

    async def _token(self, said: dict[str, str], scope: str) -> str:
        realm = said.get("realm", "")
        if urlsplit(realm).scheme not in ("http", "https"):
            raise ImageSourceError(f"the registry {self._at.host} names {one_line(realm)[:200]!r} to get a token from")
        if self._known and self._at.secure and not realm.startswith("https://"):
            raise ImageSourceError(
                f"the registry {self._at.host} wants the password sent unencrypted to {one_line(realm)[:200]}: refused"
            )
        fields = {"service": said.get("service", ""), "scope": scope, "client_id": "forkyard"}
        if self._known and self._known.token:
            form = {**fields, "grant_type": "refresh_token", "refresh_token": self._known.token}
            request = self._client.build_request("POST", realm, data=form)
        else:
            headers = {"Authorization": f"Basic {self._known.basic}"} if self._known else {}
            request = self._client.build_request("GET", realm, params=fields, headers=headers)
        response = await self._client.send(request, stream=True)
        try:
            data = await read_bounded(response, _TOKEN_LIMIT)
        finally:
            await response.aclose()
        token = _token_of(response, data)
        if token is None:
            raise ImageSourceError(
                f"the registry {self._at.name} gave no token for {scope} (status {response.status_code}"
                f"{' of ' + one_line(urlsplit(realm).netloc)}): {self.hint}"
            )
        return token


def _token_of(response: httpx2.Response, data: bytes) -> str | None:
    if response.status_code != 200:
        return None
    try:
        found = httpx2.Response(200, content=data).json()
    except ValueError:
        return None
    token = (found.get("token") or found.get("access_token")) if isinstance(found, dict) else None
    return token if isinstance(token, str) and token.isascii() and token.isprintable() else None


def _hint(at: Endpoint, known: Credentials | None) -> str:
    """What to do about a refusal."""
    if known is None:
        return f"it knows no such image or wants a login: `docker login {at.name}`, or set DOCKER_CONFIG"
    return f"the login in docker's configuration may not do that: `docker login {at.name}` again"


async def read_bounded(response: httpx2.Response, limit: int) -> bytes:
    """The body of a streamed response. ImageSourceError when it is longer than `limit`."""
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > limit:
            raise ImageSourceError(f"{response.url.host} answered with more than {limit} bytes where less is usual")
    return bytes(data)
